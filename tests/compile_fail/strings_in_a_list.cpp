// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: a list of strings is no tensor: comm.broadcast_object(list) sends it from the root

#include <string>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm, std::vector<std::string>& names) {
    comm.broadcast(names, hvd::root{0});         // BAD
    comm.broadcast_object(names, hvd::root{0});  // GOOD
}
