// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/threads.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicator that libhvd holds. Each one in the list takes every program a hundredth of its
// time to compile, so checked<threads> is compiled where it is used.
namespace hvd::inline v0 {

HVD_INSTANTIATE class HVD_API communicator<threads>;

}  // namespace hvd::inline v0
