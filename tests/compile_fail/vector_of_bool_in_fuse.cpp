// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: std::vector<bool> keeps bits, not elements; use std::vector<std::uint8_t>

#include <cstdint>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<float>& others) {
    std::vector<bool> values;          // BAD
    std::vector<std::uint8_t> values;  // GOOD
    comm.allreduce(hvd::fuse(others, values), hvd::max);
}
