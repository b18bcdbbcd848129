// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace hvdrun {

// The files that are installed beside hvdrun, made of its options: "manual" is hvdrun.1, and "bash"
// and "zsh" are completions for these shells.
std::string installed_file(const CLI::App& app, const std::string& which);

// The lines that --help and the manual page end with.
extern const char* const examples;

}  // namespace hvdrun
