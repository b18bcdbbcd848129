// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "concept.hpp"

namespace hvd {
inline namespace v0 {

/// Everything is agreed on at each call, the calls' names included, before data moves: for finding out
/// which rank strays. `checked<direct<mpi>>` runs hvd's own algorithms. Feature D3.
template <class Backend>
struct checked : Backend {
    static constexpr bool agrees_on_names = true;
};

}  // namespace v0
}  // namespace hvd
