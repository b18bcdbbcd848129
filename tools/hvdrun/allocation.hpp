// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "hosts.hpp"

namespace hvdrun {

// The variable by which a launcher has told this process that it is a rank of its job, or an empty
// text.
std::string launched_by();

// The hosts that LSF, PBS or SGE has given this job, by their variables and files, or none. A rank
// of another job has none: that job has them.
host_list allocated_hosts();

}  // namespace hvdrun
