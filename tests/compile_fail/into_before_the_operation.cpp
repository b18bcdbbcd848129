// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: the operation comes before the result: reduce_scatter(x, hvd::sum, hvd::into(out))

#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& x, std::vector<float>& y) {
    comm.reduce_scatter(x, hvd::into(y), hvd::sum);  // BAD
    comm.reduce_scatter(x, hvd::sum, hvd::into(y));  // GOOD
}
