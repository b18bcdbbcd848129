// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace hvdrun {

// A program as its pages tell it, beside its options.
struct described_program {
    std::string name, version, purpose, synopsis, exit_codes, examples, page;
    bool starts_another = false;  // the first word that is no option is a program
};

// The files that are installed beside a program, made of its options: "manual" is NAME.1, and
// "bash" and "zsh" are completions for these shells.
std::string installed_file(const CLI::App& app, const described_program& own,
                           const std::string& which);

}  // namespace hvdrun
