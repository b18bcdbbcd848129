// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string_view>

#include "../kernel/simd/level.hpp"
#include "../platform/has_mpi.hpp"
#include "../platform/linux.hpp"
#include "../version.hpp"

namespace hvd::inline v0 {

/// How a file was compiled with hvd, for logs and reports of errors.
/// @snippet tests/docs/snippets.cpp build_info
struct build_facts {
    std::string_view version;   ///< of the headers: "0.1.0"
    std::string_view compiler;  ///< its name and its version: "clang 16.0.6"
    long cplusplus;             ///< the standard that it was told, as `__cplusplus`: 202002
    bool is_compiled_form;      ///< libhvd holds a part; otherwise the headers hold everything
    bool has_mpi;               ///< `hvd::mpi` can be used
    bool is_plain_posix;        ///< without the calls of Linux
    /// the instruction set that the kernels take on this processor: "plain", "baseline" (vectors
    /// of 16 bytes), "avx2" or "avx512"
    std::string_view kernels;
};

namespace detail {

#define HVD_TEXT_OF(number) #number
#define HVD_VERSION_TEXT(major, minor, patch) \
    HVD_TEXT_OF(major) "." HVD_TEXT_OF(minor) "." HVD_TEXT_OF(patch)
#if defined(__clang__)
constexpr std::string_view compiler_name =
    "clang " HVD_VERSION_TEXT(__clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
constexpr std::string_view compiler_name =
    "g++ " HVD_VERSION_TEXT(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
constexpr std::string_view compiler_name = "another compiler";
#endif
#undef HVD_VERSION_TEXT
#undef HVD_TEXT_OF

}  // namespace detail

/// Returns how the calling file was compiled.
///
/// Files of a program may differ, so that each has a function of its own. `hvd-info` prints the
/// same and more for the installed hvd.
/// @snippet tests/docs/snippets.cpp build_info
[[maybe_unused]] static build_facts build_info() noexcept {
    return {.version = HVD_VERSION_STRING,
            .compiler = detail::compiler_name,
            .cplusplus = __cplusplus,
#ifdef HVD_COMPILED
            .is_compiled_form = true,
#else
            .is_compiled_form = false,
#endif
            .has_mpi = HVD_HAS_MPI != 0,
            .is_plain_posix = HVD_LINUX == 0,
            .kernels = detail::simd_level_names[int(detail::best_level())]};
}

}  // namespace hvd::inline v0
