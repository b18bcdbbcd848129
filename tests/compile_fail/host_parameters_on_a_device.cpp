// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: parameters and gradients are on the device, as the communicator's tensors are: hvd::device_view

#include <hvd/nccl.hpp>
#include <hvd/train_device.hpp>

using gpus = hvd::communicator<hvd::nccl>;

void add(hvd::distributed_optimizer<gpus, hvd::optimizers::adam<float>>& optimizer, float* w) {
    optimizer.register_parameter("w", hvd::view(w, 1), hvd::view(w + 1, 1));                // BAD
    optimizer.register_parameter("w", hvd::device_view(w, 1), hvd::device_view(w + 1, 1));  // GOOD
}
