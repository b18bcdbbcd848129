// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/lean/slice.hpp"
#include "../core/lean/table.hpp"
#include "../core/op.hpp"
#include "../core/options.hpp"
#include "../kernel/pack.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

enum class collective : std::uint8_t {
    allreduce,
    reduce,
    reduce_scatter,
    broadcast,
    allgather,
    gather,
    scatter,
    alltoall,
    barrier,
    agree,
};

constexpr const char* collective_names[] = {"allreduce", "reduce", "reduce_scatter", "broadcast",
                                            "allgather", "gather", "scatter",        "alltoall",
                                            "barrier",   "agree"};

// A rank shows its header when it enters a collective. Every rank reads all headers before data
// moves. The fields that most calls need come first, in one cache line.
struct call_header {
    collective kind = collective::barrier;
    bool refused = false;  // `text` says why
    bool fused = false;
    bool making_plan = false;  // its agreement: nothing moves
    std::uint8_t dimensions = 0;
    dtype id = dtype::byte;
    std::uint8_t op = 0;
    std::uint8_t mode = 0;  // rounding
    bool compares_names = false;
    std::int32_t root = -1;
    std::uint64_t count = 0;  // what this rank gives, in elements
    double prescale = 1, postscale = 1;
    std::uint64_t plan = 0;     // number of the plan that runs; 0: none
    std::uint64_t content = 0;  // hash over what does not fit here: lists of tensors
    std::uint64_t extents[max_dimensions] = {};
    char name[48] = {};
    char type[24] = {};
    char text[256] = {};

    [[gnu::cold]] message label() const {
        if (kind == collective::agree && name[0] != 0) return name;
        const char* const collective = collective_names[std::size_t(kind)];
        return name[0] == 0 ? message(collective) : detail::text(collective, " '", name, "'");
    }
};

static_assert(std::is_trivially_copyable_v<call_header>);

template <std::size_t N>
void copy_text(char (&to)[N], const char (&from)[N]) {
    if (from[0] != 0) std::memcpy(to, from, N);
    else to[0] = 0;
}

// Copies what a header says, and no more: most have no text.
inline void copy_header(call_header& to, const call_header& from) {
    std::memcpy(&to, &from,
                offsetof(call_header, extents) + from.dimensions * sizeof from.extents[0]);
    copy_text(to.name, from.name);
    copy_text(to.type, from.type);
    copy_text(to.text, from.text);
}

