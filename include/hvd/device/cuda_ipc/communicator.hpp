// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/host_ranks_of.hpp"
#include "../ranks.hpp"
#include "policy.hpp"
#include "session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Throws on all ranks, and lists the ranks that each has on its node.
template <class Bootstrap>
void refuse_several_nodes(communicator<Bootstrap>& bootstrap) {
    if (bootstrap.local_size() == bootstrap.size()) return;
    auto node = bootstrap.local();
    message ranks;
    for (const int r : node.allgather(bootstrap.rank()).values)
        ranks += text(ranks.empty() ? "" : ", ", r);
    throw usage_error(bootstrap.rank(),
                      text("hvd: communicator<cuda_ipc> on rank ", bootstrap.rank(), ": the ",
                           bootstrap.size(), " ranks are on several nodes, those of this one are ",
                           ranks, "; make it of world.local(), or use hvd::nccl or hvd::staged"));
}

// Makes a session with the other ranks that the endpoints reach, or for a single rank without
// endpoints. The device is the current one.
inline std::shared_ptr<cuda_ipc_session> make_cuda_ipc_session(
    std::unique_ptr<host_ranks> calls, std::unique_ptr<host_ranks> farewell,
    const communicator_options& options) {
    const int rank = calls == nullptr ? 0 : calls->rank(),
              size = calls == nullptr ? 1 : calls->size();
    std::shared_ptr<cuda_ipc_session> session;
    const auto make = [&] {
        session =
            std::make_shared<cuda_ipc_session>(rank, size, device_of_this_thread(rank), options);
    };
    if (size == 1) {
        make();
        return session;
    }
    run_on_all(*calls, ipc_reach::name, limit_of(options.deadline), make);
    session->connect(std::move(calls), std::move(farewell));
    return session;
}

// Makes a communicator of a session whose ranks are on one node.
template <class Comm>
Comm on_one_node(std::shared_ptr<cuda_ipc_session> session) {
    const std::vector<std::int64_t> nodes(std::size_t(session->size()));
    const numbered_node place{session->rank(), nodes};
    return device_access::made_of<Comm>(std::move(session), topology_of(place));
}

}  // namespace detail

/// Ranks of one node whose device tensors are moved and reduced by CUDA IPC.
/// `communicator<cuda_ipc> gpus(world)` makes it of threads or processes, on the current device.
/// Ranks may share a GPU.
///
/// It has all collectives of `communicator<nccl>`. Tensors of a `device_arena` are read and written
/// where they lie. Others go in chunks through a window of `.device_window_bytes`, two on each
/// rank. Ranks compare every call, as on the host, and meet in it: it returns when it is enqueued
/// on all ranks, so no plan can be captured into a CUDA graph. Small calls, which are no plans,
/// only enqueue signals, unless two ranks of a process share a GPU: `wait()` compares them, and
/// then throws what the call would have thrown. After a failure or a deadline the communicator is
/// given up and refuses further calls. Its last owner waits for the others', at most for
/// `.destructor_deadline`. Memory that peers may still use is not freed. Reductions need the
/// kernels: compile a .cu file with `hvd/kernel/cuda/kernels.cuh`. **Threads**: one calling thread
/// at a time. A rank that is alone has no window and does not communicate.
/// @snippet tests/device/snippets.cpp cuda_ipc
template <>
class communicator<cuda_ipc> : public detail::device_ranks<communicator<cuda_ipc>, cuda_ipc> {
    using session_type = detail::cuda_ipc_session;
    using endpoint = std::unique_ptr<detail::host_ranks>;

public:
    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes the ranks of `bootstrap`, with the current device of each. **Collective**.
    /// @throws hvd::usage_error for ranks on several nodes and GPUs that can't access each other,
    /// hvd::cuda_error; hvd::peer_error on the other ranks.
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>& bootstrap,
                          const communicator_options& options = {}) {
        detail::meet(bootstrap, detail::ipc_reach::name, options);
        detail::refuse_several_nodes(bootstrap);
        auto calls = endpoint_to(bootstrap), farewell = endpoint_to(bootstrap);
        session_ = detail::make_cuda_ipc_session(std::move(calls), std::move(farewell), options);
        topology_ = place_of(bootstrap);
    }

    /// Makes one communicator for each colour, its ranks ordered by key, then by rank. It is empty
    /// for a negative colour. **Collective**.
    communicator split(int color, int key = 0) {
        session_type& s = session();
        s.refuse_if_broken("split");
        if (color < 0 && size() == 1) return {};
        const detail::current_device here(device(), rank());
        endpoint calls, farewell;
        if (size() > 1) {
            calls = s.split_endpoint(false, color, key);
            farewell = s.split_endpoint(true, color, key);
            if (calls == nullptr) return {};
        }
        return detail::on_one_node<communicator>(
            detail::make_cuda_ipc_session(std::move(calls), std::move(farewell), s.options()));
    }

private:
    template <class Bootstrap>
    static endpoint endpoint_to(communicator<Bootstrap>& bootstrap) {
        if (bootstrap.size() == 1) return {};
        return std::make_unique<detail::host_ranks_of<Bootstrap>>(
            bootstrap.split(0, bootstrap.rank()));
    }
};

}  // namespace v0
}  // namespace hvd
