// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/lean/atomic.hpp"
#include "../../core/lean/handles.hpp"
#include "../../platform/shared_memory.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// An address that every rank of a node understands: a segment, which each rank has mapped at an
// address of its own, and an offset into it. Segment 0 stands for memory that other ranks can't
// reach.
struct place {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;

    explicit operator bool() const { return segment != 0; }
};

// The segments that the ranks of one communicator have in common: its own, and those of the
// communicator that it was derived from, which has more ranks. They stay mapped as long as it
// lives, since a rank that no longer needs a segment can't know whether its peers read there.
//
// A part of each segment is this rank's own. The rank may make it private, which ends its being
// reached by others. Several threads may look here at the same time.
class segments : public counted {
public:
    explicit segments(shared<segments> parent = {}) : parent_(std::move(parent)) {}

    ~segments() {
        for (segment* s = first_.load(); s != nullptr;) delete std::exchange(s, s->next);
    }

    // For ranks of one process: one segment, which is all memory.
    static shared<segments> of_this_process() {
        auto all = shared<segments>::make();
        all->first_.store(new segment(1, 0, SIZE_MAX));
        return all;
    }

    // Adds memory in which [begin, end) is this rank's own part. Called in the order of the
    // communicator's calls.
    void add(std::uint64_t id, shared_memory memory, std::size_t bytes, std::size_t begin,
             std::size_t end) {
        const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
        auto* const added = new segment(id, base, bytes);
        added->memory = std::move(memory);
        added->begin = begin;
        added->end = end;
        added->next = first_.load();
        first_.store(added);
    }

    place find(const std::byte* data, std::size_t bytes) const {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next)
                if (address >= here->base && address - here->base <= here->bytes &&
                    bytes <= here->bytes - (address - here->base) &&
                    here->is_private.load_in_order() == 0)
                    return {here->id, address - here->base};
        return {};
    }

    // Null if there are not so many bytes.
    std::byte* at(const place& p, std::size_t bytes) const {
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next)
                if (here->id == p.segment && p.offset <= here->bytes &&
                    bytes <= here->bytes - p.offset)
                    return reinterpret_cast<std::byte*>(here->base + p.offset);
        return nullptr;
    }

    // True if this rank's part of a place's segment has become private since the place was found.
    bool has_lost(const place& p) const {
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next)
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
            for (segment* here = s->first_.load(); here != nullptr; here = here->next)
                if (here->begin < here->end && here->is_private.exchange(1) == 0) {
                    s->count_loss();
                    here->memory.make_private(here->begin, here->end);
                    here->memory.close_file();
                }
    }

    // Gives this rank's part at `data` back to the system. No peer reaches there any more, or the
    // part is private: then the peers may still read the shared pages, and only the copies go.
    [[gnu::cold]] void discard(const std::byte* data) noexcept {
        for (segment* here = first_.load(); here != nullptr; here = here->next) {
            if (reinterpret_cast<std::uintptr_t>(data) != here->base + here->begin) continue;
            if (here->is_private.exchange(1) != 0)
                return here->memory.discard_private(here->begin, here->end);
            here->memory.discard(here->begin, here->end);
            return here->memory.close_file();
        }
    }

private:
    struct segment {
        segment(std::uint64_t number, std::uintptr_t address, std::size_t size)
            : id(number), base(address), bytes(size) {}

        const std::uint64_t id;
        const std::uintptr_t base;
        const std::size_t bytes;
        shared_memory memory;
        std::size_t begin = 0, end = 0;       // this rank's own part
        atomic<std::uint32_t> is_private{0};  // the part is no place any more
        segment* next = nullptr;
    };

    void count_loss() noexcept {
        for (std::uint64_t n = lost_.load(); !lost_.compare_exchange(n, n + 1);) n = lost_.load();
    }

    shared<segments> parent_;
    atomic<segment*> first_{nullptr};
    atomic<std::uint64_t> lost_{0};
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
