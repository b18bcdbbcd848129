// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"
#include "../version.hpp"

namespace hvd::inline v0 {

/// The version of these headers as a text: "0.1.0".
inline constexpr const char* version = HVD_VERSION_STRING;

}  // namespace hvd::inline v0
