// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <span>
#include <string>
#include <vector>

#include "../../core/error.hpp"
#include "rank_set.hpp"
#include "signature.hpp"

namespace hvd::inline v0::detail {

// The words that the ranks of an engine say to each other. A message has a version, a generation
// and any number of words.
enum class engine_word : std::uint8_t {
    // to the parent
    ready,     // number, contributors: all ranks below have this tensor, as it was before
    announce,  // name, groups: all ranks below have this tensor
    joins,     // rank
    bye,       // all ranks below are done with the engine
    asks,      // name
    answer,    // question, ranks that have not submitted the tensor, ranks that do not answer
    // to the children
    define,   // number, name, signature
    run,      // numbers and contributors
    predict,  // units of numbers
    refuse,   // name, ranks, field, text, values
    joined,   // rank
    reset,
    question,  // question, name
    missing,   // name, text, ranks
    // to both
    ended,  // rank, text, ranks
};
constexpr std::uint8_t last_word = std::uint8_t(engine_word::ended);

// Writes a message. Numbers are little endian, as short as they can be.
class message_writer {
public:
    explicit message_writer(std::uint32_t generation) {
        bytes_.push_back(std::byte(version));
        add(generation);
    }

    static constexpr std::uint8_t version = 2;

    message_writer& begin(engine_word w) {
        bytes_.push_back(std::byte(w));
        return *this;
    }
    message_writer& add(std::uint64_t n) {
        for (; n >= 0x80; n >>= 7) bytes_.push_back(std::byte(n | 0x80));
        bytes_.push_back(std::byte(n));
        return *this;
    }
    message_writer& add(double x) {
        const auto bits = __builtin_bit_cast(std::uint64_t, x);
        for (int i = 0; i < 8; ++i) bytes_.push_back(std::byte(bits >> (8 * i)));
        return *this;
    }
    message_writer& add(std::string_view text) {
        add(text.size());
        const auto* const from = reinterpret_cast<const std::byte*>(text.data());
        bytes_.insert(bytes_.end(), from, from + text.size());
        return *this;
    }
    message_writer& add(const rank_set& ranks) {
        add(ranks.ranges().size());
        for (const auto& [first, last] : ranks.ranges())
            add(std::uint64_t(first)).add(std::uint64_t(last));
        return *this;
    }
    message_writer& add(const signature& s) {
        const call_header& c = s.call;
        add(std::uint64_t(c.kind)).add(std::uint64_t(c.refused)).add(std::uint64_t(c.fused));
        add(std::uint64_t(c.id)).add(c.op).add(c.mode).add(std::uint64_t(c.root + 1));
        add(c.count).add(c.prescale).add(c.postscale).add(c.content).add(c.dimensions);
        for (std::size_t d = 0; d < c.dimensions; ++d) add(c.extents[d]);
        add(std::string_view(c.type)).add(std::string_view(c.text));
        add(std::uint64_t(s.where)).add(std::uint64_t(std::uint32_t(s.priority)));
        return add(s.bytes).add(std::uint64_t(s.fuses));
    }
    message_writer& add(std::uint8_t n) { return add(std::uint64_t(n)); }
    message_writer& add(std::uint32_t n) { return add(std::uint64_t(n)); }
    message_writer& add(int n) { return add(std::uint64_t(std::uint32_t(n))); }

    // Adds words of another message.
    void append(std::span<const std::byte> words) {
        bytes_.insert(bytes_.end(), words.begin(), words.end());
    }

    std::vector<std::byte> take() { return std::move(bytes_); }

private:
    std::vector<std::byte> bytes_;
};

// Reads a message that came from outside. It throws usage_error for what no rank writes, and makes
// nothing larger than the message is.
class message_reader {
public:
    explicit message_reader(std::span<const std::byte> bytes) : bytes_(bytes) {
        if (next() != message_writer::version) refuse("another version");
        generation_ = std::uint32_t(number(UINT32_MAX));
    }

    std::uint32_t generation() const { return generation_; }
    std::size_t position() const { return at_; }
    bool at_end() const { return at_ == bytes_.size(); }

    engine_word next_word() {
        const std::uint8_t w = next();
        if (w > last_word) refuse("an unknown word");
        return engine_word(w);
    }
    std::uint64_t number(std::uint64_t most = UINT64_MAX) {
        std::uint64_t n = 0;
        for (int shift = 0;; shift += 7) {
            const std::uint8_t b = next();
            if (shift > 63 || (shift == 63 && b > 1)) refuse("a number is too long");
            n |= std::uint64_t(b & 0x7f) << shift;
            if ((b & 0x80) == 0) break;
        }
        if (n > most) refuse("a number is out of range");
        return n;
    }
    int rank(int size) { return int(number(std::uint64_t(size) - 1)); }
    double real() {
        std::uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits |= std::uint64_t(next()) << (8 * i);
        return __builtin_bit_cast(double, bits);
    }
    std::string_view text(std::size_t most = SIZE_MAX) {
        const std::size_t n = count();
        if (n > most) refuse("a text is too long");
        const auto* const from = reinterpret_cast<const char*>(bytes_.data() + at_);
        at_ += n;
        return {from, n};
    }
    // The number of parts that follow, each of which takes a byte at least.
    std::size_t count() {
        const std::uint64_t n = number();
        if (n > bytes_.size() - at_) refuse("it is shorter than it says");
        return std::size_t(n);
    }

    rank_set ranks(int size) {
        rank_set result;
        for (std::size_t n = count(); n > 0; --n) {
            const int first = rank(size), last = rank(size);
            if (last < first) refuse("a range of ranks is wrong");
            result.add(first, last);
        }
        return result;
    }
    detail::signature signature(int size) {
        detail::signature s;
        call_header& c = s.call;
        c.kind = collective(number(std::size(collective_table) - 1));
        c.refused = number(1) != 0;
        c.fused = number(1) != 0;
        c.id = dtype(number(std::uint64_t(dtype::user)));
        c.op = std::uint8_t(number(std::size(op_names) - 1));
        c.mode = std::uint8_t(number(std::size(rounding_names) - 1));
        c.root = int(number(std::uint64_t(size))) - 1;
        c.count = number();
        c.prescale = real();
        c.postscale = real();
        c.content = number();
        c.dimensions = std::uint8_t(number(max_dimensions));
        for (std::size_t d = 0; d < c.dimensions; ++d) c.extents[d] = number();
        store(c.type, text(sizeof c.type - 1));
        store(c.text, text(sizeof c.text - 1));
        s.where = tensor_memory(number(1));
        s.priority = std::int32_t(number(UINT32_MAX));
        s.bytes = number();
        s.fuses = number(1) != 0;
        return s;
    }

    [[noreturn]] void refuse(const char* why) const {
        throw usage_error(-1, detail::text("hvd: a message of an engine is wrong at byte ", at_,
                                           " of ", bytes_.size(), ": ", why));
    }

private:
    std::uint8_t next() {
        if (at_ == bytes_.size()) refuse("it ends too early");
        return std::uint8_t(bytes_[at_++]);
    }

    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    std::uint32_t generation_ = 0;
};

}  // namespace hvd::inline v0::detail
