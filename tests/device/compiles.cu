// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The doors, as nvcc takes them.
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& world, hvd::tensor_view<float, hvd::device> x) {
    hvd::communicator<hvd::nccl> gpus(world);
    gpus.allreduce(x, hvd::average);
}
