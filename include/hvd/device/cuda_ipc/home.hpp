// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "../../platform/gpu_id.hpp"
#include "../../platform/process.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The process and the GPU of a rank. A process has its number in the namespace of its container.
struct ipc_home {
    std::uint64_t process = 0, numbering = 0, started = 0;
    gpu_id gpu;
    int has_events = 0;  // the GPU has events that other processes can wait for

    static ipc_home of_this_rank(int device, int rank) {
        ipc_home home;
        struct stat numbering{};
        home.process = std::uint64_t(getpid());
        home.started = process_status::of(getpid()).started;
        if (stat("/proc/self/ns/pid", &numbering) == 0) home.numbering = numbering.st_ino;
        home.gpu = gpu_id::of(device, rank);
        check_cuda(cudaDeviceGetAttribute(&home.has_events, cudaDevAttrIpcEventSupport, device),
                   "cudaDeviceGetAttribute", rank);
        return home;
    }

    bool shares_process_with(const ipc_home& other) const {
        return process == other.process && numbering == other.numbering;
    }
};

[[gnu::cold, noreturn]] inline void throw_no_access(int rank, int other, const ipc_home& peer) {
    throw usage_error(rank, text("hvd: communicator<cuda_ipc>: the GPU of rank ", rank,
                                 " can't access that of rank ", other, ", ", peer.gpu.name(),
                                 "; use hvd::staged or hvd::nccl"));
}

// Enables peer access to a GPU of the same process. Other processes get it with the mapping, which
// is also where CUDA tells if they may have it for a GPU that this process can't see.
inline void reach_device(const ipc_home& peer, int other, int device, int rank, bool same_process) {
    const int number = peer.gpu.number(rank);
    if (number < 0) return;
    int can = 0;
    check_cuda(cudaDeviceCanAccessPeer(&can, device, number), "cudaDeviceCanAccessPeer", rank);
    if (can == 0) throw_no_access(rank, other, peer);
    if (!same_process) return;
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(number, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
    else check_cuda(enabled, "cudaDeviceEnablePeerAccess", rank);
}

// Throws hvd::usage_error if this rank can't work with one of the others.
inline void reach_all(const std::vector<ipc_home>& homes, int device, int rank) {
    const ipc_home& own = homes[std::size_t(rank)];
    for (std::size_t other = 0; other < homes.size(); ++other) {
        const ipc_home& peer = homes[other];
        const bool same_process = own.shares_process_with(peer);
        if (!same_process && (own.has_events == 0 || peer.has_events == 0))
            throw usage_error(
                rank, text("hvd: communicator<cuda_ipc>: the GPU of rank ",
                           own.has_events == 0 ? rank : int(other),
                           " has no CUDA IPC (cudaDevAttrIpcEventSupport), which ranks ", rank,
                           " and ", other, " need as processes; use hvd::staged or hvd::nccl"));
        if (own.gpu != peer.gpu) reach_device(peer, int(other), device, rank, same_process);
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
