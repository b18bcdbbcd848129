// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: this backend can't reduce this element type with this operation (hvd::reducible)

#include <hvd/nccl.hpp>

void call(hvd::communicator<hvd::nccl>& comm, hvd::tensor_view<short, hvd::device> shorts,
          hvd::tensor_view<int, hvd::device> ints) {
    comm.allreduce(shorts, hvd::sum);  // BAD
    comm.allreduce(ints, hvd::sum);    // GOOD
    (void)shorts;
}
