// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hvd/hvd.hpp>

// Returns the sizes of types that both units see.
inline constexpr auto layouts = [] {
    return std::vector<std::size_t>{sizeof(hvd::communicator<hvd::threads>), sizeof(hvd::request),
                                    sizeof(hvd::error),
                                    sizeof(hvd::tensor_view<float, hvd::host, 1>),
                                    sizeof(hvd::tensor_view<float, hvd::host, 2>)};
};

// An object that hvd has no name of its own for: each unit finds the compiler's.
struct epoch {
    int number;
    double loss;
};

namespace other_unit {

std::vector<std::size_t> layouts_seen();
void sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values);
hvd::request start_sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values);
void refuse(hvd::communicator<hvd::threads>& comm);
void broadcast_epoch(hvd::communicator<hvd::threads>& comm, epoch& value);
// The text of the exception that run_threads throws, after rank 0 has thrown.
std::string failure_of_threads();

}  // namespace other_unit
