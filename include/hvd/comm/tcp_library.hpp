// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/tcp.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicator that libhvd holds for programs without MPI.
namespace hvd::inline v0 {

HVD_INSTANTIATE class HVD_API communicator<tcp>;

}  // namespace hvd::inline v0
