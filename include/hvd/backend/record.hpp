// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/op.hpp"
#include "../core/options.hpp"
#include "../kernel/pack.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

enum class collective : std::uint8_t {
    allreduce, reduce, reduce_scatter, broadcast, allgather, gather, scatter, alltoall, barrier, agree,
};

constexpr const char* collective_names[] = {"allreduce", "reduce",  "reduce_scatter", "broadcast", "allgather",
                                            "gather",    "scatter", "alltoall",       "barrier",   "agree"};

// What a rank says when it enters a collective: every rank reads every other's before data moves.
struct record {
    collective kind = collective::barrier;
    bool refused = false;        // `text` says why
    bool fused = false;
    std::uint8_t dimensions = 0;
    dtype id = dtype::byte;
    std::uint8_t op = 0;
    std::uint8_t mode = 0;       // rounding
    std::int32_t root = -1;
    std::uint64_t count = 0;     // what this rank gives, in elements
    std::uint64_t extents[max_dimensions] = {};
    double prescale = 1, postscale = 1;
    std::uint64_t plan = 0;      // number of the plan that runs; 0: none
    bool making_plan = false;    // its agreement: nothing moves
    std::uint64_t content = 0;   // hash over what does not fit here: lists of tensors, checked names
    char name[48] = {};
    char type[24] = {};
    char text[256] = {};

    std::string label() const {
        std::string result = collective_names[std::size_t(kind)];
        if (name[0] != 0) result = detail::text(result, " '", std::string_view(name), "'");
        return result;
    }
};

static_assert(std::is_trivially_copyable_v<record>);

template <std::size_t N>
void store(char (&field)[N], std::string_view value) {
    const std::size_t n = std::min(value.size(), N - 1);
    if (n > 0) std::memcpy(field, value.data(), n);
    field[n] = 0;
}

// FNV-1a, over what ranks compare.
class hash {
public:
    hash& add(std::uint64_t number) {
        for (int byte = 0; byte < 8; ++byte) mix(static_cast<unsigned char>(number >> (8 * byte)));
        return *this;
    }
    hash& add(std::string_view text) {
        for (const char c : text) mix(static_cast<unsigned char>(c));
        return add(text.size());
    }
    hash& add(const tensor_ref& t) {
        add(std::uint64_t(t.id)).add(t.type).add(t.dimensions);
        for (std::size_t d = 0; d < t.dimensions; ++d) add(t.extents[d]);
        return *this;
    }
    std::uint64_t value() const { return state_; }

private:
    void mix(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3u; }
    std::uint64_t state_ = 0xcbf29ce484222325u;
};

// The ways in which records may differ, in the order in which they are told. Feature I4.
struct record_field {
    const char* name;
    bool (*same)(const record&, const record&);
    std::string (*print)(const record&);
};

inline bool counts_agree(const record& r) {
    return r.kind == collective::allreduce || r.kind == collective::reduce ||
           r.kind == collective::reduce_scatter || r.kind == collective::broadcast;
}

inline std::string print_extents(const record& r) {
    std::string result = "[";
    for (std::size_t d = 0; d < r.dimensions; ++d) append(result, text(d == 0 ? "" : ", ", r.extents[d]));
    return result + "]";
}

// Where every rank gives its own number of rows, the rows still have one shape.
inline bool shapes_agree(const record& a, const record& b) {
    if (a.kind == collective::barrier || a.kind == collective::agree || a.kind == collective::scatter) return true;
    if (a.dimensions != b.dimensions) return false;
    return std::equal(a.extents + (counts_agree(a) ? 0 : 1), a.extents + std::max<int>(a.dimensions, 1),
                      b.extents + (counts_agree(a) ? 0 : 1));
}

inline const record_field record_fields[] = {
    {"collective", [](const record& a, const record& b) { return a.kind == b.kind && a.plan == b.plan && a.making_plan == b.making_plan && a.fused == b.fused; },
     [](const record& r) {
         return text(r.making_plan ? "making of a plan: " : "", r.fused ? "fused " : "", r.label(),
                     r.plan != 0 ? text(" of plan ", r.plan) : "");
     }},
    {"element type", [](const record& a, const record& b) { return a.id == b.id && std::strcmp(a.type, b.type) == 0; },
     [](const record& r) { return std::string(r.type[0] != 0 ? std::string_view(r.type) : dtype_name(r.id)); }},
    {"operation", [](const record& a, const record& b) { return a.op == b.op; },
     [](const record& r) { return std::string(op_names[r.op]); }},
    {"rounding", [](const record& a, const record& b) { return a.mode == b.mode; },
     [](const record& r) {
         constexpr const char* names[] = {"none", "toward_zero", "nearest", "down"};
         return std::string(names[r.mode]);
     }},
    {"shape", shapes_agree, print_extents},
    {"count", [](const record& a, const record& b) { return !counts_agree(a) || a.count == b.count; },
     [](const record& r) { return text(r.count); }},
    {"root", [](const record& a, const record& b) { return a.root == b.root; },
     [](const record& r) { return text(r.root); }},
    {"prescale", [](const record& a, const record& b) { return a.prescale == b.prescale; },
     [](const record& r) { return text(r.prescale); }},
    {"postscale", [](const record& a, const record& b) { return a.postscale == b.postscale; },
     [](const record& r) { return text(r.postscale); }},
    {"content", [](const record& a, const record& b) { return a.content == b.content; },
     [](const record& r) {
         return text(r.name[0] != 0 ? text("'", std::string_view(r.name), "' ") : "", r.count, " bytes, hash ", r.content);
     }},
};

// Throws what the records of all ranks make necessary: the same on every rank.
template <class RecordOf>
void check_records(int me, int size, const RecordOf& record_of) {
    const record& mine = record_of(me);
    std::vector<int> refusers;
    for (int r = 0; r < size; ++r)
        if (record_of(r).refused) refusers.push_back(r);
    if (mine.refused) throw usage_error(me, std::string(mine.text));
    if (!refusers.empty()) {
        const int first = refusers.front();
        throw peer_error(me, text("hvd: ", mine.label(), " on rank ", me, ": rank ", first, " refused it: ",
                                  std::string_view(record_of(first).text)), std::move(refusers));
    }
    for (const record_field& field : record_fields) {
        bool same = true;
        for (int r = 0; r < size; ++r) same = same && field.same(record_of(r), record_of(0));
        if (same) continue;
        mismatch_error::table_type table;
        std::string what = text("hvd: ", mine.label(), " on rank ", me, ": ranks disagree on ", field.name, ":");
        for (int r = 0; r < size; ++r) {
            table.emplace_back(r, field.print(record_of(r)));
            append(what, text(r == 0 ? " rank " : ", rank ", r, ": ", table.back().second));
        }
        throw mismatch_error(me, what, field.name, std::move(table));
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
