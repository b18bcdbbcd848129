// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <utility>

#include "../core/lean/handles.hpp"
#include "../core/lean/slice.hpp"
#include "../platform/clock.hpp"
#include "../platform/record_memory.hpp"
#include "call_header.hpp"

namespace hvd::inline v0::detail {

// The last calls of a rank on one communicator, without their data. One thread at a time writes,
// and whoever reads does so by the file: see record_memory.
struct call_record {
    static constexpr std::size_t most_calls = 64, most_stamps = 32, most_names = 32;
    static constexpr int most_ranks = 8;
    // To read the clock costs a tenth of a small call. So the times are known for calls that wait
    // a millisecond, for those of so many bytes, and once in `most_calls` calls.
    static constexpr std::size_t timed_from = std::size_t(64) << 10;

    // The fields of a header that come first.
    struct entry {
        collective kind;
        std::uint8_t refused;  // failed: the call has ended with an error on this rank
        std::uint8_t fused, making_plan;
        std::uint8_t dimensions;
        dtype id;
        std::uint8_t op, mode;
        std::uint64_t bytes;
        static constexpr std::uint8_t failed = 2;
    };
    struct stamp {
        std::uint64_t number;
        std::int64_t entered, left;  // 0: not yet
    };
    struct name {
        std::uint64_t number;
        char text[40];
    };

    record_head head;
    std::uint64_t moments;   // beginnings and ends of calls: odd while one is under way
    std::uint64_t messages;  // the number of calls that were a send or a recv
    std::uint64_t waits;     // the call in which this rank has waited for `ranks`
    std::int64_t looked;     // when a rank that waits has last looked for the others
    std::uint32_t stamps_written, names_written;
    std::int32_t rank_count, ranks[most_ranks];
    stamp* open_stamp;  // that of the call under way, if it has one
    entry entries[most_calls];
    stamp stamps[most_stamps];
    name names[most_names];

    // The number of the last call that has begun, from 1.
    std::uint64_t begun() const noexcept { return (moments + 1) / 2; }
    bool is_inside() const noexcept { return moments % 2 != 0; }
    const entry& entry_of(std::uint64_t number) const noexcept {
        return entries[(number - 1) % most_calls];
    }

    void begin(const call_header& h, std::size_t element_bytes) noexcept {
        const std::uint64_t moment = moments + 1;
        // The number of the call without its last bit, times the size of an entry.
        const std::uint64_t at = moment * (sizeof(entry) / 2) & (most_calls - 1) * sizeof(entry);
        entry& e = *reinterpret_cast<entry*>(reinterpret_cast<std::byte*>(entries) + at);
        __builtin_memcpy(&e, &h, offsetof(entry, bytes));
        e.bytes = h.count * element_bytes;
        moments = moment;
        if (h.name[0] != 0 || e.bytes >= timed_from || at == 0) [[unlikely]]
            keep_more(h.name, e.bytes);
    }

    [[gnu::noinline]] void keep_more(const char* text, std::size_t bytes) noexcept {
        if (text[0] != 0) {
            name& kept = names[names_written % most_names];
            kept.number = begun();
            store(kept.text, text);
            ++names_written;
        }
        if (bytes < timed_from && begun() % most_calls != 1) return;
        open_stamp = &stamps[stamps_written++ % most_stamps];
        *open_stamp = {begun(), now(), 0};  // by the clock of its end
    }
    [[gnu::cold]] void fail() noexcept {
        entries[moments / 2 % most_calls].refused = entry::failed;
        ++moments;
        if (open_stamp != nullptr) std::exchange(open_stamp, nullptr)->left = now();
    }

    // The ranks for which this rank waits in the present call.
    [[gnu::cold]] void note_missing(slice<const int> missing) noexcept {
        rank_count = 0;
        for (const int rank : missing)
            if (rank_count < most_ranks) ranks[rank_count++] = rank;
        waits = begun();
    }
};
static_assert(sizeof(call_record) <= record_memory::page);
static_assert(offsetof(call_record::entry, bytes) == 8 && offsetof(call_header, mode) == 7 &&
              offsetof(call_header, id) == offsetof(call_record::entry, id));

// The tensors that a rank has submitted to an engine, those in flight among them.
struct tensor_record {
    static constexpr std::size_t most = 384;

    struct entry {
        std::uint64_t number;  // of the submission; 0: free
        std::uint64_t bytes;
        std::int64_t submitted, done;  // done: 0 while it is in flight
        collective kind;
        dtype id;
        std::uint8_t unused[6];
        char name[56];
    };

    record_head head;
    std::uint64_t submitted, completed;
    std::uint64_t left_out;  // tensors without an entry, since all were in flight
    entry entries[most];

    // Returns the entry of a tensor; null if all are those of tensors in flight.
    entry* begin(std::string_view name, const call_header& h, std::uint64_t bytes,
                 time_point time) noexcept {
        const std::uint64_t number = ++submitted;
        for (std::size_t i = 0; i < most; ++i) {
            entry& e = entries[(number + i) % most];
            if (e.number != 0 && e.done == 0) continue;
            e = {number, bytes, time, 0, h.kind, h.id, {}, {}};
            store(e.name, name);
            return &e;
        }
        ++left_out;
        return nullptr;
    }
    void end(entry* e) noexcept {
        ++completed;
        if (e != nullptr) e->done = quick_now();
    }
};

// A record in the memory of the process, or in plain memory where that has no room.
template <class T>
class kept_record {
public:
    static constexpr std::size_t pages =
        (sizeof(T) + record_memory::page - 1) / record_memory::page;

    kept_record(record_head::kind kind, int rank, int size) {
        std::byte* memory = records_of_process.take(pages);
        if (memory == nullptr) {
            own_ = owner<T>(new T{});
            memory = reinterpret_cast<std::byte*>(own_.get());
        }
        record_ = reinterpret_cast<T*>(memory);
        record_->head.pages = pages;
        record_->head.rank = rank;
        record_->head.size = size;
        __atomic_store_n(&record_->head.type, std::uint32_t(kind), __ATOMIC_RELEASE);
    }
    kept_record(const kept_record&) = delete;
    kept_record& operator=(const kept_record&) = delete;
    ~kept_record() {
        if (!own_) records_of_process.give_back(reinterpret_cast<std::byte*>(record_), pages);
    }

    T* get() const noexcept { return record_; }
    T* operator->() const noexcept { return record_; }

private:
    owner<T> own_;
    T* record_ = nullptr;
};

}  // namespace hvd::inline v0::detail
