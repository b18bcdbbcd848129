// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/checked.hpp"
#include "../backend/direct.hpp"
#include "../backend/mpi.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicators of MPI that libhvd holds.
namespace hvd {
inline namespace v0 {

HVD_INSTANTIATE class HVD_API communicator<mpi>;
HVD_INSTANTIATE class HVD_API communicator<direct<mpi>>;
HVD_INSTANTIATE class HVD_API communicator<checked<mpi>>;

}  // namespace v0
}  // namespace hvd
