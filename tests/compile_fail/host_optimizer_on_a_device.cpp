// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an optimizer of device tensors is hvd::optimizers::sgd, adam or adamw, has step(parameters, gradients, stream), or step()

#include <hvd/nccl.hpp>
#include <hvd/train_device.hpp>

void make(hvd::communicator<hvd::nccl>& gpus) {
    hvd::distributed_optimizer optimizer(gpus, hvd::optimizers::adadelta<float>{});  // BAD
    hvd::distributed_optimizer optimizer(gpus, hvd::optimizers::adam<float>{});      // GOOD
}
