// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "merge.hpp"

#include <cmath>
#include <map>
#include <ostream>

#include "trace_reader.hpp"

namespace hvd_trace {

using nlohmann::json;

namespace {

void check_that_they_belong_together(const std::vector<trace_reader>& readers) {
    std::map<int, std::string> files;
    for (const trace_reader& r : readers) {
        const auto [other, is_new] = files.emplace(r.origin().rank, r.file());
        if (!is_new)
            throw std::runtime_error("hvd-trace: " + other->second + " and " + r.file() +
                                     " are both of rank " + std::to_string(r.origin().rank));
        if (r.origin().size != readers.front().origin().size)
            throw std::runtime_error(
                "hvd-trace: " + readers.front().file() + " is of " +
                std::to_string(readers.front().origin().size) + " ranks, and " + r.file() + " of " +
                std::to_string(r.origin().size) + ": they are of different runs");
    }
}

// Microseconds on the clock of rank 0.
void shift(json& event, std::int64_t clock_offset) {
    const auto time = event.find("ts");
    if (time == event.end() || clock_offset == 0) return;
    const std::int64_t nanoseconds = std::llround(time->get<double>() * 1000) - clock_offset;
    *time = double(nanoseconds) / 1000;
}

std::vector<std::string> remarks_on(const std::vector<trace_reader>& readers) {
    std::vector<std::string> remarks;
    for (const trace_reader& r : readers) {
        if (r.has_no_end())
            remarks.push_back(r.file() + " has no end: its process was killed, or still runs" +
                              (r.was_cut() ? "; its last event is cut off" : ""));
        if (r.dropped() > 0)
            remarks.push_back(r.file() + ": its rank dropped " + std::to_string(r.dropped()) +
                              " events");
    }
    const int size = readers.front().origin().size;
    if (std::size_t(size) > readers.size())
        remarks.push_back("files of " + std::to_string(size - int(readers.size())) + " of " +
                          std::to_string(size) + " ranks are missing");
    return remarks;
}

}  // namespace

std::vector<std::string> merge(const std::vector<std::string>& files, std::ostream& out) {
    std::vector<trace_reader> readers;
    for (const std::string& file : files) readers.emplace_back(file);
    check_that_they_belong_together(readers);
    out << "[";
    const char* between = "\n";
    json event;
    for (trace_reader& r : readers)
        while (r.next(event)) {
            event["pid"] = r.origin().rank;
            shift(event, r.origin().clock_offset);
            out << between << event.dump();
            between = ",\n";
        }
    out << "\n]\n";
    return remarks_on(readers);
}

}  // namespace hvd_trace
