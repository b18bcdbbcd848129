// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: device_arena needs a communicator<nccl>; other backends have no memory that all ranks know

#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

void make(hvd::communicator<hvd::staged<hvd::threads>>& staged,
          hvd::communicator<hvd::nccl>& gpus) {
    hvd::device_arena first(staged, 4096);  // BAD
    hvd::device_arena second(gpus, 4096);   // GOOD
}
