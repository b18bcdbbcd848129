// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: parameters and gradients are on the device, as the communicator's tensors are: hvd::device_view

#include <hvd/nccl.hpp>
#include <hvd/train/device.hpp>

using adam = hvd::optimizers::adam<float>;

void add(hvd::distributed_optimizer<hvd::communicator<hvd::nccl>, adam>& optimizer, float* data) {
    optimizer.register_parameter("w", hvd::view(data, 2), hvd::view(data + 2, 2));                // BAD
    optimizer.register_parameter("w", hvd::device_view(data, 2), hvd::device_view(data + 2, 2));  // GOOD
}
