// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../session.hpp"

namespace hvd::inline v0::detail {

// Shows this rank's header to all ranks, and fetches theirs. The headers travel through `memory` of
// the device, which has room for all. Allocating it here could wait for work of the device, which
// no other thread can end while this one is inside.
inline void gather_through_device(device_session& session, std::byte* memory,
                                  table<call_header>& all, time_point limit) {
    const int rank = session.rank();
    const current_device here(session.device(), rank);
    const std::size_t each = sizeof(call_header);
    const call_header& mine = all[std::size_t(rank)];
    std::byte* const own = memory + std::size_t(rank) * each;
    const cudaStream_t stream = session.own_stream();
    const finish_before_leaving finish{stream};
    session.guarded([&] { copy_async(own, &mine, each, cudaMemcpyHostToDevice, stream, rank); });
    collective_call gather;
    gather.entry.kind = collective::allgather;
    gather.entry.count = each;
    gather.in = own;
    gather.out = memory;
    session.enqueue({&gather, 1}, "agreement", stream, limit);
    session.wait(session.mark(stream), "agreement", limit);
    session.guarded([&] {
        copy_async(all.data(), memory, each * all.size(), cudaMemcpyDeviceToHost, stream, rank);
    });
    session.wait(session.mark(stream), "agreement", limit);
}

}  // namespace hvd::inline v0::detail
