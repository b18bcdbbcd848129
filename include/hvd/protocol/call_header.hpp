// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "../core/dtype.hpp"
#include "../core/lean/finite.hpp"
#include "../core/lean/text.hpp"
#include "../core/options.hpp"
#include "../kernel/pack.hpp"

namespace hvd::inline v0::detail {

enum class collective : std::uint8_t {
    allreduce,
    reduce,
    reduce_scatter,
    scan,
    exscan,
    broadcast,
    allgather,
    gather,
    scatter,
    alltoall,
    barrier,
    agree,
    send,
    recv,
};

// A message is a call of two ranks: the one that makes it, and the `root` of its header.
constexpr bool is_message(collective kind) {
    return kind == collective::send || kind == collective::recv;
}

// No rank leaves such a call before all have come.
constexpr bool all_wait_for_all(collective kind) {
    return kind == collective::allreduce || kind == collective::reduce_scatter ||
           kind == collective::allgather || kind == collective::alltoall ||
           kind == collective::barrier;
}

// The rules by which ranks compare the shapes of their tensors.
enum class shape_rule : std::uint8_t {
    equal,  // the whole shape, and so the count
    rows,   // ranks may give different numbers of rows; a row has one shape
    any,    // one rank gives the tensor, or there is none
};

struct collective_traits {
    const char* name;
    shape_rule shapes;
};

// One row for each collective, in the order of the enumeration.
constexpr collective_traits collective_table[] = {
    {"allreduce", shape_rule::equal},      {"reduce", shape_rule::equal},
    {"reduce_scatter", shape_rule::equal}, {"scan", shape_rule::equal},
    {"exscan", shape_rule::equal},         {"broadcast", shape_rule::equal},
    {"allgather", shape_rule::rows},       {"gather", shape_rule::rows},
    {"scatter", shape_rule::any},          {"alltoall", shape_rule::rows},
    {"barrier", shape_rule::any},          {"agree", shape_rule::any},
    {"send", shape_rule::equal},           {"recv", shape_rule::equal},
};

constexpr const char* name_of(collective kind) { return collective_table[std::size_t(kind)].name; }

// A time in two bytes, to a thousandth.
struct short_span {
    std::uint16_t bits = 0;

    static short_span of(std::int64_t nanoseconds) {
        std::uint64_t left = nanoseconds > 0 ? std::uint64_t(nanoseconds) : 1;
        unsigned halved = 0;
        for (; left >= 1U << 11; left >>= 1) ++halved;
        if (halved > 31) return {UINT16_MAX};
        return {std::uint16_t(halved << 11 | left)};
    }
    // 0 if there is none.
    std::int64_t nanoseconds() const { return std::int64_t(bits & 0x7ff) << (bits >> 11); }
};

// A rank shows its header when it enters a collective. Every rank reads all headers before data
// moves. The fields that most calls need come first. Extents that are not used, and the bytes
// behind the ends of the texts, have no value: a call would spend more time on zeros than on its
// checks.
struct call_header {
    collective kind = collective::barrier;
    bool refused = false;  // `text` is the reason
    bool fused = false;
    bool making_plan = false;  // the agreement on a plan: no data moves
    std::uint8_t dimensions = 0;
    dtype id = dtype::byte;
    std::uint8_t op = 0;
    std::uint8_t mode = 0;  // rounding
    bool compares_names = false;
    bool not_finite = false;  // refused since an input is not finite: see not_finite_input.hpp
    // How long this rank was in the call before, if its observer wants to know; else 0. Nobody
    // compares it.
    std::uint16_t took = 0;  // a short_span
    std::int32_t root = -1;
    std::uint64_t count = 0;  // elements that this rank gives
    double prescale = 1, postscale = 1;
    std::uint64_t plan = 0;     // number of the plan that runs; 0: none
    std::uint64_t content = 0;  // hash of everything that has no field, such as a list of tensors
    std::uint64_t extents[max_dimensions];
    char name[48];
    char type[24];
    char text[256];

    call_header() { name[0] = type[0] = text[0] = 0; }

    bool is_sent() const { return kind == collective::send; }

