// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"
#include "../platform/gpu_id.hpp"

namespace hvd::inline v0 {

/// Options of `pin_device`.
struct pin_options {
    /// Ranks may share a GPU, as with `staged`. NCCL accepts such ranks only in tests where each
    /// process has its own NCCL_HOSTID.
    bool share = false;
};

/// Makes a different GPU current on each rank, and returns its number: the local rank's among those
/// that the process can see. GPUs are told apart by their UUIDs: slices of one (MIG) are several.
///
/// **Collective**. Processes that see one GPU each (CUDA_VISIBLE_DEVICES) get that one.
/// **Threads**: a device is current on the calling thread. Other threads of the rank call
/// cudaSetDevice with the number.
/// @throws hvd::usage_error if two ranks of a node have the same GPU, hvd::cuda_error if there is
/// none, hvd::peer_error on the other ranks.
/// @snippet tests/device/snippets.cpp nccl
template <class B>
int pin_device(communicator<B>& comm, const pin_options& o = {}) {
    using detail::text;
    detail::gpu_id mine;
    const int rank = comm.rank();
    detail::session& ranks = detail::access::session_of(comm);
    const int device = detail::run_on_all(ranks, "pin_device", detail::never, [&] {
        int count = 0;
        detail::check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount", rank);
        if (count < 1)
            throw usage_error(
                rank, text("hvd: pin_device on rank ", rank, ": this process can see no GPU"));
        const int own = comm.local_rank() % count;
        detail::check_cuda(cudaSetDevice(own), "cudaSetDevice", rank);
        mine = detail::gpu_id::of(own, rank);
        return own;
    });
    auto node = comm.local();
    const auto all = node.allgather(mine.bytes).values;
    detail::run_on_all(ranks, "pin_device", detail::never, [&] {
        for (int other = 0; !o.share && other < node.size(); ++other)
            if (other != node.rank() &&
                std::memcmp(all.data() + sizeof mine.bytes * std::size_t(other), mine.bytes,
                            sizeof mine.bytes) == 0)
                throw usage_error(
                    rank,
                    text("hvd: pin_device on rank ", rank, ": local ranks ", node.rank(), " and ",
                         other, " of ", node.size(), " would share the GPU ", mine.name(),
                         ": start as many ranks as there are GPUs, or make more of them "
                         "visible; ranks of hvd::staged may share one with {.share = true}, and "
                         "tests of NCCL too, with an NCCL_HOSTID for each process"));
    });
    return device;
}

}  // namespace hvd::inline v0
