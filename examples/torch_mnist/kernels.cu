// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// hvd's kernels, which pack and reduce on the GPU.
#include <hvd/kernels.cuh>
