// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "different_flags.hpp"

#include <stdexcept>

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

void broadcast_epoch(hvd::communicator<hvd::threads>& comm, epoch& value) {
    comm.broadcast_object(value);
}

std::string failure_of_threads() {
    try {
        hvd::run_threads(2, [](hvd::communicator<hvd::threads>& comm) {
            if (comm.rank() == 0) throw std::runtime_error("the disk is full");
        });
    } catch (const std::runtime_error& e) {
        return e.what();
    }
    return {};
}

}  // namespace other_unit
