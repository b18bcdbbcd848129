// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/mpi.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicator that libhvd holds. Each one in the list takes every program a hundredth of its
// time to compile, so direct<mpi> and checked<mpi> are compiled where they are used.
namespace hvd::inline v0 {

HVD_INSTANTIATE class HVD_API communicator<mpi>;

}  // namespace hvd::inline v0
