// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the memory space of this view (hvd::host or hvd::device) is not the one this backend moves

#include <hvd/mpi.hpp>

void call(hvd::communicator<hvd::mpi>& comm, float* memory) {
    comm.allreduce(hvd::device_view(memory, 4), hvd::sum);  // BAD
    comm.allreduce(hvd::view(memory, 4), hvd::sum);         // GOOD
}
