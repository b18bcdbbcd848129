// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <map>
#include <string>

#include "shell.hpp"

namespace hvdrun {

// The command line in two parts.
struct command_line {
    words own;      // options as POSIX has them, each value a word of its own
    words program;  // from the first word on that is no option
    std::map<std::string, std::string> spelled;  // how the user has spelled an option
};

// The name by which errors tell an option, and the number of values that follow it.
struct known_option {
    std::string name;
    int values;
};

// Separates hvdrun's own words from the program. It takes the spellings of MPI's launchers, which
// have long options with one dash. `find` knows an option by `-x` or `--long`, and returns false
// for others. An unknown option is refused, with hvdrun's own if it is one of MPI's or Horovod's.
command_line read_words(const words& all,
                        const std::function<bool(const std::string&, known_option&)>& find);

}  // namespace hvdrun
