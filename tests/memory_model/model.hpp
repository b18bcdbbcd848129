// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <relacy/relacy.hpp>
#undef new
#undef delete
#undef assert
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef errno
#define errno (*__errno_location())
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>

// Relacy replaces new and delete, but for those that are given a size.
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
void operator delete[](void* p, std::size_t) noexcept { operator delete[](p); }

// Lets Relacy see what hvd's ranks do: each atomic of hvd has one of Relacy's beside it, and each
// line of memory that ranks pass to each other has a variable whose races Relacy reports. Both are
// found by their address, so that hvd's objects keep their sizes and places.
namespace memory_model {

constexpr std::size_t line = 64;
// More atomics, or lines, than a simulation has.
constexpr std::size_t most_atomics = 1 << 12, most_lines = 1 << 15;

struct shadow {
    const void* address = nullptr;
    alignas(rl::atomic<std::uint64_t>) std::byte atomic[sizeof(rl::atomic<std::uint64_t>)];
    void (*destroy)(shadow&) = nullptr;
};

// An order that the simulation takes away.
enum class order : std::uint8_t { load, store, exchange, load_in_order, fence };
struct weakening {
    const char* name = nullptr;
    order what = order::load;
    // The atomics that lose it. A fence has none.
    bool (*concerns)(const void* address) = nullptr;
};

struct simulation {
    bool runs = false;
    weakening weak{};
    shadow atomics[most_atomics];
    std::byte* shared = nullptr;  // the memory that is passed, in lines
    std::size_t lines = 0;
    alignas(rl::var<int>) std::byte line_memory[most_lines][sizeof(rl::var<int>)];
    std::byte* tensors = nullptr;  // of the ranks, one after another: more such lines
    std::size_t tensor_lines = 0;

    bool weakens(order what, const void* address) const {
        return weak.name != nullptr && weak.what == what &&
               (weak.concerns == nullptr || weak.concerns(address));
    }

    shadow& find(const void* address) {
        std::size_t at =
            (reinterpret_cast<std::uintptr_t>(address) >> 2) * 0x9e3779b97f4a7c15u >> 52;
        while (atomics[at % most_atomics].address != nullptr &&
               atomics[at % most_atomics].address != address)
            ++at;
        return atomics[at % most_atomics];
    }

    rl::var<int>& line_at(std::size_t i) {
        return *std::launder(reinterpret_cast<rl::var<int>*>(line_memory[i]));
    }
    // Calls f(variable) for each line that the bytes touch.
    template <class F>
    void each_line(const std::byte* data, std::size_t bytes, F f) {
        if (!runs || bytes == 0) return;
        const auto touch = [&](const std::byte* area, std::size_t count, std::size_t before) {
            if (area == nullptr || data + bytes <= area || data >= area + count * line) return;
            const std::size_t first = data < area ? 0 : std::size_t(data - area) / line;
            for (std::size_t i = first; i < count && area + i * line < data + bytes; ++i)
                f(line_at(before + i));
        };
        touch(shared, lines, 0);
        touch(tensors, tensor_lines, lines);
    }

    // Between these two, hvd's atomics are Relacy's. Both run where Relacy has one thread.
    void begin(std::byte* memory, std::size_t bytes, std::byte* tensor_memory,
               std::size_t tensor_bytes) {
        for (shadow& s : atomics) s.address = nullptr;  // of a simulation that has failed
        shared = memory;
        lines = bytes / line;
        tensors = tensor_memory;
        tensor_lines = tensor_bytes / line;
        RL_ASSERT(lines + tensor_lines <= most_lines);
        for (std::size_t i = 0; i < lines + tensor_lines; ++i) {
            ::new (line_memory[i]) rl::var<int>;
            line_at(i)(RL_INFO) = 0;
        }
        runs = true;
    }
    void end() {
        runs = false;
        for (shadow& s : atomics)
            if (s.address != nullptr) {
                s.destroy(s);
                s.address = nullptr;
            }
        for (std::size_t i = 0; i < lines + tensor_lines; ++i) line_at(i).~var();
    }
};

inline simulation now_simulated;

template <class T>
rl::atomic<T>* make_shadow(const void* address, T value) {
    shadow& s = now_simulated.find(address);
    if (s.address != nullptr) s.destroy(s);
    s.address = address;
    static_assert(sizeof(rl::atomic<T>) <= sizeof s.atomic);
    auto* const made = ::new (s.atomic) rl::atomic<T>;
    s.destroy = [](shadow& one) {
        std::launder(reinterpret_cast<rl::atomic<T>*>(one.atomic))->~atomic();
    };
    made->store(value, rl::mo_relaxed, RL_INFO);
    return made;
}

// Null for an atomic that was made outside of a simulation.
template <class T>
rl::atomic<T>* shadow_of(const void* address) {
    if (!now_simulated.runs) return nullptr;
    shadow& s = now_simulated.find(address);
    if (s.address == nullptr) return nullptr;
    return std::launder(reinterpret_cast<rl::atomic<T>*>(s.atomic));
}

inline void is_read(const std::byte* data, std::size_t bytes) {
    now_simulated.each_line(data, bytes, [](auto& v) { static_cast<void>(int(v(RL_INFO))); });
}
inline void is_written(const std::byte* data, std::size_t bytes) {
    now_simulated.each_line(data, bytes, [](auto& v) { v(RL_INFO) = 1; });
}

}  // namespace memory_model
