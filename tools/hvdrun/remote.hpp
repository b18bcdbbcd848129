// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "environment.hpp"
#include "shell.hpp"

namespace hvdrun {

// A rank on another host is started by a shell there. The command line holds nothing but how that
// shell reads a script from its standard input: the script has the environment and the secret.
// Later lines are signals for the rank: TERM, KILL, or one that is passed on. The end of the input
// ends the rank.

// The local command: the template with host and command filled in.
words remote_command(const words& ssh, const std::string& host);

// The same for people, who are spared the command.
std::string readable_command(const words& ssh, const std::string& host);

// The line that the remote shell prints when it has read its script.
extern const std::string remote_greeting;

struct remote_rank {
    environment variables;
    std::string secret;  // its digits
    std::string folder;
    words program;
    double kill_after;
};
std::string remote_script(const remote_rank& rank);

// A script that only prints something, for --check.
std::string remote_script(const std::string& commands);

}  // namespace hvdrun
