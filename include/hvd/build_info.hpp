// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the facts of a build.
#include "standard.hpp"  // first: an older standard is told at once

#include "comm/build_info.hpp"
