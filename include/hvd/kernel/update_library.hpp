// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/compiled.hpp"
#include "update.hpp"

// The steps of hvd's optimizers that libhvd holds.
#define HVD_UPDATE(T, Rule)                                                               \
    HVD_INSTANTIATE HVD_API void update_elements<T, Rule<T>>(const Rule<T>&, std::size_t, \
                                                             const T*, const T*, T*, T*, T*);
#define HVD_UPDATES(T)          \
    HVD_UPDATE(T, descent_rule) \
    HVD_UPDATE(T, sgd_rule)     \
    HVD_UPDATE(T, adam_rule)    \
    HVD_UPDATE(T, adadelta_rule)

namespace hvd::inline v0::detail {

HVD_UPDATES(float)
HVD_UPDATES(double)

}  // namespace hvd::inline v0::detail

#undef HVD_UPDATES
#undef HVD_UPDATE
