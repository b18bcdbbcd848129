// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

namespace faults {

inline std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

inline void rest(std::int64_t nanoseconds) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
}

// The state that a rank shows to the other ranks and to drive.py, in a file that all map: a column
// of 16 numbers. Times are those of the steady clock, in nanoseconds; 0 is not yet.
struct alignas(128) column {
    std::atomic<std::int64_t> process,  // drive.py continues it
        wakes,                          // the time to continue it
        resumed,
        cut,      // 1: drive.py shall pull the cable of this host; 2: it has
        entered,  // the number of the last call that the rank has entered, from 1
        struck,   // the time when its fault struck
        gap,      // the longest time for which the machine had no time for this process
        failed,   // the rank has found something wrong in its calls
        done,     // it has ended its calls, and no fault of it strikes any more
        ended;    // it only has to end MPI
};
static_assert(sizeof(column) == 128);

class board {
public:
    static constexpr int most_ranks = 8;

    // An empty path is memory of this process.
    explicit board(const std::string& path) {
        constexpr std::size_t bytes = most_ranks * sizeof(column);
        const int file = path.empty() ? -1 : open(path.c_str(), O_RDWR);
        if (!path.empty() && file < 0) std::abort();
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                  path.empty() ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) std::abort();
        columns_ = static_cast<column*>(memory);
        if (file >= 0) close(file);
    }
    column& of(int rank) const { return columns_[rank]; }

private:
    column* columns_;
};

// Measures for how long the machine had no time for this process. A rank that had none may be
// called late, though nothing was wrong with it.
class ticker {
public:
    ticker(const board& all, int first, int last)
        : thread_([this, &all, first, last] {
              std::int64_t before = now();
              while (!ended_) {
                  rest(2'000'000);
                  const std::int64_t time = now(), gap = time - before;
                  for (int r = first; r < last; ++r) {
                      column& mine = all.of(r);
                      const std::int64_t wakes = mine.wakes;
                      const bool was_stopped = wakes != 0 && wakes + 1'000'000'000 > before;
                      if (!was_stopped && gap > mine.gap) mine.gap = gap;
                  }
                  before = time;
              }
          }) {}
    ~ticker() {
        ended_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

}  // namespace faults
