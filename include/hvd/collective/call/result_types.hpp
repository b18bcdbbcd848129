// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "call.hpp"

namespace hvd::inline v0 {
namespace detail {

// std::vector<bool> is no memory of bools, so results of bool are bytes, 0 or 1.
template <class T>
using stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

}  // namespace detail

/// The result of allgather, gather and alltoall: every rank's elements, in rank order.
///
/// Rank r's elements are `all[r]`: `counts[r]` of them, from `values[displacements[r]]` on. All
/// three count elements (not rows). The `values` of bool tensors are `std::uint8_t`.
/// @snippet tests/docs/snippets.cpp allgather
template <class T>
struct gathered {
    std::vector<detail::stored<T>> values;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> displacements;

    /// Returns the elements that rank r has sent. They live in `values`. The rank exists, and has
    /// counts here: the result of a gather is empty on all ranks but the root.
    std::span<detail::stored<T>> operator[](std::size_t r) {
        return {values.data() + displacements[r], counts[r]};
    }
    std::span<const detail::stored<T>> operator[](std::size_t r) const {
        return {values.data() + displacements[r], counts[r]};
    }
};

namespace detail {

// Returns the elements of all ranks together, or SIZE_MAX if the sum is larger.
inline std::size_t total_of(slice<const std::size_t> counts) {
    std::size_t total = 0;
    for (const std::size_t count : counts)
        total = count > ~std::size_t(0) - total ? ~std::size_t(0) : total + count;
    return total;
}

// Makes memory for a result that the call allocates.
template <class T>
std::byte* provide(gathered<T>& result, slice<const std::size_t> counts, const call_header&) {
    result.counts.assign(counts.begin(), counts.end());
    result.displacements.resize(counts.size());
    std::size_t total = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
        result.displacements[r] = total;
        total += counts[r];
    }
    result.values.resize(total_of(counts));
    return reinterpret_cast<std::byte*>(result.values.data());
}

// Makes memory for a plain vector.
template <class T>
std::byte* provide(std::vector<T>& values, slice<const std::size_t> counts, const call_header&) {
    values.resize(total_of(counts));
    return reinterpret_cast<std::byte*>(values.data());
}

// The caller's memory for a result, whose size has to match exactly.
struct given_memory {
    std::byte* data = nullptr;
    std::size_t count = 0;
    int rank = 0;

    // it is dereferenced like a handle to a result
    const given_memory& operator*() const { return *this; }
};

inline std::byte* provide(const given_memory& memory, slice<const std::size_t> counts,
                          const call_header& call) {
    const std::size_t total = total_of(counts);
    if (total != memory.count)
        throw usage_error(memory.rank, text("hvd: ", call.label(), " on rank ", memory.rank,
                                            ": into() has room for ", memory.count,
                                            " elements, the result has ", total));
    return memory.data;
}

}  // namespace detail

/// The caller's memory for a result: `hvd::into(out)`. Made by `into`.
template <class View>
struct into_view {
    View view;
};

namespace detail {

// The view in the place of a refused X, so that the call that it is an argument of adds no error of
// its own.
template <class X>
struct instead_of {
    using type =
        std::conditional_t<is_fused<std::remove_cvref_t<X>>, fused<>, tensor_view<std::uint8_t>>;
};
template <viewable X>
struct instead_of<X> {
    using type = tensor_view<element_of<X>>;
};

}  // namespace detail

/// Makes a result go to the caller's memory: `world.allgather(mine, hvd::into(all))`.
///
/// The memory has exactly the size of the result and outlives the call.
template <class X>
constexpr auto into(X&& x) {
    if constexpr (detail::check_tensor<any_backend, X, detail::tensor_use::written>()) {
        if constexpr (detail::is_fused<std::remove_cvref_t<X>>) {
            return into_view<std::remove_cvref_t<X>>{x};
        } else {
            static_assert(!detail::is_strided<detail::view_of<X>>,
                          "hvd: into() takes memory without gaps");
            return into_view<detail::view_of<X>>{detail::to_view(x)};
        }
    } else {
        using View = typename detail::instead_of<X>::type;
        return into_view<View>{View()};
    }
}

namespace detail {

template <class In, class View>
constexpr bool check_same_elements() {
    constexpr bool same = std::is_same_v<element_of<In>, typename View::value_type>;
    static_assert(same, "hvd: input and output have different element types");
    return same;
}

template <class View>
given_memory memory_of(const into_view<View>& out, int rank) {
    return {bytes_of(out.view), out.view.size(), rank};
}

}  // namespace detail
}  // namespace hvd::inline v0
