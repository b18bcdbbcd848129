// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "optimizer.hpp"

namespace hvd::inline v0 {

/// Copies the root's parameters to all ranks, by one fused message.
///
/// `parameters` is a `fuse(…)`, a tensor, or a range of tensors with a size, as
/// `std::vector<tensor_view<float>>` and `std::vector<std::vector<float>>` are.
/// **Collective**. @throws as `broadcast`.
template <class Comm, class Parameters>
    requires requires(Comm& comm) { comm.size(); } && (!detail::device_communicator<Comm>)
void broadcast_parameters(Comm& comm, Parameters&& parameters, root from = root{0}) {
    comm.broadcast(detail::as_list(parameters), from, {.name = "parameters"});
}

/// Copies the root's registered parameters and buffers to all ranks. Local parameters are left out,
/// frozen ones are not.
/// @snippet tests/train/snippets.cpp broadcast_state
template <class Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    broadcast_parameters(optimizer.comm(), optimizer.shared_parameters(), from);
    optimizer.with_buffers(
        optimizer.comm(), [](buffer_policy) { return true; },
        [&](const auto& all) { optimizer.comm().broadcast(all, from, {.name = "buffers"}); });
}

/// Makes the registered buffers equal on all ranks, each as its policy says: by one call for those
/// that are averaged, and one for those that the root sends. Call it before an evaluation or a
/// checkpoint. With `optimizer_options::synchronize_buffers` each step does it.
/// **Collective**. @throws hvd::mismatch_error if the ranks have other buffers.
/// @snippet tests/train/snippets.cpp buffers
template <class Comm, class O, class T>
void synchronize_buffers(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    optimizer.synchronize_buffers_over(optimizer.comm(), from);
}

namespace detail {

// The communicator of an optimizer, for calls with tensors of the host.
template <class Distributed>
auto& host_calls_of(Distributed& optimizer) {
    if constexpr (requires { optimizer.host_calls(); }) return optimizer.host_calls();
    else return optimizer.comm();
}

enum class state_use : std::uint8_t { read, read_by_root, write };

// Calls f with the optimizer, or with a copy on the host of one on the device. **Collective**.
template <class Distributed, class F>
void with_state_on_host(Distributed& optimizer, state_use use, F f) {
    if constexpr (requires { optimizer.with_state_on_host(use, f); })
        optimizer.with_state_on_host(use, f);
    else f(optimizer);
}

// The numbers travel as bytes, since they have several types and none holds all values of the
// others.
template <class Comm, class O>
void broadcast_numbers(Comm& comm, O& optimizer, root from) {
    std::vector<std::byte> bytes;
    optimizer.for_each_number([&](const char*, auto& number) {
        static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(number)>>,
                      "hvd: the numbers of an optimizer are trivially copyable");
        const auto of_one = std::as_bytes(std::span(&number, 1));
        bytes.insert(bytes.end(), of_one.begin(), of_one.end());
    });
    comm.broadcast(bytes, from, {.name = "optimizer numbers"});
    const std::byte* next = bytes.data();
    optimizer.for_each_number([&](const char*, auto& number) {
        std::memcpy(&number, next, sizeof number);
        next += sizeof number;
    });
}

}  // namespace detail

/// Copies the root's slots and numbers of an optimizer to all ranks.
///
/// Missing slots are made, and slots that the root does not have are removed, so no step with
/// made-up gradients is needed. Numbers keep their types and their last bits. If `keeps(i)` is
/// true, the slots of parameter i stay as they are; all ranks return the same.
/// **Collective**. @throws as `broadcast`.
template <class Comm, optimizer_with_state O, class Keeps>
    requires(!detail::device_communicator<Comm>)
void broadcast_optimizer_state(Comm& comm, O& optimizer, Keeps keeps, root from = root{0}) {
    detail::broadcast_numbers(comm, optimizer, from);
    std::vector<std::uint64_t> sizes;
    optimizer.for_each_slot([&](const char*, auto& slots) {
        sizes.push_back(slots.size());
        for (std::size_t i = 0; i < slots.size(); ++i)
            sizes.push_back(keeps(i) ? 0 : std::uint64_t(slots[i].size()));
    });
    comm.broadcast_object(sizes, from);

    std::size_t next = 0;
    optimizer.for_each_slot([&](const char*, auto& slots) {
        using T = typename std::remove_cvref_t<decltype(slots)>::value_type::value_type;
        const std::size_t count = std::size_t(sizes[next++]);
        while (slots.size() > count && !keeps(slots.size() - 1)) slots.pop_back();
        for (std::size_t i = count; i < slots.size(); ++i)
            if (!keeps(i)) slots[i].resize(0);
        if (slots.size() < count) slots.resize(count);
        std::vector<tensor_view<T>> views;
        for (std::size_t i = 0; i < count; ++i, ++next) {
            if (keeps(i)) continue;
            slots[i].resize(std::size_t(sizes[next]));
            views.push_back(view(slots[i].data(), std::size_t(slots[i].size())));
        }
        if (!views.empty()) comm.broadcast(fuse(views), from, {.name = "optimizer slots"});
    });
}

/// Copies the slots of all parameters.
template <class Comm, optimizer_with_state O>
    requires(!detail::device_communicator<Comm>)
void broadcast_optimizer_state(Comm& comm, O& optimizer, root from = root{0}) {
    broadcast_optimizer_state(comm, optimizer, [](std::size_t) { return false; }, from);
}

/// Copies the state of the optimizer inside. Slots of local parameters stay as they are.
template <class Comm, optimizer_with_state O, class T>
void broadcast_optimizer_state(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    detail::with_state_on_host(optimizer, detail::state_use::write, [&](auto& state) {
        broadcast_optimizer_state(
            detail::host_calls_of(optimizer), state.optimizer(),
            [&](std::size_t i) { return optimizer.is_local(i); }, from);
    });
}

}  // namespace hvd::inline v0
