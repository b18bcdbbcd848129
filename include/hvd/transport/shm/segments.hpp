// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/lean/atomic.hpp"
#include "../../core/lean/handles.hpp"
#include "../../platform/shared_memory.hpp"
#include "../../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

// An address that every rank of a node understands: a segment, which each rank has mapped at an
// address of its own, and an offset into it. Segment 0 stands for memory that other ranks can't
// reach.
struct place {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;

    explicit operator bool() const { return segment != 0; }
};

// The segments that the ranks of one communicator have in common: its own, and those of the
// communicator that it was derived from, which has more ranks. A rank that no longer needs a
// segment can't know whether its peers read there. So it stays mapped until all ranks have said, in
// the making of a later one, that they have given it up.
//
// A part of each segment is this rank's own. The rank may make it private, which ends its being
// reached by others. Several threads may look here at the same time, while one makes a segment.
class segments : public counted {
public:
    explicit segments(shared<segments> parent = {}) : parent_(std::move(parent)) {}

    ~segments() {
        for (segment* s = made_; s != nullptr;) delete std::exchange(s, s->made_before);
    }

    // For ranks of one process: one segment, which is all memory.
    static shared<segments> of_this_process() {
        auto all = shared<segments>::make();
        all->prepare();
        all->begin();
        all->publish(1, 0, SIZE_MAX);
        return all;
    }

    // A segment is made in three steps, in the order of the communicator's calls. The first is the
    // only one that may fail on a rank alone.
    void prepare() {
        if (spare_ != nullptr) return;
        auto* const s = new segment;
        s->made_before = std::exchange(made_, s);
        spare_ = s;
    }
    // All ranks enter the segment into the order in which they ask about them. One that gets no
    // memory has given it up.
    void begin() noexcept {
        segment* const s = std::exchange(spare_, nullptr);
        push_back(s);
        newest_ = s;
        refusal_ = 0;
        history_.add(std::uint64_t(1));
    }
    // Adds the memory, in which [begin, end) is this rank's own part.
    void add(std::uint64_t id, shared_memory memory, std::size_t bytes, std::size_t begin,
             std::size_t end) noexcept {
        newest_->memory = std::move(memory);
        newest_->begin = begin;
        newest_->end = end;
        publish(id, reinterpret_cast<std::uintptr_t>(newest_->memory.data()), bytes);
    }

    // The error of the system where it has refused this rank its part of the newest segment, or 0.
    int refusal() const { return refusal_; }
    void refused_by(int code) noexcept { refusal_ = code; }

    // Ranks of equal history number their segments alike.
    std::uint64_t history() const { return history_.value(); }
    // Bit i is set if this rank has given up the i-th segment of the order. The first 64 are asked
    // about.
    std::uint64_t given_up() const {
        std::uint64_t bits = 0, bit = 1;
        for (const segment* s = oldest_; s != nullptr && bit != 0; s = s->later, bit <<= 1)
            if (s->is_given_up.load() != 0) bits |= bit;
        return bits;
    }
    // Gives back the addresses of those that all ranks have given up. The others go to the end of
    // the order, so that each has its turn.
    [[gnu::cold]] void unmap(std::uint64_t given_up_by_all) noexcept {
        segment* const last = youngest_;
        for (int i = 0; i < 64 && oldest_ != nullptr; ++i) {
            segment* const s = pop_front();
            if ((given_up_by_all >> i & 1) == 0) push_back(s);
            else forget(*s);
            if (s == last) break;
        }
        history_.add(given_up_by_all);
    }

