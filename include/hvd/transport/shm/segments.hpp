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
class segments : public counted {
public:
    explicit segments(shared<segments> parent = {}) : parent_(std::move(parent)) {}

    ~segments() {
        for (const segment* s = first_.load(); s != nullptr;) delete std::exchange(s, s->next);
    }

    // For ranks of one process: one segment, which is all memory.
    static shared<segments> of_this_process() {
        auto all = shared<segments>::make();
        all->first_.store(new segment{1, 0, SIZE_MAX, {}, nullptr});
        return all;
    }

    // Called in the order of the communicator's calls. Other threads may look at the same time.
    void add(std::uint64_t id, shared_memory memory, std::size_t bytes) {
        const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
        first_.store(new segment{id, base, bytes, std::move(memory), first_.load()});
    }

    place find(const std::byte* data, std::size_t bytes) const {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next)
                if (address >= here->base && address - here->base <= here->bytes &&
                    bytes <= here->bytes - (address - here->base))
                    return {here->id, address - here->base};
        return {};
    }

    std::byte* at(const place& p) const {
        for (const segments* s = this; s != nullptr; s = s->parent_.get())
            for (const segment* here = s->first_.load(); here != nullptr; here = here->next)
                if (here->id == p.segment)
                    return reinterpret_cast<std::byte*>(here->base + p.offset);
        return nullptr;
    }

private:
    struct segment {
        std::uint64_t id;
        std::uintptr_t base;
        std::size_t bytes;
        shared_memory memory;
        const segment* next;
    };

    shared<segments> parent_;
    atomic<const segment*> first_{nullptr};
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
