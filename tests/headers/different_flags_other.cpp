// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "different_flags.hpp"

namespace other_unit {

std::vector<std::size_t> layouts_seen() { return layouts(); }

void sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    comm.allreduce(values, hvd::sum);
}

hvd::request start_sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values) {
    return comm.allreduce_async(values, hvd::sum);
}

void refuse(hvd::communicator<hvd::threads>& comm) {
    float value = 0;
    comm.broadcast(value, hvd::root{comm.size()});
}

}  // namespace other_unit
