// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>

#include "environment.hpp"
#include "shell.hpp"

namespace hvdrun {

// The agent is a shell on another host, at the other end of that host's one connection. It starts
// the ranks of the host, and ends them when the connection ends; another shell, its guard, does so
// when the agent is killed. It gets lines: a rank's script, signals, and how many bytes of input
// follow. It sends frames, each behind the connection's key: see frames.hpp.

// The same for all ranks of a host.
struct agent_setup {
    std::string key;           // of the frames
    std::string secret;        // its digits
    std::string private_name;  // of its folder, which nobody can guess
    environment variables;
    std::string folder;
    words program;
    double kill_after;
};
std::string agent_script(const agent_setup& setup);

// Starts rank number `number` of the connection, with these variables besides.
std::string start_lines(int number, const environment& variables, bool with_input);

// Sends a signal, "TERM", to the processes of a rank.
std::string signal_line(int number, std::string_view signal);
// Ends all ranks at once, even behind a line that was broken off.
constexpr std::string_view kill_all_lines = "\nKILL *\n";

// At most so many bytes of a rank's standard input are on their way at a time.
constexpr std::size_t most_input = 1 << 15;
std::string input_of(std::string_view bytes);
std::string end_of_input_line();

// The agent looks for ranks whose end nobody would tell.
std::string look_line();

}  // namespace hvdrun