// FNV-1a, over what ranks compare.
class hash {
public:
    hash& add(std::uint64_t number) {
        for (int byte = 0; byte < 8; ++byte) mix(static_cast<unsigned char>(number >> (8 * byte)));
        return *this;
    }
    template <class F>
        requires std::is_floating_point_v<F>
    hash& add(F number) {
        return add(__builtin_bit_cast(std::uint64_t, double(number)));
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

inline bool counts_agree(const call_header& r) {
    return r.kind == collective::allreduce || r.kind == collective::reduce ||
           r.kind == collective::reduce_scatter || r.kind == collective::broadcast;
}

[[gnu::cold]] inline message print_extents(const call_header& r) {
    message result = "[";
    for (std::size_t d = 0; d < r.dimensions; ++d) result += text(d == 0 ? "" : ", ", r.extents[d]);
    result += "]";
    return result;
}

// Where every rank gives its own number of rows, the rows still have one shape.
inline bool shapes_agree(const call_header& a, const call_header& b) {
    if (a.kind == collective::barrier || a.kind == collective::agree ||
        a.kind == collective::scatter)
        return true;
    if (a.dimensions != b.dimensions) return false;
    for (std::size_t d = counts_agree(a) ? 0 : 1; d < a.dimensions; ++d)
        if (a.extents[d] != b.extents[d]) return false;
    return true;
}

// The ways in which headers may differ, in the order in which they are told. Feature I4.
enum class field {
    collective,
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

constexpr const char* field_names[] = {"collective", "element type", "operation", "rounding",
                                       "shape",      "count",        "root",      "prescale",
                                       "postscale",  "name",         "content"};

inline field first_difference(const call_header& a, const call_header& b) {
    if (a.kind != b.kind || a.plan != b.plan || a.making_plan != b.making_plan ||
        a.fused != b.fused)
        return field::collective;
    if (a.id != b.id || std::strcmp(a.type, b.type) != 0) return field::element_type;
    if (a.op != b.op) return field::operation;
    if (a.mode != b.mode) return field::rounding;
    if (!shapes_agree(a, b)) return field::shape;
    if (counts_agree(a) && a.count != b.count) return field::count;
    if (a.root != b.root) return field::root;
    if (a.prescale != b.prescale) return field::prescale;
    if (a.postscale != b.postscale) return field::postscale;
    if (a.compares_names && std::strcmp(a.name, b.name) != 0) return field::name;
    if (a.content != b.content) return field::content;
    return field::none;
}

[[gnu::cold]] inline message print_field(const call_header& r, field f) {
    constexpr const char* roundings[] = {"none", "toward_zero", "nearest", "down"};
    switch (f) {
        case field::collective:
            return text(r.making_plan ? "making of a plan: " : "", r.fused ? "fused " : "",
                        r.label(), r.plan != 0 ? text(" of plan ", r.plan) : message());
        case field::element_type:
            return r.type[0] != 0 ? std::string_view(r.type) : dtype_name(r.id);
        case field::operation: return op_names[r.op];
        case field::rounding: return roundings[r.mode];
        case field::shape: return print_extents(r);
        case field::count: return text(r.count);
        case field::root: return text(r.root);
        case field::prescale: return text(r.prescale);
        case field::postscale: return text(r.postscale);
        case field::name: return text("'", r.name, "'");
        case field::content:
            return text(r.name[0] != 0 ? text("'", r.name, "' ") : message(), r.count,
                        r.fused ? " bytes, hash " : " elements, hash ", r.content);
        case field::none: break;
    }
    return {};
}

// Throws what the headers of all ranks make necessary: the same on every rank.
[[gnu::cold, noreturn]] inline void throw_refusal(int me, const call_header* const* headers,
                                                  int size) {
    const call_header& mine = *headers[me];
    if (mine.refused) throw usage_error(me, text(std::string_view(mine.text), " (rank ", me, ")"));
    std::vector<int> refusers;
    for (int r = 0; r < size; ++r)
        if (headers[r]->refused) refusers.push_back(r);
    const int first = refusers.front();
    throw peer_error(me,
                     text("hvd: ", mine.label(), " on rank ", me, ": rank ", first,
                          " refused it: ", std::string_view(headers[first]->text)),
                     std::move(refusers));
}

[[gnu::cold, noreturn]] inline void throw_mismatch(int me, const call_header* const* headers,
                                                   int size, field f) {
    const std::size_t ranks = std::size_t(size);
    detail::table<message> values(ranks);
    detail::table<mismatch_error::entry> table(ranks);
    message what = text("hvd: ", headers[me]->label(), " on rank ", me, ": ranks disagree on ",
                        field_names[int(f)], ":");
    for (std::size_t r = 0; r < ranks; ++r) {
        const message& value = values[r] = print_field(*headers[r], f);
        table[r] = {int(r), value};
        what += text(r == 0 ? " rank " : ", rank ", r, ": ", value);
    }
    throw mismatch_error(me, what, field_names[int(f)], table);
}

inline void check_headers(int me, const call_header* const* headers, int size) {
    for (int r = 0; r < size; ++r)
        if (headers[r]->refused) throw_refusal(me, headers, size);
    field first = field::none;  // of all ranks: what is told is the same everywhere
    for (int r = 1; r < size; ++r)
        if (const field f = first_difference(*headers[r], *headers[0]); f < first) first = f;
    if (first != field::none) [[unlikely]]
        throw_mismatch(me, headers, size, first);
}

inline void check_headers(int me, slice<const call_header> headers) {
    table<const call_header*> pointers(headers.size());
    for (std::size_t r = 0; r < headers.size(); ++r) pointers[r] = &headers[r];
    check_headers(me, pointers.data(), int(headers.size()));
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
