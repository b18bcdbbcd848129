// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../observe/observer.hpp"
#include "concept.hpp"

namespace hvd {
inline namespace v0 {

/// Tells an observer about every collective; `communicator::observer()` reaches it.
///
/// Each communicator has an observer of its own; without this policy nothing is spent on it.
template <class Backend, class Observer>
    requires observer<Observer>
struct observed : Backend {
    using observer_type = Observer;
};

}  // namespace v0
}  // namespace hvd
