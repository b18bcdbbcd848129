// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvdrun {

using words = std::vector<std::string>;

// Returns a word as a POSIX shell must read it.
std::string for_shell(std::string_view word);

// Returns words as a line for a POSIX shell.
std::string line_of(const words& all);

// Splits a line into words as a shell does, with quotes and backslashes and nothing else. `name`
// is the option in the error.
words split(std::string_view line, std::string_view name);

// Returns the file that a shell would run for a name, or an empty string.
std::string find_program(const std::string& name);

}  // namespace hvdrun
