// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: host_backend

#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

using policy = hvd::staged<hvd::nccl>;     // BAD
using policy = hvd::staged<hvd::threads>;  // GOOD

int rank_of(hvd::communicator<policy>& comm) { return comm.rank(); }
