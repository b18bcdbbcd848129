// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../optimizer/state.hpp"
#include "optimizer.hpp"

namespace hvd::inline v0 {

namespace detail {

// Makes a plan and runs it behind the work of the stream. The host waits.
template <class Comm, class Make>
void run_once(Comm& comm, const char* name, cudaStream_t stream, Make make) {
    device_session& session = *device_access::session_of(comm);
    refuse_capture(session, stream, name);
    device_plan plan = make();
    const current_device here(session.device(), session.rank());
    const cudaStream_t own = session.own_stream();
    cuda_event ready;
    session.guarded([&] { order_streams(stream, own, ready, session.rank()); });
    plan.run_async(own).wait();
}

}  // namespace detail

/// Copies the root's parameters on the device to all ranks, packed.
///
/// **Collective**. **Buffers**: ready on `stream`, which is the default stream if none is given.
/// **Completion**: done on return. @throws as `plan_broadcast`.
/// @snippet tests/train/device_snippets.cpp broadcast_parameters
template <detail::device_communicator Comm, class Parameters>
void broadcast_parameters(Comm& comm, Parameters&& parameters, root from = root{0},
                          cudaStream_t stream = nullptr) {
    detail::run_once(comm, "broadcast_parameters", stream, [&] {
        return comm.plan_broadcast(detail::as_list(parameters), from, {.name = "parameters"});
    });
}

/// Copies the root's registered parameters and buffers on the device to all ranks, behind the work
/// of `stream`.
template <detail::device_communicator Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from,
                          cudaStream_t stream) {
    broadcast_parameters(optimizer.comm(), optimizer.shared_parameters(), from, stream);
    optimizer.with_buffers(
        optimizer.host_calls(), [](buffer_policy) { return true; },
        [&](const auto& all) { broadcast_parameters(optimizer.comm(), all, from, stream); });
}
/// The same, behind the work of the stream that the optimizer was given last.
template <detail::device_communicator Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    broadcast_parameters(optimizer, from, optimizer.last_stream());
}

/// Makes the registered buffers on the device equal on all ranks, each as its policy says, behind
/// the work of `stream`. The host waits. **Collective**.
template <detail::device_communicator Comm, class O, class T>
void synchronize_buffers(distributed_optimizer<Comm, O, T>& optimizer, root from,
                         cudaStream_t stream) {
    auto& comm = optimizer.comm();
    const auto has = [](buffer_policy p) { return [p](buffer_policy q) { return p == q; }; };
    optimizer.with_buffers(
        optimizer.host_calls(), has(buffer_policy::averaged), [&](const auto& averaged) {
            detail::run_once(comm, "synchronize_buffers", stream, [&] {
                return comm.plan_allreduce(averaged, average, {.name = "buffers"});
            });
        });
    optimizer.with_buffers(
        optimizer.host_calls(), has(buffer_policy::from_root),
        [&](const auto& sent) { broadcast_parameters(comm, sent, from, stream); });
}
/// The same, behind the work of the stream that the optimizer was given last.
template <detail::device_communicator Comm, class O, class T>
void synchronize_buffers(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    synchronize_buffers(optimizer, from, optimizer.last_stream());
}

/// Copies the root's slots and numbers of an optimizer, which are on the host, to all ranks of a
/// communicator of devices.
template <detail::device_communicator Comm, optimizer_with_state O>
void broadcast_optimizer_state(Comm& comm, O& optimizer, root from = root{0}) {
    detail::host_calls calls(comm);
    broadcast_optimizer_state(calls, optimizer, from);
}

/// Copies the state of hvd's optimizers from the device to one of the host, which an
/// `elastic::state` holds. Call it before `commit()`. The host waits.
///
/// **Collective** with `shard_state`: each rank gets the state of all slices.
/// @snippet tests/device/elastic.cpp run_elastic_nccl
template <detail::device_communicator Comm, class O, class T>
void fetch_optimizer_state(distributed_optimizer<Comm, O, T>& optimizer, O& to) {
    optimizer.with_state_on_host(detail::state_use::read,
                                 [&](auto& on_host) { to = on_host.optimizer(); });
}

/// Gives an optimizer on the device the state of one on the host, when all parameters are
/// registered and before the first step. The host waits.
/// @snippet tests/device/elastic.cpp run_elastic_nccl
template <detail::device_communicator Comm, class O, class T>
void put_optimizer_state(distributed_optimizer<Comm, O, T>& optimizer, const O& from) {
    optimizer.with_state_on_host(detail::state_use::write,
                                 [&](auto& on_host) { on_host.optimizer() = from; });
}

}  // namespace hvd::inline v0
