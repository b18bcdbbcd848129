// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/tcp.hpp"
#include "../core/compiled.hpp"
#include "communicator.hpp"

// The communicator that libhvd holds for programs without MPI.
namespace hvd::inline v0 {

HVD_INSTANTIATE class HVD_API communicator<tcp>;
//! @cond
HVD_INSTANTIATE HVD_API communicator<tcp> communicator<tcp>::world(const tcp_options&,
                                                                   const communicator_options&);
//! @endcond

}  // namespace hvd::inline v0
