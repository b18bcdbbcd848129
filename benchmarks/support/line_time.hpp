// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <string>

#include "measure.hpp"

namespace bench {

/// Measures the time in which a cache line goes from the core of rank 0 to that of rank 1, half of
/// the way there and back. A host may move virtual cores, so it is measured again and again.
template <class Comm>
class line_time {
public:
    /// **Collective**.
    explicit line_time(Comm& comm) : comm_(comm) {
        using hvd::detail::shared_memory;
        if (comm.rank() == 0) memory_ = shared_memory::create(bytes, false);
        shared_memory::ticket ticket = memory_.how_to_open();
        comm.broadcast(hvd::view(reinterpret_cast<std::uint8_t*>(&ticket), sizeof ticket));
        if (comm.rank() == 1) memory_ = shared_memory::open(ticket, bytes);
        int mapped = comm.rank() > 1 || memory_ ? 1 : 0;
        comm.allreduce(mapped, hvd::min);
        works_ = mapped != 0 && comm.size() > 1;
    }

    /// Returns the time in seconds, or 0 if ranks 0 and 1 share no memory. If they share a core at
    /// the moment, the time measured last is returned. **Collective**.
    double measure() {
        constexpr double least_on_one_core = 2e-6;
        double result = 0;
        if (works_ && comm_.rank() == 0) ::new (memory_.data()) lines;
        comm_.barrier();
        if (works_ && comm_.rank() == 0) result = lead();
        if (works_ && comm_.rank() == 1) follow();
        comm_.broadcast(result);
        return result < least_on_one_core ? last_ = result : last_;
    }

private:
    static constexpr std::size_t bytes = 4096;
    static constexpr int rounds = 20;  // of a batch
    struct lines {
        alignas(128) std::atomic<std::int64_t> there{0};
        alignas(128) std::atomic<std::int64_t> back{0};
    };

    lines& shared() const { return *std::launder(static_cast<lines*>(memory_.data())); }

    void go(std::int64_t number) {
        shared().there.store(number, std::memory_order_release);
        while (shared().back.load(std::memory_order_acquire) != number) {
        }
    }

    // A batch that another process interrupts takes much longer, so it is a low quartile.
    double lead() {
        std::vector<double> batches;
        std::int64_t number = 0;
        const auto begin = clock::now();
        go(++number);
        while (batches.size() < 9 || (seconds_since(begin) < 2e-3 && batches.size() < 1000)) {
            const auto start = clock::now();
            for (int i = 0; i < rounds; ++i) go(++number);
            batches.push_back(seconds_since(start) / (2 * rounds));
        }
        go(-1);
        return percentile(std::move(batches), 0.25);
    }

    void follow() {
        std::int64_t number = 0;
        while (number != -1) {
            const std::int64_t next = shared().there.load(std::memory_order_acquire);
            if (next != number) shared().back.store(number = next, std::memory_order_release);
        }
    }

    Comm& comm_;
    hvd::detail::shared_memory memory_;
    bool works_ = false;
    double last_ = 0;
};

/// The two states that machines have: the cores have a cache in common, or are of two complexes or
/// sockets. Lines go one way in 30 to 90 ns, and in 240 to 290 ns.
inline const char* distance_of(double line_time) {
    if (line_time <= 0) return "unknown";
    return line_time < 150e-9 ? "near" : "far";
}

}  // namespace bench