    // The first reason wins. The peers get it as a peer_error.
    [[gnu::cold, gnu::noinline]] void refuse(std::string_view why) {
        if (refused) return;
        refused = true;
        store(text, why);
    }

    [[gnu::cold]] message label() const {
        if (kind == collective::agree && name[0] != 0) return name;
        const char* const collective = name_of(kind);
        message said =
            name[0] == 0 ? message(collective) : detail::text(collective, " '", name, "'");
        if (is_message(kind)) said += detail::text(is_sent() ? " to rank " : " from rank ", root);
        return said;
    }
};

static_assert(std::is_trivially_copyable_v<call_header>);

inline void copy_text(char* to, const char* from, std::size_t size) {
    if (from[0] != 0) std::memcpy(to, from, size);
    else to[0] = 0;
}

// Leaves out the texts and extents that a header does not use: most headers have none.
inline void copy_header(call_header& to, const call_header& from) {
    std::memcpy(static_cast<void*>(&to), &from, offsetof(call_header, extents));
    for (std::size_t d = 0; d < from.dimensions; ++d) to.extents[d] = from.extents[d];
    copy_text(to.name, from.name, sizeof to.name);
    copy_text(to.type, from.type, sizeof to.type);
    copy_text(to.text, from.text, sizeof to.text);
}

// The name of a call in an epoch of a training.
[[gnu::cold]] inline message name_in_epoch(std::uint64_t epoch, std::string_view name) {
    return text("epoch ", epoch, name.empty() ? "" : ": ", name);
}

// Puts the epoch before the name of a call that is made again and again. Ranks compare it then.
[[gnu::cold]] inline void enter_epoch(call_header& h, std::uint64_t epoch, std::string_view name) {
    store(h.name, name_in_epoch(epoch, name));
    h.compares_names = true;
}

// FNV-1a, over everything that ranks compare.
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

// The fields of a header that ranks compare, in so few bytes that they fit into a cache line beside
// the data. If the digests of two headers are the same, so are the fields: kind, element type,
// operation, rounding, dimensions and count are in it as they are, the others in one sum. In the
// sum each of them has an odd factor, so that headers that differ in one number never have the
// same digest. Headers with different digests may still agree, and are compared by their fields.
struct call_digest {
    std::uint64_t count = 0;
    std::uint64_t rest = 0;
    std::uint32_t signs = 0;

    bool operator==(const call_digest&) const = default;

    // The sign of a header that must be looked at: it refuses the call.
    static constexpr std::uint32_t open = 0x80;
};

[[gnu::always_inline]] inline call_digest digest_of(const call_header& h) {
    static_assert(sizeof collective_table / sizeof collective_table[0] <= 16 &&
                  max_dimensions <= 15);
    constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u, second = factor * factor,
                            third = second * factor, fourth = third * factor;
    // agree_on() compares the contents of an agreement.
    const std::uint64_t content = h.kind == collective::agree ? 0 : h.content;
    std::uint64_t rest = std::uint32_t(h.root) + content * factor +
                         __builtin_bit_cast(std::uint64_t, h.prescale) * second +
                         __builtin_bit_cast(std::uint64_t, h.postscale) * third + h.plan * fourth;
    const bool has_shape = h.kind != collective::scatter;  // there it is the root's alone
    const std::size_t dimensions = has_shape ? h.dimensions : 0;
    for (std::size_t d = 0; d < dimensions; ++d) rest = rest * factor + h.extents[d];
    if (h.type[0] != 0) rest = rest * factor + hash().add(h.type).value();
    if (h.name[0] != 0 && (h.compares_names || h.kind == collective::agree))
        rest = rest * factor + hash().add(h.name).value();
    const std::uint32_t signs = std::uint32_t(h.kind) | (h.fused ? 0x10 : 0) |
                                (h.making_plan ? 0x20 : 0) | (h.compares_names ? 0x40 : 0) |
                                (h.refused ? call_digest::open : 0) | std::uint32_t(h.id) << 8 |
                                std::uint32_t(h.op) << 16 | std::uint32_t(dimensions) << 24 |
                                std::uint32_t(h.mode) << 28;
    return {has_shape ? h.count : 0, rest, signs};
}

}  // namespace hvd::inline v0::detail
