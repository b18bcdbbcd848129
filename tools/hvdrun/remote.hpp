// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "shell.hpp"

namespace hvdrun {

// A shell on another host works for hvdrun. The command line holds nothing but how that shell reads
// a script from its standard input: the script has the environment and the secret.

// The text by which a shell reads and runs such a script. It has no single quote.
const std::string& script_reader();

// The local command: the template with host and command filled in.
words remote_command(const words& ssh, const std::string& host);

// The same for people, who are spared the command.
std::string readable_command(const words& ssh, const std::string& host);

// A script as that shell reads it. It goes on with the rest of its input.
std::string script_lines(const std::string& script);

}  // namespace hvdrun
