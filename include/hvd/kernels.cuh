// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd's CUDA kernels, for one file of a program that nvcc compiles.
#include "kernel/cuda/kernels.cuh"
