// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "environment.hpp"
#include "file_descriptor.hpp"
#include "shell.hpp"

namespace hvdrun {

// A process that hvdrun has started, the first of a process group of its own.
struct process {
    pid_t id = -1;
    file_descriptor input;  // only if it was asked for
    file_descriptor output, errors;
};

// Starts a program. If hvdrun is killed, the kernel sends the signal to it.
process start(const words& program, const environment& variables, bool with_input,
              int if_hvdrun_dies);

// How a process ended.
struct ending {
    int code = 0;    // of exit
    int signal = 0;  // 0, or the signal that ended it
    // The connection to its host has ended so, and nobody has told the end of the process.
    bool is_cut_off = false;

    bool is_failure() const { return code != 0 || signal != 0 || is_cut_off; }
    // A connection that ends with 0 counts as one that ssh has lost.
    int exit_code() const {
        return signal != 0 ? 128 + signal : is_cut_off && code == 0 ? 255 : code;
    }
    std::string description() const;
};

// True if a process has ended. It stays a zombie until reap(), so that nothing else gets its
// number.
bool has_ended(pid_t id, ending& how);
void reap(pid_t id);

// Notes which signals are ignored, before hvdrun changes any: those of nohup and of a script's `&`
// stay ignored, here and by the ranks. None stays blocked: hvdrun would not hear of them.
void note_ignored_signals();
bool was_ignored(int signal);

// Those that end a process which does not handle them, without those that were ignored at the
// start.
std::vector<int> ending_signals();
// True for one that the processor sends to a wrong program.
bool is_of_fault(int signal);

// Before a program is executed: signals have their defaults, or stay ignored.
void reset_signals();

// Reaps the processes that others have left to this one, as to the first of a container. `own` are
// those of hvdrun itself.
void reap_inherited(const std::set<pid_t>& own);
// True if this process inherits those whose parents have ended.
bool inherits_processes();

// Processes may need many files.
void allow_many_files();

}  // namespace hvdrun
