// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../optimizer/state.hpp"
#include "optimizer.hpp"

namespace hvd {
inline namespace v0 {

/// Copies the root's parameters on the device to all ranks, packed.
///
/// **Collective**. **Buffers**: ready on `stream`, which is the default stream if none is given.
/// **Completion**: done on return. @throws as `plan_broadcast`.
/// @snippet tests/train/device_snippets.cpp broadcast_parameters
template <detail::device_communicator Comm, class Parameters>
void broadcast_parameters(Comm& comm, Parameters&& parameters, root from = root{0},
                          cudaStream_t stream = nullptr) {
    detail::device_session& session = *detail::device_access::session_of(comm);
    detail::refuse_capture(session, stream, "broadcast_parameters");
    auto plan = comm.plan_broadcast(detail::as_list(parameters), from, {.name = "parameters"});
    const detail::current_device here(session.device(), session.rank());
    const cudaStream_t own = session.own_stream();
    detail::cuda_event ready;
    session.guarded([&] { detail::order_streams(stream, own, ready, session.rank()); });
    plan.run_async(own).wait();
}

/// Copies the root's registered parameters on the device to all ranks, behind the work of `stream`.
template <detail::device_communicator Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from,
                          cudaStream_t stream) {
    broadcast_parameters(optimizer.comm(), optimizer.shared_parameters(), from, stream);
}
/// The same, behind the work of the stream that the optimizer was given last.
template <detail::device_communicator Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    broadcast_parameters(optimizer, from, optimizer.last_stream());
}

/// Copies the root's slots and numbers of an optimizer, which are on the host, to all ranks of a
/// communicator of devices.
template <detail::device_communicator Comm, optimizer_with_state O>
void broadcast_optimizer_state(Comm& comm, O& optimizer, root from = root{0}) {
    detail::host_calls calls(comm);
    broadcast_optimizer_state(calls, optimizer, from);
}

}  // namespace v0
}  // namespace hvd
