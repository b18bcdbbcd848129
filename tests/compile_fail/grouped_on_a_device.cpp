// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an optimizer of device tensors is hvd::optimizers::sgd, adam or adamw, has step(parameters, gradients, stream), or step()

#include <hvd/nccl.hpp>
#include <hvd/train_device.hpp>

using adam = hvd::optimizers::adam<float>;
using groups = hvd::optimizers::grouped<adam>;
using masters = hvd::optimizers::float_masters<hvd::bfloat16, adam>;

void make(hvd::communicator<hvd::nccl>& gpus) {
    hvd::distributed_optimizer optimizer(gpus, groups{});   // BAD
    hvd::distributed_optimizer optimizer(gpus, masters{});  // GOOD
}
