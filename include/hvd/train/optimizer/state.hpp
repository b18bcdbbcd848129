// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "optimizer.hpp"

namespace hvd {
inline namespace v0 {

/// O shows what it remembers: `for_each_slot(f)` calls `f(name, optimizers::slots<T>&)` and
/// `for_each_number(f)` calls `f(name, number&)`, each in a fixed order. What
/// `broadcast_optimizer_state` and checkpoints ask of an optimizer.
template <class O>
concept optimizer_with_state = requires(O& o) {
    o.for_each_slot([](const char*, auto&) {});
    o.for_each_number([](const char*, auto&) {});
};

/// Makes the parameters of all ranks those of the root, by one fused message. Feature H1.
///
/// @tparam Views a contiguous range of `tensor_view`s. **Collective**. @throws as `broadcast`.
template <class Comm, class Views>
    requires requires(Comm& comm) { comm.size(); }
void broadcast_parameters(Comm& comm, const Views& parameters, root from = root{0}) {
    comm.broadcast(fuse(parameters), from, {.name = "parameters"});
}

/// The same for all registered parameters that are not local, frozen ones included.
/// @snippet tests/train/snippets.cpp broadcast_state
template <class Comm, class O, class T>
void broadcast_parameters(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    broadcast_parameters(optimizer.comm(), optimizer.shared_parameters(), from);
}

namespace detail {

// As bytes, since the numbers are of several types and none holds all values of the others.
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

/// Makes the slots and numbers of an optimizer those of the root. Feature H2.
///
/// Slots that a rank does not have yet come into being, and those that the root does not have go:
/// no step with made-up gradients is needed. Numbers keep their types and their last bits.
/// `keeps(i)` says whether the slots of parameter i are left as they are; all ranks say the same.
/// **Collective**. @throws as `broadcast`.
template <class Comm, optimizer_with_state O, class Keeps>
void broadcast_optimizer_state(Comm& comm, O& optimizer, Keeps keeps, root from = root{0}) {
    detail::broadcast_numbers(comm, optimizer, from);
    std::vector<std::uint64_t> sizes;
    optimizer.for_each_slot([&](const char*, auto& slots) {
        sizes.push_back(slots.size());
        for (std::size_t i = 0; i < slots.size(); ++i)
            sizes.push_back(keeps(i) ? 0 : slots[i].size());
    });
    comm.broadcast_object(sizes, from);

    std::size_t next = 0;
    optimizer.for_each_slot([&](const char*, auto& slots) {
        using T = typename std::remove_cvref_t<decltype(slots)>::value_type::value_type;
        const std::size_t count = std::size_t(sizes[next++]);
        while (slots.size() > count && !keeps(slots.size() - 1)) slots.pop_back();
        if (slots.size() < count) slots.resize(count);
        std::vector<tensor_view<T>> views;
        for (std::size_t i = 0; i < count; ++i, ++next) {
            if (keeps(i)) continue;
            slots[i].resize(std::size_t(sizes[next]));
            views.push_back(view(slots[i].data(), slots[i].size()));
        }
        if (!views.empty()) comm.broadcast(fuse(views), from, {.name = "optimizer slots"});
    });
}

/// The same for all parameters.
template <class Comm, optimizer_with_state O>
void broadcast_optimizer_state(Comm& comm, O& optimizer, root from = root{0}) {
    broadcast_optimizer_state(comm, optimizer, [](std::size_t) { return false; }, from);
}

/// The same for the optimizer inside; slots of local parameters are left as they are.
template <class Comm, optimizer_with_state O, class T>
void broadcast_optimizer_state(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    broadcast_optimizer_state(
        optimizer.comm(), optimizer.optimizer(),
        [&](std::size_t i) { return optimizer.is_local(i); }, from);
}

}  // namespace v0
}  // namespace hvd
