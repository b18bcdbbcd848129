// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: an asynchronous call reads this temporary after it is gone; name it first

#include <utility>
#include <vector>

#include <hvd/threads.hpp>

hvd::request call(hvd::communicator<hvd::threads>& comm, std::vector<float>& in,
                  std::vector<float>& out) {
    return comm.allreduce_async(std::move(in), out, hvd::sum);      // BAD
    return comm.allreduce_async(std::as_const(in), out, hvd::sum);  // GOOD
}
