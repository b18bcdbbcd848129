// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "concept.hpp"

namespace hvd::inline v0 {

/// Ranks agree on everything at each call before data moves, also on the calls' names. It helps to
/// find the rank that strays.
template <host_backend Backend>
struct checked : Backend {
    static constexpr bool agrees_on_names = true;
};

/// Helps to find errors of a program on `direct<Backend>`. It accepts the same elements and
/// operations, but runs hvd's own algorithms, which see every rank.
template <host_backend Backend>
struct checked<direct<Backend>> : checked<Backend> {
    template <class T, class Op>
    static constexpr bool reduces = direct<Backend>::template reduces<T, Op>;
};

}  // namespace hvd::inline v0
