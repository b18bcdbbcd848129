// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/compiled.hpp"
#include "reduce.hpp"

// The reductions that libhvd holds: those of the elements that trainers reduce, on all levels.

#define HVD_REDUCTION(T, Op) \
    HVD_INSTANTIATE HVD_API void reduce_elements<T, Op>(const reduce_args&);
#define HVD_REDUCTIONS(T)     \
    HVD_REDUCTION(T, op::sum) \
    HVD_REDUCTION(T, op::min) \
    HVD_REDUCTION(T, op::max) \
    HVD_REDUCTION(T, op::product)

namespace hvd::inline v0::detail {

HVD_REDUCTIONS(float)
HVD_REDUCTIONS(double)
HVD_REDUCTIONS(float16)
HVD_REDUCTIONS(bfloat16)
HVD_REDUCTIONS(std::int32_t)
HVD_REDUCTIONS(std::int64_t)
HVD_REDUCTIONS(std::uint64_t)
HVD_REDUCTION(float, op::average)
HVD_REDUCTION(double, op::average)
HVD_REDUCTION(float16, op::average)
HVD_REDUCTION(bfloat16, op::average)

}  // namespace hvd::inline v0::detail

#undef HVD_REDUCTIONS
#undef HVD_REDUCTION
