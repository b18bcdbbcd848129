// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

/// The version of these headers. `HVD_VERSION` is one number for comparisons: 1002003 for 1.2.3.
#define HVD_VERSION_MAJOR 0
#define HVD_VERSION_MINOR 1
#define HVD_VERSION_PATCH 0
#define HVD_VERSION (HVD_VERSION_MAJOR * 1000000 + HVD_VERSION_MINOR * 1000 + HVD_VERSION_PATCH)
#define HVD_VERSION_STRING "0.1.0"

/// Everything that hvd declares.
///
/// `hvd::communicator` holds the collectives. `hvd::run_threads` and `hvd::mpi_environment` start
/// ranks.
namespace hvd {
/// The names of this major version. Programs write `hvd::name`.
inline namespace v0 {}
}  // namespace hvd