    place find(const std::byte* data, std::size_t bytes) const {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next.load())
                if (address >= here->base && address - here->base <= here->bytes &&
                    bytes <= here->bytes - (address - here->base) &&
                    here->is_private.load_in_order() == 0)
                    return {here->id, address - here->base};
        return {};
    }

    // Null if there are not so many bytes.
    std::byte* at(const place& p, std::size_t bytes) const {
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next.load())
                if (here->id == p.segment && p.offset <= here->bytes &&
                    bytes <= here->bytes - p.offset)
                    return reinterpret_cast<std::byte*>(here->base + p.offset);
        return nullptr;
    }

    // True if this rank's part of a place's segment has become private since the place was found.
    bool has_lost(const place& p) const {
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next.load())
                if (here->id == p.segment) return here->is_private.load_in_order() != 0;
        return false;
    }

    // The number of parts that have become private.
    std::uint64_t losses() const {
        std::uint64_t n = 0;
        for (const segments* s = this; s != nullptr; s = s->parent_.get()) n += s->lost_.load();
        return n;
    }

    // Takes this rank's parts away from the peers, one of which may reach there still. The parts
    // keep their addresses and bytes.
    [[gnu::cold]] void make_private() noexcept {
        for (segments* s = this; s != nullptr; s = s->parent_.get())
            for (segment* here = s->first_.load(); here != nullptr; here = here->next.load())
                if (here->begin < here->end && here->is_private.exchange(1) == 0) {
                    s->count_loss();
                    here->memory.make_private(here->begin, here->end);
                    here->memory.close_file();
                }
    }

    // Gives this rank's part at `data` back to the system. No peer reaches there any more, or the
    // part is private: then the peers may still read the shared pages, and only the copies go.
    [[gnu::cold]] void discard(const std::byte* data) noexcept {
        for (segment* here = first_.load(); here != nullptr; here = here->next.load()) {
            if (reinterpret_cast<std::uintptr_t>(data) != here->base + here->begin) continue;
            if (here->is_private.exchange(1) != 0) {
                here->memory.discard_private(here->begin, here->end);
            } else {
                here->memory.discard(here->begin, here->end);
                here->memory.close_file();
            }
            return here->is_given_up.store(1);
        }
    }

private:
    // It stays when its memory goes: another thread may look at it.
    struct segment {
        std::uint64_t id = 0;
        std::uintptr_t base = 0;
        std::size_t bytes = 0;
        shared_memory memory;
        std::size_t begin = 0, end = 0;        // this rank's own part
        atomic<std::uint32_t> is_private{0};   // the part is no place any more
        atomic<std::uint32_t> is_given_up{1};  // this rank has no memory here (any more)
        atomic<segment*> next{nullptr};
        segment *made_before = nullptr, *later = nullptr;
    };

    // Lets all threads find the newest segment.
    void publish(std::uint64_t id, std::uintptr_t base, std::size_t bytes) noexcept {
        newest_->id = id;
        newest_->base = base;
        newest_->bytes = bytes;
        newest_->is_given_up.store(0);
        newest_->next.store(first_.load());
        first_.store(newest_);
    }

    // No thread finds the segment any more, and one that stands on it goes on from there.
    void forget(segment& s) noexcept {
        for (atomic<segment*>* link = &first_; link->load() != nullptr; link = &link->load()->next)
            if (link->load() == &s) {
                link->store(s.next.load());
                break;
            }
        s.memory = {};
    }

    void push_back(segment* s) noexcept {
        (youngest_ != nullptr ? youngest_->later : oldest_) = s;
        youngest_ = s;
    }
    segment* pop_front() noexcept {
        segment* const s = oldest_;
        oldest_ = std::exchange(s->later, nullptr);
        if (oldest_ == nullptr) youngest_ = nullptr;
        return s;
    }

    void count_loss() noexcept {
        for (std::uint64_t n = lost_.load(); !lost_.compare_exchange(n, n + 1);) n = lost_.load();
    }

    shared<segments> parent_;
    atomic<segment*> first_{nullptr};  // those that can be found, the newest first
    atomic<std::uint64_t> lost_{0};
    segment* made_ = nullptr;  // all, which this object deletes
    segment *spare_ = nullptr, *newest_ = nullptr;
    segment *oldest_ = nullptr, *youngest_ = nullptr;  // the order
    hash history_;
    int refusal_ = 0;
};

}  // namespace hvd::inline v0::detail
