// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../core/error.hpp"
#include "../core/lean/slice.hpp"
#include "../core/lean/table.hpp"
#include "../core/op.hpp"
#include "call_header.hpp"
#include "not_finite_input.hpp"

namespace hvd::inline v0::detail {

inline bool shapes_agree(shape_rule rule, const call_header& a, const call_header& b) {
    if (rule == shape_rule::any) return true;
    if (a.dimensions != b.dimensions) return false;
    for (std::size_t d = rule == shape_rule::rows ? 1 : 0; d < a.dimensions; ++d)
        if (a.extents[d] != b.extents[d]) return false;
    return true;
}

// An agreement is known by its name, every other call by its kind.
inline bool calls_agree(const call_header& a, const call_header& b) {
    if (a.kind != b.kind || a.plan != b.plan || a.making_plan != b.making_plan ||
        a.fused != b.fused)
        return false;
    return a.kind != collective::agree || std::strcmp(a.name, b.name) == 0;
}

// The ways in which headers may differ. An error names the first one.
enum class field {
    collective,
    memory,  // of the host, or of a device: no header says it
    element_type,
    operation,
    rounding,
    shape,
    count,
    root,
    prescale,
    postscale,
    name,
    content,
    none
};

constexpr const char* field_names[] = {"collective", "memory",    "element type", "operation",
                                       "rounding",   "shape",     "count",        "root",
                                       "prescale",   "postscale", "name",         "content"};

// Ranks that give no number agree.
constexpr bool scales_agree(double a, double b) {
    return is_nan(a) || is_nan(b) ? is_nan(a) && is_nan(b) : a == b;
}

// The content of an agreement is not compared here: agree_on() finds the value that differs.
inline field first_difference(const call_header& a, const call_header& b) {
    if (!calls_agree(a, b)) return field::collective;
    if (a.id != b.id || std::strcmp(a.type, b.type) != 0) return field::element_type;
    if (a.op != b.op) return field::operation;
    if (a.mode != b.mode) return field::rounding;
    const shape_rule rule = collective_table[std::size_t(a.kind)].shapes;
    if (!shapes_agree(rule, a, b)) return field::shape;
    if (rule == shape_rule::equal && a.count != b.count) return field::count;
    if (a.root != b.root) return field::root;
    if (!scales_agree(a.prescale, b.prescale)) return field::prescale;
    if (!scales_agree(a.postscale, b.postscale)) return field::postscale;
    if ((a.compares_names || b.compares_names) && std::strcmp(a.name, b.name) != 0)
        return field::name;
    if (a.kind != collective::agree && a.content != b.content) return field::content;
    return field::none;
}

template <class List>
[[gnu::cold]] message print_list(const List& numbers) {
    message result = "[";
    for (std::size_t i = 0; i < numbers.size(); ++i)
        result += text(i == 0 ? "" : ", ", numbers.data()[i]);
    result += "]";
    return result;
}

constexpr const char* rounding_names[] = {"none", "toward_zero", "nearest", "down"};

[[gnu::cold]] inline message print_field(const call_header& h, field f) {
    switch (f) {
        case field::collective:
            return text(h.making_plan ? "making of a plan: " : "", h.fused ? "fused " : "",
                        h.label(), h.plan != 0 ? text(" of plan ", h.plan) : message());
        case field::element_type:
            return h.type[0] != 0 ? std::string_view(h.type) : dtype_name(h.id);
        case field::operation: return op_names[h.op];
        case field::rounding: return rounding_names[h.mode];
        case field::shape: return print_list(slice<const std::uint64_t>(h.extents, h.dimensions));
        case field::count: return text(h.count);
        case field::root: return text(h.root);
        case field::prescale: return text(h.prescale);
        case field::postscale: return text(h.postscale);
        case field::name: return text("'", h.name, "'");
        case field::content:
            return text(h.name[0] != 0 ? text("'", h.name, "' ") : message(), h.count,
                        h.fused ? " bytes, hash " : " elements, hash ", h.content);
        case field::memory:
        case field::none: break;
    }
    return {};
}

// All headers of a call, by rank: in one table, or where pointers say.
class header_list {
public:
    header_list(const call_header* const* pointers, std::size_t size)
        : pointers_(pointers), size_(size) {}
    header_list(slice<const call_header> headers)
        : headers_(headers.data()), size_(headers.size()) {}

    std::size_t size() const { return size_; }
    const call_header& operator[](std::size_t rank) const {
        return pointers_ != nullptr ? *pointers_[rank] : headers_[rank];
    }

private:
    const call_header* const* pointers_ = nullptr;
    const call_header* headers_ = nullptr;
    std::size_t size_;
};

// The rank that refuses throws its reason, the others the reason of the first that does. Inputs
// that are not finite come after all other reasons, and all ranks throw the same about the first.
[[gnu::cold, noreturn]] inline void throw_refusal(int me, header_list headers) {
    const call_header& mine = headers[std::size_t(me)];
    if (mine.refused && !mine.not_finite)
        throw usage_error(me, text(std::string_view(mine.text), " (rank ", me, ")"));
    std::vector<int> refusers;
    std::size_t source = headers.size();
    for (std::size_t r = headers.size(); r-- > 0;)
        if (headers[r].not_finite) source = r;
    for (std::size_t r = 0; r < headers.size(); ++r)
        if (headers[r].refused && !headers[r].not_finite) refusers.push_back(int(r));
    if (refusers.empty()) throw_not_finite(me, int(source), mine, headers[source]);
    const int first = refusers.front();
    throw peer_error(me,
                     text("hvd: ", mine.label(), " on rank ", me, ": rank ", first,
                          " refused it: ", std::string_view(headers[std::size_t(first)].text)),
                     std::move(refusers));
}

enum class table_style { one_line, rows };

// So many ranks are told one by one, and so many groups of them.
inline constexpr std::size_t most_told = 16;

// The ranks of each value, in the order of their first ones: "ranks 0-6, 8-511: 0.1.0, rank 7: …".
[[gnu::cold]] inline message grouped(slice<const mismatch_error::entry> values, const char* first,
                                     const char* next) {
    message all;
    table<bool> told(values.size());
    std::size_t groups = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (told[i]) continue;
        if (++groups > most_told) return text(all, next, "and others");
        message ranks;
        std::size_t members = 0;
        for (std::size_t r = i; r < values.size(); ++r) {
            if (values[r].second != values[i].second) continue;
            const std::size_t begin = r;
            while (r + 1 < values.size() && values[r + 1].second == values[i].second &&
                   values[r + 1].first == values[r].first + 1)
                told[++r] = true;
            members += r - begin + 1;
            ranks += text(ranks.empty() ? "" : ", ", values[begin].first);
            if (r > begin) ranks += text("-", values[r].first);
            told[begin] = true;
        }
        all += text(groups == 1 ? first : next, members == 1 ? "rank " : "ranks ", ranks, ": ",
                    values[i].second);
    }
    return all;
}

