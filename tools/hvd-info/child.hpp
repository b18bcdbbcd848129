// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <string>

namespace hvd_info {

// How a child ended, and what it wrote.
struct child_end {
    std::string output, errors;
    int code = 0, signal = 0;
    bool is_late = false;  // it was killed, since its time was over

    bool is_good() const { return code == 0 && signal == 0 && !is_late; }
    // "it was ended by signal 11", and the last line that it wrote about it.
    std::string reason() const;
};

// Runs a function in a process of its own: drivers and libraries may crash or hang there. It reads
// `input` and writes to the standard streams.
child_end in_child(const std::function<int()>& f, double seconds, const std::string& input = "");

}  // namespace hvd_info
