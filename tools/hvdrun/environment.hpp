// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hosts.hpp"
#include "options.hpp"

namespace hvdrun {

using environment = std::map<std::string, std::string>;

// The environment of hvdrun itself.
environment own_environment();

// True for a name that shells can set.
bool is_name(const std::string& name);

// Says that hvdrun sets this variable for the ranks of the job, and by which option, or returns an
// empty text.
std::string setter_of(const std::string& name, const options& o);

// Says which variables of the user's environment hvdrun replaces. Those of an outer job are no
// user's.
std::vector<std::string> replaced(const options& o);

// The variables that other hosts get: those of -x, and all HVD_* but those that hvdrun sets.
environment forwarded(const options& o);

// The user's secret, for ranks to which hvdrun passes none: the launcher of an MPI starts them.
environment secret_of_user(const options& o);

// The variables by which a rank knows its place and finds the others.
environment contract(const options& o, const placement& place, int ranks,
                     const std::string& rendezvous);

}  // namespace hvdrun
