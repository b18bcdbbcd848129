// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "../../fusion/fuse.hpp"
#include "../../kernel/pack.hpp"
#include "state.hpp"

namespace hvd::inline v0 {
namespace detail {

// A checksum of bytes. Two inputs of which only one word differs have different checksums, since
// every step maps different states to different ones.
[[gnu::cold]] inline std::uint64_t checksum(const std::byte* data, std::size_t bytes) {
    constexpr std::size_t lanes = 4, step = lanes * sizeof(std::uint64_t);
    std::uint64_t state[lanes] = {1, 2, 3, 4};
    std::size_t at = 0;
    for (; at + step <= bytes; at += step) {
        std::uint64_t words[lanes];
        std::memcpy(words, data + at, step);
        for (std::size_t i = 0; i < lanes; ++i) {
            state[i] = (state[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
            state[i] ^= state[i] >> 29;
        }
    }
    hash all;
    for (const std::uint64_t s : state) all.add(s);
    all.add(std::string_view(reinterpret_cast<const char*>(data + at), bytes - at));
    return all.add(bytes).value();
}

// The checksums of the tensors that a rank compares, and a name for each.
class tensors_to_compare {
public:
    template <class V>
    void add(message label, const V& view) {
        const tensor_ref t = erase(view);
        if (!t.dense) {
            packed_.resize(t.bytes());
            pack(t, packed_.data());
        }
        sums_.push_back(hash()
                            .add(std::uint64_t(t.id))
                            .add(checksum(t.dense ? t.data : packed_.data(), t.bytes()))
                            .value());
        names_.push_back(std::move(label));
    }

    std::size_t count() const { return sums_.size(); }

    // **Collective**. One exchange of headers, unless something differs. `fill` adds the tensors.
    template <header_channel C, class Fill>
    [[gnu::cold]] static void compare(C& channel, Fill fill) {
        tensors_to_compare tensors;
        call_header mine = agreement_header(name);
        const std::exception_ptr failure = attempt(mine, [&] { fill(tensors); });
        hash content;
        for (const std::uint64_t sum : tensors.sums_) content.add(sum);
        mine.content = content.value();
        mine.count = tensors.count();
        exchange_after(failure, [&] { tensors.compare_with_all(channel, mine); });
    }

private:
    static constexpr std::string_view name = "compare_parameters";

    template <header_channel C>
    void compare_with_all(C& channel, const call_header& mine) const {
        bool equal = true;
        const table<call_header> all = agree(channel, mine, never);
        table<message> counts(all.size());
        for (std::size_t r = 0; r < all.size(); ++r) {
            equal = equal && all[r].content == all[0].content;
            counts[r] = text(all[r].count);
        }
        require_equal(channel.rank(), name, "number of tensors", counts);
        for (std::size_t i = 0; !equal && i < count(); ++i) {
            table<message> values = texts_of_all(channel, name, text(sums_[i]), never);
            mark_minority(values);
            require_equal(channel.rank(), name, names_[i], values);
        }
    }

    // Says which ranks differ from most of the others, if most of them agree.
    static void mark_minority(table<message>& values) {
        table<std::size_t> equals(values.size());
        std::size_t most = 0;
        for (std::size_t r = 0; r < values.size(); ++r) {
            equals[r] = 0;
            for (const message& other : values)
                equals[r] += std::string_view(other) == std::string_view(values[r]);
            if (equals[r] > equals[most]) most = r;
        }
        if (values.size() == 0 || 2 * equals[most] <= values.size()) return;
        for (std::size_t r = 0; r < values.size(); ++r)
            if (equals[r] != equals[most]) values[r] += " (differs from most ranks)";
    }

    std::vector<std::uint64_t> sums_;
    std::vector<message> names_;
    std::vector<std::byte> packed_;
};

}  // namespace detail

/// Compares tensors that all ranks must have alike, bit by bit, by a checksum of each.
///
/// Ranks that began with different parameters, or that left the common path by other numbers of an
/// optimizer or by other data, diverge without an error. Call it after the first broadcast and now
/// and then, for example before each checkpoint. A zero differs from a negative zero, and a NaN
/// equals itself. `parameters` is what `broadcast_parameters` takes: a `fuse(…)`, a tensor, or a
/// range of tensors with a size. Tensors are numbered from 0.
/// **Collective**: one exchange of headers if all are equal. **Buffers**: only read.
/// @throws hvd::mismatch_error on all ranks with the first tensor that differs as `field()`, and
/// each rank's checksum in `table()`; where most ranks agree, the others are marked.
/// @snippet tests/train/snippets.cpp compare_parameters
template <class Comm, class Parameters>
    requires requires(Comm& comm) { comm.size(); }
void compare_parameters(Comm& comm, Parameters&& parameters) {
    detail::tensors_to_compare::compare(detail::channel_of(comm), [&](auto& tensors) {
        detail::as_list(parameters).for_each([&](const auto& view) {
            tensors.add(detail::text("tensor ", tensors.count()), view);
        });
    });
}

/// Compares the registered parameters of all ranks, by their names. Local parameters are left out,
/// frozen ones are not.
template <class Comm, class O, class T>
void compare_parameters(distributed_optimizer<Comm, O, T>& optimizer) {
    auto& channel = detail::channel_of(detail::host_calls_of(optimizer));
    detail::with_state_on_host(optimizer, detail::state_use::read, [&](auto& state) {
        detail::tensors_to_compare::compare(channel, [&](auto& tensors) {
            state.for_each_shared([&](const auto& name, const auto& value, const auto&) {
                tensors.add(detail::text("parameter \"", std::string_view(name), "\""), value);
            });
        });
    });
}

}  // namespace hvd::inline v0
