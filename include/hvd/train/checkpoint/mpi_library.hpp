// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../optimizer/mpi_library.hpp"
#include "checkpoint_library.hpp"

namespace hvd::inline v0 {

HVD_CHECKPOINTS(mpi)

}  // namespace hvd::inline v0
