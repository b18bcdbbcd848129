// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/tcp_library.hpp"
#include "engine.hpp"

// The engine that libhvd holds.
namespace hvd::inline v0 {

HVD_INSTANTIATE class HVD_API engine<tcp>;

}  // namespace hvd::inline v0
