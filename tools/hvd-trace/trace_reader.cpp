// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "trace_reader.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace hvd_trace {

using nlohmann::json;

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
        if (const int version = facts.at("version"); version != 1)
            refuse("it has version " + std::to_string(version) + "; this hvd-trace reads 1");
        origin_ = {facts.at("rank"), facts.at("size"), facts.at("clock_offset_ns")};
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
    if (!event.is_object() || !event.contains("ph") || !event.contains("pid") ||
        (event.contains("ts") && !event["ts"].is_number()))
        refuse("this is no event of a trace");
    try {
        if (event.value("name", "") == "hvd_timeline_end")
            dropped_ = event.at("args").value("dropped", std::uint64_t(0));
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
