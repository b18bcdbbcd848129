// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../observe/observer.hpp"
#include "concept.hpp"

namespace hvd::inline v0 {

/// Reports every collective to an observer. `communicator::observer()` returns it.
///
/// Each communicator has its own observer. Without this policy observers cost nothing.
template <host_backend Backend, class Observer>
    requires observer<Observer>
struct observed : Backend {
    using observer_type = Observer;
};

}  // namespace hvd::inline v0
