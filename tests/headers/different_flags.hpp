// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <vector>

#include <hvd/hvd.hpp>

// Returns the sizes of types that both units see.
inline constexpr auto layouts = [] {
    return std::vector<std::size_t>{sizeof(hvd::communicator<hvd::threads>), sizeof(hvd::request),
                                    sizeof(hvd::error),
                                    sizeof(hvd::tensor_view<float, hvd::host, 1>),
                                    sizeof(hvd::tensor_view<float, hvd::host, 2>)};
};

namespace other_unit {

std::vector<std::size_t> layouts_seen();
void sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values);
hvd::request start_sum(hvd::communicator<hvd::threads>& comm, std::vector<float>& values);
void refuse(hvd::communicator<hvd::threads>& comm);

}  // namespace other_unit
