// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace hvdrun {

// Seconds since some moment. Changes of the clock do not matter.
double seconds();

// The time of day in UTC: 2025-01-31T23:59:59.123456Z.
std::string timestamp();

// A number of seconds as a user would write it: 0.3 or 600.
std::string short_number(double seconds);

}  // namespace hvdrun
