// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace hvd_trace {

// The facts that the first event of a rank's file has.
struct origin {
    int rank = 0, size = 1;
    std::int64_t clock_offset = 0;  // nanoseconds that its clock is ahead of that of rank 0
};

// A file that is no trace of hvd, with the place where that shows.
struct not_a_trace : std::runtime_error {
    not_a_trace(const std::string& file, std::uint64_t offset, const std::string& why)
        : std::runtime_error("hvd-trace: " + file + ": byte " + std::to_string(offset) + ": " +
                             why) {}
};

// Reads the file of a rank, one event a line.
class trace_reader {
public:
    explicit trace_reader(const std::string& file);

    const hvd_trace::origin& origin() const { return origin_; }
    const std::string& file() const { return file_; }

    // False behind the last event.
    bool next(nlohmann::json& event);

    // The process was killed: the file has no end.
    bool has_no_end() const { return !ended_; }
    // An event was cut off, and left out.
    bool was_cut() const { return cut_; }
    // The events for which the recording rank had no room.
    std::uint64_t dropped() const { return dropped_; }

private:
    bool next_line();
    nlohmann::json parse();
    void read_origin();
    [[noreturn]] void refuse(const std::string& why) const { throw not_a_trace(file_, at_, why); }

    std::string file_;
    std::ifstream stream_;
    std::string line_;
    std::uint64_t at_ = 0, next_ = 0;  // the places of this line and of the next one
    bool is_last_ = false;             // the line has no end
    bool ended_ = false, cut_ = false;
    std::uint64_t dropped_ = 0;
    hvd_trace::origin origin_;
};

}  // namespace hvd_trace
