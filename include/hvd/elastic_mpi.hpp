// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to elastic training over MPI: elastic::run<hvd::mpi>.
#include "mpi.hpp"

#include "elastic.hpp"
#include "elastic/mpi_part.hpp"
