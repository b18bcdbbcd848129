// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: not a tensor: needs a contiguous range, array or view whose elements have hvd::dtype_traits

#include <vector>

#include <hvd/threads.hpp>

struct particle {
    float x, y;
};

void call(hvd::communicator<hvd::threads>& comm) {
    std::vector<particle> values;  // BAD
    std::vector<float> values;     // GOOD
    comm.broadcast(values, hvd::root{0});
}
