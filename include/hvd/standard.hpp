// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The doors and the headers at the bottom of the house include this file before anything else. A
// header that does not exist stops every compiler at once; after #error alone they go on, and print
// thousands of lines. Apple's clang counts otherwise.
#if defined(_WIN32)
#error "hvd needs the calls of Linux: on Windows, compile and run inside WSL2"
#include <hvd_needs_WSL2_on_Windows>
#elif !defined(__cplusplus) || __cplusplus < 202002L
#error "hvd needs C++20: compile with -std=c++20 or newer"
#include <hvd_needs_C++20_or_newer>
#elif defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ < 16
#error "hvd needs clang 16 or newer, or g++ 12: this clang is older"
#include <hvd_needs_clang_16_or_newer>
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "hvd needs g++ 12 or newer, or clang 16: this g++ is older"
#include <hvd_needs_gcc_12_or_newer>
#endif
