// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "concept.hpp"

namespace hvd {
inline namespace v0 {

/// Everything is agreed on at each call, the calls' names included, before data moves: for finding
/// out which rank strays. Feature D3.
template <class Backend>
struct checked : Backend {
    static constexpr bool agrees_on_names = true;
};

/// For finding out what is wrong with a program on `direct<Backend>`: the same elements and
/// operations are accepted, but hvd's own algorithms run, which see every rank.
template <class Backend>
struct checked<direct<Backend>> : checked<Backend> {
    template <class T, class Op>
    static constexpr bool reduces = direct<Backend>::template reduces<T, Op>;
};

}  // namespace v0
}  // namespace hvd
