// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: hvd::adasum combines whole vectors

#include <vector>

#include <hvd/threads.hpp>
#include <hvd/train/gradients/adasum.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.exscan(values, hvd::adasum);  // BAD
    comm.exscan(values, hvd::sum);     // GOOD
}
