// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"

// Marks functions that nvcc compiles for the device as well: the bodies of kernels, and functions
// that they share with the host.
#ifdef __CUDACC__
#define HVD_KERNEL_HOST_DEVICE __host__ __device__
#else
#define HVD_KERNEL_HOST_DEVICE
#endif
