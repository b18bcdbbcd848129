// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The one file of a program that gives it hvd's kernels.
#include <hvd/kernel/cuda/kernels.cuh>