// Throws mismatch_error with a table of ranks and their values.
[[gnu::cold, noreturn]] inline void throw_mismatch(int me, std::string_view call,
                                                   std::string_view field,
                                                   slice<const mismatch_error::entry> values,
                                                   table_style style) {
    message what = text("hvd: ", call, " on rank ", me, ": ranks disagree on ", field, ":");
    const bool in_rows = style == table_style::rows;
    const char *first = in_rows ? "\n  " : " ", *next = in_rows ? "\n  " : ", ";
    if (values.size() > most_told) {
        what += grouped(values, first, next);
    } else {
        for (std::size_t i = 0; i < values.size(); ++i)
            what += text(i == 0 ? first : next, "rank ", values[i].first, ": ", values[i].second);
    }
    throw mismatch_error(me, what, field, values);
}

// Throws unless all ranks gave the same value; `values` are by rank, and known to every rank.
inline void require_equal(int me, std::string_view call, std::string_view field,
                          slice<const message> values) {
    bool equal = true;
    table<mismatch_error::entry> entries(values.size());
    for (std::size_t r = 0; r < values.size(); ++r) {
        entries[r] = {int(r), values[r]};
        equal = equal && entries[r].second == entries[0].second;
    }
    if (!equal) [[unlikely]]
        throw_mismatch(me, call, field, entries, table_style::rows);
}

// A call may say of what its content is a hash: "name value" on each line of its text, which only a
// refusal needs otherwise. Returns line n, without its end.
[[gnu::cold]] inline std::string_view content_line(const call_header& h, int n) {
    std::string_view rest(h.text);
    for (; n > 0 && !rest.empty(); --n)
        rest.remove_prefix(rest.find('\n') < rest.size() ? rest.find('\n') + 1 : rest.size());
    return rest.substr(0, rest.find('\n'));
}

// Throws with the first line in which the contents of the ranks differ, if they have any.
[[gnu::cold]] inline void check_content_lines(int me, header_list headers) {
    for (int n = 0;; ++n) {
        std::string_view name;
        bool equal = true;
        for (std::size_t r = 0; r < headers.size(); ++r) {
            const std::string_view line = content_line(headers[r], n);
            equal = equal && line == content_line(headers[0], n);
            if (name.empty()) name = line.substr(0, line.find(' '));
        }
        if (name.empty()) return;
        if (equal) continue;
        table<message> values(headers.size());
        table<mismatch_error::entry> entries(headers.size());
        for (std::size_t r = 0; r < headers.size(); ++r) {
            const std::string_view line = content_line(headers[r], n);
            values[r] = line.size() > name.size() ? message(line.substr(name.size() + 1))
                                                  : message(name_of(headers[r].kind));
            entries[r] = {int(r), values[r]};
        }
        throw_mismatch(me, headers[std::size_t(me)].label(), name, entries, table_style::one_line);
    }
}

[[gnu::cold, noreturn]] inline void throw_difference(int me, header_list headers, field f) {
    if (f == field::content) check_content_lines(me, headers);
    table<message> values(headers.size());
    table<mismatch_error::entry> entries(headers.size());
    for (std::size_t r = 0; r < headers.size(); ++r) {
        values[r] = print_field(headers[r], f);
        entries[r] = {int(r), values[r]};
    }
    throw_mismatch(me, headers[std::size_t(me)].label(), field_names[int(f)], entries,
                   table_style::one_line);
}

// Throws on every rank if a rank refuses the call, or if the headers of two ranks differ. All ranks
// name the same field: the first one in which any two headers differ.
inline void check_headers(int me, const call_header* const* headers, int size) {
    for (int r = 0; r < size; ++r)
        if (headers[r]->refused) throw_refusal(me, {headers, std::size_t(size)});
    field first = field::none;
    for (int r = 1; r < size; ++r)
        if (const field f = first_difference(*headers[r], *headers[0]); f < first) first = f;
    if (first != field::none) [[unlikely]]
        throw_difference(me, {headers, std::size_t(size)}, first);
}

// The same for headers in one table.
[[gnu::cold]] inline void check_headers(int me, slice<const call_header> headers) {
    field first = field::none;
    for (const call_header& h : headers) {
        if (h.refused) throw_refusal(me, headers);
        if (const field f = first_difference(h, headers[0]); f < first) first = f;
    }
    if (first != field::none) throw_difference(me, headers, first);
}

}  // namespace hvd::inline v0::detail
