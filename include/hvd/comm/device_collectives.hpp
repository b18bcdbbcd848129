// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "device_movements.hpp"
#include "device_plans.hpp"
#include "device_reductions.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Everything that ranks with device tensors can do together, whatever moves them. `Comm` has a
// `session_`.
template <class Comm, class B>
class device_collectives : public device_reductions<Comm, B>,
                           public device_movements<Comm, B>,
                           public device_plans<Comm, B> {};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
