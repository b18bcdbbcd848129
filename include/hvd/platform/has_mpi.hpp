// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"

// The user may set HVD_WITH_MPI to 0 or 1. HVD_HAS_MPI holds the decision.
#if defined(HVD_WITH_MPI)
#define HVD_HAS_MPI HVD_WITH_MPI
#elif __has_include(<mpi.h>)
#define HVD_HAS_MPI 1
#else
#define HVD_HAS_MPI 0
#endif
