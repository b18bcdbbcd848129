// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace hvdrun {

// Asks the dispatchers and the workers of a data service whether they answer here, and prints a
// table. False if one does not, or has not come.
bool check_data_service(const std::string& config_file);

}  // namespace hvdrun
