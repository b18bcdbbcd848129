// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: broadcast_object changes its argument, and this one is const or a temporary: comm.copy_of_root(object)

#include <string>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, const std::string& text) {
    comm.broadcast_object(text);                          // BAD
    const std::string of_root = comm.copy_of_root(text);  // GOOD
}
