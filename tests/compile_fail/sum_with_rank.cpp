// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: allreduce_with_rank takes hvd::max or hvd::min

#include <hvd/threads.hpp>

int rank_with_most(hvd::communicator<hvd::threads>& comm, float x) {
    const auto most = comm.allreduce_with_rank(x, hvd::sum);  // BAD
    const auto most = comm.allreduce_with_rank(x, hvd::max);  // GOOD
    static_cast<void>(most);
    return 0;
}
