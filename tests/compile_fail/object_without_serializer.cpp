// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// EXPECT: hvd: no hvd::serializer for this type; specialise it or include

#include <list>
#include <vector>

#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& comm) {
    std::list<int> values;    // BAD
    std::vector<int> values;  // GOOD
    comm.broadcast_object(values, hvd::root{0});
}
