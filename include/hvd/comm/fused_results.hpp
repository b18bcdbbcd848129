// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "result_types.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What a fused call that makes new tensors gives: one result for each tensor, a vector of them for
// each runtime list.
template <template <class> class Result, class Part>
struct part_result { using type = Result<typename Part::value_type>; };
template <template <class> class Result, class V>
struct part_result<Result, std::span<const V>> { using type = std::vector<Result<typename V::value_type>>; };

template <template <class> class Result, class... Parts>
auto empty_results(const fused<Parts...>& list) {
    std::tuple<typename part_result<Result, Parts>::type...> results;
    const auto fit = [](auto& result, const auto& part) {
        if constexpr (requires { part.size_bytes(); }) result.resize(part.size());
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (fit(std::get<I>(results), std::get<I>(list.parts())), ...);
    }(std::index_sequence_for<Parts...>());
    return results;
}

// Calls f(result) for each tensor's result, in the order of fused::for_each.
template <class... Results, class F>
void for_each_result(std::tuple<Results...>& results, F&& f) {
    const auto each = [&f](auto& result) {
        if constexpr (requires { result.front().values; } || requires { result.front().front(); })
            for (auto& one : result) f(one);
        else f(result);
    };
    std::apply([&](auto&... result) { (each(result), ...); }, results);
}

template <class T>
using stored_vector = std::vector<stored<T>>;

inline std::vector<tensor_ref> refs_of(const auto& list) {
    std::vector<tensor_ref> refs;
    list.for_each([&](const auto& view) { refs.push_back(erase(view)); });
    return refs;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
