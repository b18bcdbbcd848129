// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <string>
#include <vector>

#include "counts.hpp"
#include "json_text.hpp"

namespace hvd::inline v0 {
namespace detail {

// Rows of text in columns. The first columns are words and stand at the left, the others numbers.
class text_table {
public:
    explicit text_table(std::size_t words) : words_(words) {}

    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

    std::string text() const {
        std::vector<std::size_t> widths;
        for (const auto& row : rows_) {
            if (widths.size() < row.size()) widths.resize(row.size());
            for (std::size_t i = 0; i < row.size(); ++i)
                if (row[i].size() > widths[i]) widths[i] = row[i].size();
        }
        std::string result;
        for (const auto& row : rows_) result += line(row, widths);
        return result;
    }

private:
    std::string line(const std::vector<std::string>& row,
                     const std::vector<std::size_t>& widths) const {
        std::string result;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string blanks(widths[i] - row[i].size(), ' ');
            const bool is_last = i + 1 == row.size();
            result += i > 0 ? "  " : "";
            if (i >= words_) result += blanks;
            result += row[i];
            if (i < words_ && !is_last) result += blanks;
        }
        return result + "\n";
    }

    std::size_t words_;
    std::vector<std::vector<std::string>> rows_;
};

// A number with so many digits behind the point, whatever the locale is.
inline std::string fixed(double number, int digits) {
    char text[400];
    return {text,
            std::to_chars(text, text + sizeof text, number, std::chars_format::fixed, digits).ptr};
}
inline std::string number_text(std::uint64_t number) { return std::to_string(number); }
inline std::string number_text(double number) { return fixed(number, 6); }

// Writes the members of a JSON object.
class json_members {
public:
    explicit json_members(std::string& out) : out_(out) {}

    template <class N>
    void add(std::string_view name, N number) {
        add_name(name);
        append_json_number(out_, number);
    }
    void add(std::string_view name, std::string_view text) {
        add_name(name);
        append_json_text(out_, text);
    }
    void add_name(std::string_view name) {
        out_ += is_first_ ? "" : ",";
        is_first_ = false;
        append_json_text(out_, name);
        out_ += ":";
    }

private:
    std::string& out_;
    bool is_first_ = true;
};

// Empty if nothing is known of them.
inline std::string text_of_late_ranks(const statistics& s) {
    const std::vector<rank_lateness>& ranks = s.lateness();
    if (ranks.empty()) return "";
    text_table table(0);
    table.add({"late rank", "calls", "waited (s)", "mean (us)"});
    for (std::size_t r = 0; r < ranks.size(); ++r)
        table.add(
            {std::to_string(r), std::to_string(ranks[r].calls), fixed(ranks[r].seconds(), 6),
             fixed(ranks[r].calls == 0 ? 0 : ranks[r].seconds() * 1e6 / double(ranks[r].calls),
                   2)});
    return table.text() + "slowest in most of the last steps: rank " +
           std::to_string(s.slowest_rank()) + ", in " + std::to_string(s.steps_of_slowest()) + "\n";
}

}  // namespace detail

/// Returns the counts as a table: a line for each collective and path, with the mean and the
/// longest time of a call, and its bandwidth as nccl-tests counts it. A second table has the ranks
/// that came last, and how long the others have waited for them. It ends with a newline.
/// @snippet tests/docs/snippets.cpp statistics
inline std::string to_text(const statistics& s) {
    using detail::fixed;
    detail::text_table table(2);
    table.add({"collective", "path", "calls", "failed", "bytes", "time (s)", "mean (us)",
               "longest (us)", "algbw (GB/s)", "busbw (GB/s)"});
    for (const call_statistics& e : s.by_path())
        table.add({std::string(e.collective), name_of(e.path), std::to_string(e.calls),
                   std::to_string(e.failed), std::to_string(e.bytes), fixed(e.seconds(), 6),
                   fixed(e.calls == 0 ? 0 : e.seconds() * 1e6 / double(e.calls), 2),
                   fixed(e.longest_seconds() * 1e6, 2), fixed(e.algbw() / 1e9, 3),
                   fixed(e.busbw() / 1e9, 3)});
    return "rank " + std::to_string(s.rank()) + " of " + std::to_string(s.size()) + "\n" +
           table.text() + detail::text_of_late_ranks(s);
}
/// Returns the counts of an engine, one in a line.
/// @snippet tests/docs/snippets.cpp engine_statistics
inline std::string to_text(const engine_statistics& s) {
    detail::text_table table(1);
    detail::each_count(s, [&](const char* name, const char*, detail::count_kind, auto value) {
        table.add({name, detail::number_text(value)});
    });
    return "rank " + std::to_string(s.rank) + " of " + std::to_string(s.size) + "\n" + table.text();
}

/// Returns the counts as a JSON object in one line, with the members `collectives`, an array with
/// an object for each collective and path, and `late_ranks`, with one for each rank.
/// @snippet tests/docs/snippets.cpp statistics
inline std::string to_json(const statistics& s) {
    std::string out = "{";
    detail::json_members all(out);
    all.add("rank", s.rank());
    all.add("size", s.size());
    all.add("calls", s.calls());
    all.add("failed", s.failed());
    all.add("bytes", s.bytes());
    all.add("seconds", s.seconds());
    all.add_name("collectives");
    const char* separator = "[";
    for (const call_statistics& e : s.by_path()) {
        out += separator;
        out += "{";
        separator = ",";
        detail::json_members members(out);
        members.add("collective", e.collective);
        members.add("path", std::string_view(name_of(e.path)));
        detail::each_count(e, [&](const char* name, const char*, detail::count_kind, auto value) {
            members.add(name, value);
        });
        out += "}";
    }
    out += s.by_path().empty() ? "[]" : "]";
    all.add("slowest_rank", s.slowest_rank());
    all.add("steps_of_slowest", s.steps_of_slowest());
    all.add_name("late_ranks");
    out += "[";
    for (std::size_t r = 0; r < s.lateness().size(); ++r) {
        out += r > 0 ? ",{" : "{";
        detail::json_members members(out);
        members.add("rank", r);
        members.add("calls", s.lateness()[r].calls);
        members.add("seconds", s.lateness()[r].seconds());
        out += "}";
    }
    return out + "]}";
}
/// Returns the counts of an engine as a JSON object in one line.
/// @snippet tests/docs/snippets.cpp engine_statistics
inline std::string to_json(const engine_statistics& s) {
    std::string out = "{";
    detail::json_members members(out);
    members.add("rank", s.rank);
    members.add("size", s.size);
    detail::each_count(s, [&](const char* name, const char*, detail::count_kind, auto value) {
        members.add(name, value);
    });
    return out + "}";
}

}  // namespace hvd::inline v0
