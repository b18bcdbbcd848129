// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/lean/atomic.hpp"
#include "../core/lean/slice.hpp"

namespace hvd::inline v0::detail {

enum class trace_kind : std::uint8_t {
    call_begins,  // `times` is empty
    call_ended,   // the begin, then the begin of each phase
    submitted,
    rank_ready,
    came_last,     // the rank that a call has waited for; `times` has how long
    tensor_ended,  // ready on all ranks, begin and end of its call, then the phases
    unit,
    counts,  // numbers, whose names stand in the place of the collective
};

// An event as it waits to be written. Its times follow it in the ring, then its two texts.
struct trace_record {
    static constexpr std::size_t most_times = 11;

    std::uint32_t bytes_in_ring = 0;
    trace_kind kind = trace_kind::unit;
    bool succeeded = true;
    dtype id = dtype::byte;
    std::uint8_t times = 0;
    std::uint16_t collective_length = 0, name_length = 0;
    std::uint16_t phases = 0;  // two bits for each
    std::uint16_t source = 0;  // the number of the communicator in this trace
    std::int32_t rank = -1;    // of another one
    std::uint64_t bytes = 0;   // of the tensor
    std::int64_t time = 0;     // when it was recorded
    std::int64_t made = 0;
};
static_assert(sizeof(trace_record) == 48);

// A record that was taken out of the ring.
struct taken_record : trace_record {
    std::int64_t at[most_times];
    std::string_view collective, name;
};

// Records on their way from the threads that make calls, one at a time, to the one that writes.
class trace_ring {
public:
    // Names are cut after so many bytes.
    static constexpr std::size_t most_of_a_name = 4096;

    // `bytes` is a power of two.
    explicit trace_ring(std::size_t bytes) : memory_(bytes) {}

    // False if there is no room for the record.
    bool push(trace_record head, slice<const std::int64_t> times, std::string_view collective,
              std::string_view name) {
        if (name.size() > most_of_a_name) name = name.substr(0, most_of_a_name);
        head.times = std::uint8_t(times.size());
        head.collective_length = std::uint16_t(collective.size());
        head.name_length = std::uint16_t(name.size());
        const std::size_t whole = sizeof head + times.size() * sizeof(std::int64_t) +
                                  (collective.size() + name.size() + 7) / 8 * 8;
        head.bytes_in_ring = std::uint32_t(whole);
        std::uint64_t at = tail_.load_relaxed();
        if (whole > memory_.size() - (at - head_.load())) return false;
        write(at, &head, sizeof head);
        write(at + sizeof head, times.data(), times.size() * sizeof(std::int64_t));
        at += sizeof head + times.size() * sizeof(std::int64_t);
        write(at, collective.data(), collective.size());
        write(at + collective.size(), name.data(), name.size());
        tail_.store(at + (collective.size() + name.size() + 7) / 8 * 8);
        return true;
    }

    bool empty() const { return head_.load_relaxed() == tail_.load(); }
    bool half_full() const {
        return tail_.load_relaxed() - head_.load_relaxed() > memory_.size() / 2;
    }

    // The writer's thread. The texts of the record are valid until the next one is taken.
    bool pop(taken_record& r) {
        std::uint64_t at = head_.load_relaxed();
        if (at == tail_.load()) return false;
        trace_record& head = r;
        read(at, &head, sizeof head);
        read(at + sizeof head, r.at, head.times * sizeof(std::int64_t));
        text_.resize(std::size_t(head.collective_length) + head.name_length);
        read(at + sizeof head + head.times * sizeof(std::int64_t), text_.data(), text_.size());
        r.collective = {text_.data(), head.collective_length};
        r.name = {text_.data() + head.collective_length, head.name_length};
        head_.store(at + head.bytes_in_ring);
        return true;
    }

private:
    void write(std::uint64_t at, const void* from, std::size_t bytes) {
        const std::size_t place = at & (memory_.size() - 1), room = memory_.size() - place;
        const std::size_t first = bytes < room ? bytes : room;
        if (first > 0) std::memcpy(memory_.data() + place, from, first);
        if (bytes > first)
            std::memcpy(memory_.data(), static_cast<const char*>(from) + first, bytes - first);
    }
    void read(std::uint64_t at, void* to, std::size_t bytes) const {
        const std::size_t place = at & (memory_.size() - 1), room = memory_.size() - place;
        const std::size_t first = bytes < room ? bytes : room;
        if (first > 0) std::memcpy(to, memory_.data() + place, first);
        if (bytes > first)
            std::memcpy(static_cast<char*>(to) + first, memory_.data(), bytes - first);
    }

    std::vector<char> memory_;
    std::vector<char> text_;  // the writer's
    atomic<std::uint64_t> head_{0}, tail_{0};
};

}  // namespace hvd::inline v0::detail
