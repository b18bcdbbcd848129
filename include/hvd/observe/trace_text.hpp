// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <charconv>
#include <string>

#include "../core/lean/slice.hpp"
#include "json_text.hpp"
#include "trace_ring.hpp"

namespace hvd::inline v0::detail {

inline constexpr std::string_view phase_names[] = {"pack", "communicate", "unpack"};

// Writes the events of a rank in the JSON array format of Chrome's trace viewer, one a line. Each
// event goes to a sink as a whole.
class trace_text {
public:
    explicit trace_text(int rank) : rank_(rank) {}

    struct details {
        std::uint64_t bytes = 0;
        dtype id = dtype::byte;
        std::string_view collective = {};  // of a tensor
        bool failed = false;
    };

    // A span, from its begin to its end.
    const std::string& span(int track, std::string_view name, std::string_view category,
                            std::int64_t begin, std::int64_t end) {
        open('X', track, name, category, begin);
        add(",\"dur\":");
        add_time(end > begin ? end - begin : 0);
        return close();
    }
    const std::string& span(int track, std::string_view name, std::string_view category,
                            std::int64_t begin, std::int64_t end, const details& d) {
        span(track, name, category, begin, end);
        return with(d);
    }
    // The begin of a span whose end is not known yet.
    const std::string& begin(int track, std::string_view name, std::string_view category,
                             std::int64_t time) {
        open('B', track, name, category, time);
        return close();
    }
    const std::string& begin(int track, std::string_view name, std::string_view category,
                             std::int64_t time, const details& d) {
        begin(track, name, category, time);
        return with(d);
    }
    const std::string& end(int track, std::int64_t time, std::string_view how = {}) {
        open('E', track, {}, {}, time);
        if (!how.empty()) add(",\"args\":{\""), add(how), add("\":true}");
        return close();
    }
    const std::string& mark(int track, std::string_view name, std::int64_t time) {
        open('i', track, name, {}, time);
        add(",\"s\":\"t\"");
        return close();
    }

    // Numbers at one time, which have a track by their name. Commas part the names.
    const std::string& counts(std::string_view name, std::string_view names,
                              slice<const std::int64_t> values, std::int64_t time) {
        open('C', 0, name, {}, time);
        add(",\"args\":{");
        for (const std::int64_t& value : values) {
            if (&value != values.data()) add(",");
            const std::size_t end = names.find(',');
            append_json_text(line_, names.substr(0, end));
            add(":"), add_number(value);
            names.remove_prefix(end == names.npos ? names.size() : end + 1);
        }
        add("}");
        return close();
    }

    // Facts about the trace, the rank, or a track.
    const std::string& fact(int track, std::string_view name, std::string_view key,
                            std::string_view value) {
        open_fact(track, name);
        add_key(key);
        append_json_text(line_, value);
        return close_fact();
    }
    const std::string& fact(int track, std::string_view name, std::string_view key,
                            std::int64_t value) {
        open_fact(track, name);
        add_key(key);
        add_number(value);
        return close_fact();
    }
    struct number {
        std::string_view key;
        std::int64_t value;
    };
    const std::string& facts(std::string_view name, slice<const number> numbers,
                             std::string_view key, std::string_view value) {
        open_fact(0, name);
        for (const number& n : numbers) {
            add_key(n.key);
            add_number(n.value);
            add(",");
        }
        add_key(key);
        append_json_text(line_, value);
        return close_fact();
    }

private:
    void open(char kind, int track, std::string_view name, std::string_view category,
              std::int64_t time) {
        line_.assign("{\"ph\":\"");
        line_ += kind;
        add_place(track);
        add(",\"ts\":");
        add_time(time);
        if (!name.empty()) {
            add(",\"name\":");
            append_json_text(line_, name);
        }
        if (!category.empty()) add(",\"cat\":\""), add(category), add("\"");
    }
    void open_fact(int track, std::string_view name) {
        line_.assign("{\"ph\":\"M");
        add_place(track);
        add(",\"name\":\"");
        add(name);
        add("\",\"args\":{");
    }
    const std::string& close_fact() {
        add("}");
        return close();
    }
    void add_place(int track) {
        add("\",\"pid\":");
        add_number(rank_);
        add(",\"tid\":");
        add_number(track);
    }
    const std::string& close() {
        add("}");
        return line_;
    }
    const std::string& with(const details& d) {
        line_.pop_back();
        add(",\"args\":{\"bytes\":");
        add_number(std::int64_t(d.bytes));
        add(",\"type\":\"");
        add(dtype_names[std::size_t(d.id)]);
        add("\"");
        if (!d.collective.empty()) add(",\"collective\":"), append_json_text(line_, d.collective);
        if (d.failed) add(",\"failed\":true");
        add("}");
        return close();
    }

    void add(std::string_view text) { line_.append(text.data(), text.size()); }
    void add_key(std::string_view key) { add("\""), add(key), add("\":"); }
    void add_number(std::int64_t n) {
        char digits[24];
        line_.append(digits, std::to_chars(digits, digits + sizeof digits, n).ptr);
    }
    // Microseconds, with nanoseconds behind the point.
    void add_time(std::int64_t ns) {
        add_number(ns / 1000);
        const auto rest = unsigned(ns % 1000);
        const char fraction[] = {'.', char('0' + rest / 100), char('0' + rest / 10 % 10),
                                 char('0' + rest % 10)};
        line_.append(fraction, sizeof fraction);
    }

    std::string line_;
    const int rank_;
};

}  // namespace hvd::inline v0::detail
