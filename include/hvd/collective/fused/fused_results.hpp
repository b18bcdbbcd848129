// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../call/result_types.hpp"

namespace hvd::inline v0::detail {

// The type of the results of a fused call that makes new tensors: one result for each tensor, and a
// vector of results for each runtime list.
template <template <class> class Result, class Part>
struct part_result {
    using type = Result<typename Part::value_type>;
};
template <template <class> class Result, class Iterator>
struct part_result<Result, tensor_list<Iterator>> {
    using type = std::vector<Result<typename tensor_list<Iterator>::view_type::value_type>>;
};

template <template <class> class Result, class Fused>
struct results_of_list;
template <template <class> class Result, class... Parts>
struct results_of_list<Result, fused<Parts...>> {
    using type = std::tuple<typename part_result<Result, Parts>::type...>;
};
template <template <class> class Result, class Fused>
using results_of = typename results_of_list<Result, Fused>::type;

// Gives the runtime lists of the results their lengths.
template <class... Results, class... Parts>
void make_results(std::tuple<Results...>& results, const fused<Parts...>& list) {
    const auto fit = [](auto& result, const auto& part) {
        if constexpr (is_tensor_list<std::remove_cvref_t<decltype(part)>>)
            result.resize(part.size());
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (fit(std::get<I>(results), std::get<I>(list.parts())), ...);
    }(std::index_sequence_for<Parts...>());
}

// The results of a runtime list. An element of a user's may have the members of a result.
template <class R>
constexpr bool is_list_of_results = false;
template <class T>
constexpr bool is_list_of_results<std::vector<gathered<T>>> = true;
template <class T>
constexpr bool is_list_of_results<std::vector<std::vector<T>>> = true;

// Calls f(result) for the result of each tensor, in the order of fused::for_each.
template <class... Results, class F>
void for_each_result(std::tuple<Results...>& results, F&& f) {
    const auto each = [&f](auto& result) {
        if constexpr (is_list_of_results<std::remove_cvref_t<decltype(result)>>)
            for (auto& one : result) f(one);
        else f(result);
    };
    std::apply([&](auto&... result) { (each(result), ...); }, results);
}

template <class T>
using stored_vector = std::vector<stored<T>>;

void list_tensors(const auto& list, std::vector<tensor_ref>& tensors) {
    tensors.clear();
    list.for_each([&](const auto& view) {
        const auto number = std::uint32_t(tensors.size());
        tensors.push_back(erase(view));
        tensors.back().number = number;
    });
}

// Returns the memory of a fused call, with its tensors and their outputs.
template <class List>
fused_memory memory_for(const List& list) {
    fused_memory memory;
    list_tensors(list, memory.tensors);
    return memory;
}
template <class List, class Out>
fused_memory memory_for(const List& list, const Out& out) {
    fused_memory memory = memory_for(list);
    list_tensors(out, memory.outputs);
    return memory;
}

// Adds memory to a fused call that outlives the function that makes it.
struct own_memory {
    fused_memory kept;
};
template <class Call>
struct with_memory : own_memory, Call {
    template <class... A>
    explicit with_memory(fused_memory moved, A&&... arguments)
        : own_memory{std::move(moved)}, Call(this->kept, std::forward<A>(arguments)...) {}
};

}  // namespace hvd::inline v0::detail
