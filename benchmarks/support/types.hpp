// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/hvd.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "pattern.hpp"

namespace bench {

inline const std::vector<std::string> type_names{"float", "int32", "float16", "bfloat16"};
inline const std::vector<std::string> op_names{"sum", "average"};

/// Calls `f` with a value of the type of that name.
template <class F>
void with_type(const std::string& name, F&& f) {
    if (name == "float") f(float());
    else if (name == "int32") f(std::int32_t());
    else if (name == "float16") f(hvd::float16());
    else if (name == "bfloat16") f(hvd::bfloat16());
    else throw std::invalid_argument("bench: no such type: " + name);
}

/// Calls `f` with the operation of that name.
template <class F>
void with_op(const std::string& name, F&& f) {
    if (name == "sum") f(hvd::sum);
    else if (name == "average") f(hvd::average);
    else throw std::invalid_argument("bench: no such operation: " + name);
}

/// Returns the operation as hvd takes it: an average of integers has a rounding.
template <class T, class Op>
constexpr auto as_hvd(Op op) {
    if constexpr (std::is_integral_v<T> && std::is_same_v<Op, hvd::op::average>)
        return op(hvd::rounding::toward_zero);
    else return op;
}

template <class Op>
float expected(std::size_t i, int ranks) {
    if constexpr (std::is_same_v<Op, hvd::op::sum>) return expected_sum(i, ranks);
    else return expected_average(i, ranks);
}

}  // namespace bench
