// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: not a backend

#include <hvd/threads.hpp>

#include <hvd/nccl.hpp>

struct pigeons {  // no session_type
    using space_type = hvd::device;
};

using post = hvd::communicator<pigeons>;    // BAD
using post = hvd::communicator<hvd::nccl>;  // GOOD

int rank_of(post& comm) { return comm.rank(); }
