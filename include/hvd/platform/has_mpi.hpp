// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// HVD_WITH_MPI (0 or 1) is the user's word; HVD_HAS_MPI is what it came to.
#if defined(HVD_WITH_MPI)
#define HVD_HAS_MPI HVD_WITH_MPI
#elif __has_include(<mpi.h>)
#define HVD_HAS_MPI 1
#else
#define HVD_HAS_MPI 0
#endif
