// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Comes before a program, which takes itself for one of another version of hvd then.
#include <hvd/version.hpp>

#undef HVD_VERSION_STRING
#define HVD_VERSION_STRING "0.0.9"
