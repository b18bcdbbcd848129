// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Shows this rank's header to all ranks, and fetches theirs. The headers travel through device
// memory.
inline void gather_through_device(device_session& session, table<call_header>& all,
                                  time_point limit) {
    const int rank = session.rank();
    const current_device here(session.device(), rank);
    const std::size_t each = sizeof(call_header);
    const call_header& mine = all[std::size_t(rank)];
    const cuda_memory memory = session.guarded(
        [&] { return cuda_memory(cuda_memory::kind::device, each * all.size(), rank); });
    std::byte* const own = memory.data() + std::size_t(rank) * each;
    const cudaStream_t stream = session.own_stream();
    const finish_before_leaving finish{stream};
    session.guarded([&] { copy_async(own, &mine, each, cudaMemcpyHostToDevice, stream, rank); });
    collective_call gather;
    gather.entry.kind = collective::allgather;
    gather.entry.count = each;
    gather.in = own;
    gather.out = memory.data();
    session.enqueue({&gather, 1}, "agreement", stream, limit);
    session.wait(session.mark(stream), "agreement", limit);
    session.guarded([&] {
        copy_async(all.data(), memory.data(), memory.size(), cudaMemcpyDeviceToHost, stream, rank);
    });
    session.wait(session.mark(stream), "agreement", limit);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
