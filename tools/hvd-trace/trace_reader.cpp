// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "trace_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace hvd_trace {

using nlohmann::json;

namespace {

// A time that is shifted to another clock is a number of nanoseconds, and so is the difference of
// two of them: 2^62 of them are 146 years.
constexpr std::int64_t most_nanoseconds = std::int64_t(1) << 62;
constexpr double most_microseconds = 4e15;
// Events of hvd have few lists. Writing lists in lists takes the stack for each in another.
constexpr std::ptrdiff_t most_brackets = 1000;

bool is_shallow(std::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; }) <=
           most_brackets;
}

bool is_event(const json& event) {
    if (!event.is_object() || !event.contains("ph") || !event.contains("pid")) return false;
    const auto time = event.find("ts");
    return time == event.end() ||
           (time->is_number() && std::abs(time->get<double>()) <= most_microseconds);
}

}  // namespace

trace_reader::trace_reader(const std::string& file) : file_(file) {
    if (std::filesystem::is_directory(file)) refuse("it is a folder");
    stream_.open(file, std::ios::binary);
    if (!stream_) refuse(std::string("it can't be opened: ") + std::strerror(errno));
    if (!next_line()) refuse("it is empty");
    if (line_ != "[") refuse("it does not begin with a line '[', as a timeline of hvd does");
    if (!next_line()) refuse("it ends before its first event");
    read_origin();
}

void trace_reader::read_origin() {
    const json first = parse();
    if (first.is_discarded()) refuse("its first event is cut off");
    try {
        if (first.at("name") != "hvd_timeline") refuse("its first event is not 'hvd_timeline'");
        const json& facts = first.at("args");
        const auto number = [&](const char* name, std::int64_t least, std::int64_t most) {
            const json& fact = facts.at(name);
            const bool fits = fact.is_number_unsigned() ? fact <= std::uint64_t(most)
                                                        : fact.is_number_integer() && fact >= least;
            if (!fits)
                refuse(std::string("its first event lacks a fact: ") + name + " is no number of " +
                       std::to_string(least) + " to " + std::to_string(most));
            return fact.get<std::int64_t>();
        };
        if (const auto version = number("version", 0, INT_MAX); version != 1)
            refuse("it has version " + std::to_string(version) + "; this hvd-trace reads 1");
        origin_ = {int(number("rank", INT_MIN, INT_MAX)), int(number("size", INT_MIN, INT_MAX)),
                   number("clock_offset_ns", -most_nanoseconds, most_nanoseconds)};
    } catch (const json::exception& e) {
        refuse(std::string("its first event lacks a fact: ") + e.what());
    }
    if (origin_.rank < 0 || origin_.rank >= origin_.size)
        refuse("it is of rank " + std::to_string(origin_.rank) + " of " +
               std::to_string(origin_.size));
}

bool trace_reader::next(json& event) {
    if (ended_ || !next_line()) return false;
    if (line_ == "]") {
        ended_ = true;
        if (next_line()) refuse("something follows the end of the trace");
        return false;
    }
    event = parse();
    if (event.is_discarded()) {
        cut_ = true;
        return false;
    }
    if (!is_event(event)) refuse("this is no event of a trace");
    try {
        if (event.value("name", "") == "hvd_timeline_end") {
            const json& dropped = event.at("args").value("dropped", json(0u));
            if (!dropped.is_number_unsigned()) refuse("this is no event of a trace");
            dropped_ = dropped.get<std::uint64_t>();
        }
    } catch (const json::exception& e) {
        refuse(std::string("this is no event of a trace: ") + e.what());
    }
    return true;
}

bool trace_reader::next_line() {
    at_ = next_;
    if (!std::getline(stream_, line_)) return false;
    is_last_ = stream_.eof();
    next_ = at_ + line_.size() + (is_last_ ? 0 : 1);
    return true;
}

// An event in the last line may be cut off; then the value is discarded.
json trace_reader::parse() {
    std::string_view text = line_;
    if (text.ends_with(',')) text.remove_suffix(1);
    if (!is_shallow(text))
        refuse("this is no event of a trace: it has more than " + std::to_string(most_brackets) +
               " lists");
    try {
        return json::parse(text);
    } catch (const json::parse_error& e) {
        if (is_last_) return json(json::value_t::discarded);
        throw not_a_trace(file_, at_ + (e.byte > 0 ? e.byte - 1 : 0),
                          std::string("this is no event of a trace: ") + e.what());
    } catch (const json::exception& e) {  // a number that is too large
        refuse(std::string("this is no event of a trace: ") + e.what());
    }
}

}  // namespace hvd_trace
