// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: not a backend

#include <hvd/threads.hpp>

struct pigeons {};

using post = hvd::communicator<pigeons>;       // BAD
using post = hvd::communicator<hvd::threads>;  // GOOD

int rank_of(post& comm) { return comm.rank(); }
