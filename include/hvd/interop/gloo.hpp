// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

// Next, so that errors of wrong calls are shorter:
#include "../collective/call/checks.hpp"
#include "../comm/serializer.hpp"

#include "../comm/communicator.hpp"

// The user may set HVD_WITH_GLOO to 0 or 1.
#if !defined(HVD_WITH_GLOO)
#if __has_include(<gloo/transport/tcp/device.h>)
#define HVD_WITH_GLOO 1
#else
#define HVD_WITH_GLOO 0
#endif
#endif

#if HVD_WITH_GLOO
#include "../backend/tcp.hpp"
#include "gloo_messages.hpp"
#else
#include "../backend/refused.hpp"
#endif

namespace hvd::inline v0 {

#if HVD_WITH_GLOO
namespace detail {

using gloo_endpoint = job_endpoint<gloo_messages>;

}  // namespace detail

/// Ranks are processes as those of `tcp`, which find each other in the same way, and Gloo carries
/// what passes between hosts. Calls, errors and bits are those of `tcp` and `mpi`.
///
/// Programs link with `-lgloo -pthread`. Gloo writes to connections that may be broken, so that the
/// first communicator over several hosts makes the process ignore SIGPIPE, unless the program has
/// its own handler.
/// @snippet tests/tcp/gloo.cpp gloo
struct gloo {
    using endpoint_type = detail::gloo_endpoint;
};

static_assert(backend<gloo>);
#else
// Every use of the name is an error that says how to get Gloo. No code uses it, so that files with
// and without Gloo still link.
#define HVD_NO_GLOO                                                                             \
    __attribute__((unavailable(                                                                 \
        "hvd: there is no Gloo here: <gloo/transport/tcp/device.h> is not on the include path " \
        "(Debian has it in libgloo-dev), or HVD_WITH_GLOO is 0")))

struct HVD_NO_GLOO gloo;

#undef HVD_NO_GLOO

struct gloo : detail::refused_backend {};
#endif

}  // namespace hvd::inline v0
