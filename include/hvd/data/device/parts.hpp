// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <tuple>
#include <utility>
#include <vector>

#include "../../core/viewable.hpp"
#include "../collate.hpp"

namespace hvd::inline v0::detail {

// The views of what a function returns for the parts of a batch: one part, or a tuple of them.
template <class Part>
auto views_of_parts(const Part& part) {
    return std::tuple(to_view(part));
}
template <class... Parts>
auto views_of_parts(const std::tuple<Parts...>& parts) {
    return std::apply([](const auto&... part) { return std::tuple(to_view(part)...); }, parts);
}

// True for such a result if each part is in one piece of the host's memory.
template <class Part>
constexpr bool is_batch_part = false;
template <viewable Part>
constexpr bool is_batch_part<Part> =
    on_host<Part> && std::same_as<typename view_of<Part>::layout, contiguous>;
template <class... Parts>
constexpr bool is_batch_part<const std::tuple<Parts...>> = (is_batch_part<const Parts> && ...);

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// The parts of the batches that `data::batch` makes without a function of the user, for
/// `data::to_device`: a vector of numbers, `data::rows` as a tensor of two dimensions, the values
/// and the offsets of `data::ragged_rows`, and all of these in a pair or a tuple.
struct default_parts {
    template <class T, class Allocator>
        requires viewable<const std::vector<T, Allocator>>
    auto operator()(const std::vector<T, Allocator>& batch) const {
        return std::tuple(hvd::view(batch.data(), batch.size()));
    }
    template <class T, class Allocator>
    auto operator()(const rows<T, Allocator>& batch) const {
        return std::tuple(hvd::view(batch.values.data(), hvd::shape(batch.size(), batch.width)));
    }
    template <class T, class Allocator>
    auto operator()(const ragged_rows<T, Allocator>& batch) const {
        return std::tuple(hvd::view(batch.values.data(), batch.values.size()),
                          hvd::view(batch.offsets.data(), batch.offsets.size()));
    }
    template <class A, class B>
        requires(std::invocable<const default_parts&, const A&> &&
                 std::invocable<const default_parts&, const B&>)
    auto operator()(const std::pair<A, B>& batch) const {
        return std::tuple_cat((*this)(batch.first), (*this)(batch.second));
    }
    template <class... Ts>
        requires(std::invocable<const default_parts&, const Ts&> && ...)
    auto operator()(const std::tuple<Ts...>& batch) const {
        return std::apply([this](const auto&... t) { return std::tuple_cat((*this)(t)...); },
                          batch);
    }
};

}  // namespace hvd::inline v0::data
