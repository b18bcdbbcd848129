// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "checks.hpp"

namespace hvd_info {

// The reports of all ranks of a job on rank 0, with what was found while they met. On other ranks
// `all` is empty.
struct gathered {
    std::vector<rank_report> all;
    check_report meeting{"ranks", {}, {}};
    bool have_met = false;  // this process has given its report to rank 0, or is alone
};

// Starts MPI where hvd was compiled with it, and brings the reports of a job together, by MPI or by
// hvd::tcp.
gathered gather(const context& c, const rank_report& own);

// Names the ranks that differ from most others.
void compare(check_report& report, const std::vector<rank_report>& all);

}  // namespace hvd_info
