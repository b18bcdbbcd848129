// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The one file of a program that contains hvd's kernels.
#include <hvd/kernels.cuh>
