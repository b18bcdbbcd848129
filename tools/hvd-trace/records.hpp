// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <hvd/protocol/call_record.hpp>

namespace hvd_trace {

// The records of one process, at one time.
struct process_records {
    std::string source;       // "process 123", or the name of a file
    bool is_stopped = false;  // by a signal or a debugger
    std::int64_t time = 0;    // of the steady clock of its host
    std::vector<hvd::detail::call_record> calls;
    std::vector<std::unique_ptr<hvd::detail::tensor_record>> tensors;
};

// A process that is not there, or is none of a program of hvd.
struct no_record : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// True for a process number that is the name of no file.
bool is_process(const std::string& argument);
// True for a file of records; false for another one, and where there is none.
bool is_record_file(const std::string& argument);

// Reads the records of a process that runs or is stopped, or those in a file.
// @throws no_record if there are none; std::runtime_error if this user may not read them
process_records read_records(const std::string& process_or_file);

// Says which rank waits in which call for whom, which call of theirs differs, and who has not come.
void tell_waits(const std::vector<process_records>& processes, std::ostream& out);

}  // namespace hvd_trace
