// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The doors and the headers at the bottom of the house include this file before anything else. A
// header that does not exist stops every compiler at once; after #error alone they go on, and print
// thousands of lines.
#if !defined(__cplusplus) || __cplusplus < 202002L
#error "hvd needs C++20: compile with -std=c++20 or newer"
#include <hvd_needs_C++20_or_newer>
#endif
