// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace hvd_trace {

// Writes the events of all files as one trace, on the clock of rank 0, a process for each rank.
// Returns remarks for the user, such as ranks that are missing.
// @throws not_a_trace, or std::runtime_error for files that do not belong together.
std::vector<std::string> merge(const std::vector<std::string>& files, std::ostream& out);

}  // namespace hvd_trace
