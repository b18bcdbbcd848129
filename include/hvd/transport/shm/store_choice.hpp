// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../kernel/copy.hpp"
#include "../../platform/clock.hpp"

namespace hvd::inline v0::detail {

// Chooses how a rank writes into its windows, by the time that it takes to fill one and to read the
// peers', which choose in the same way. It tries each kind a few times, keeps the fastest, and
// looks again after some megabytes, since a process may be moved to another processor. A choice
// concerns one rank alone: the bits are the same.
class store_choice {
public:
    // Runs f(kind), which writes `bytes` into a window.
    template <class F>
    void fill(std::size_t bytes, F f) {
        if (bytes < tuning::least_store_choice) return f(store_kind::vectors);
        if (fills_ > trials) [[likely]] {
            f(best_);
            if ((since_ += bytes) >= tuning::store_choice_holds) begin_trials();
            return;
        }
        if (fills_ == 0) of_trials_ = bytes;
        if (!is_comparable(bytes)) return f(best_);
        const store_kind kind = kind_of(fills_++);
        if (fills_ > trials) choose();
        measure(fill_times_[int(kind)], bytes, [&] { f(kind); });
    }

    // Runs f, which reads as many bytes of a peer's window. The readings come in the order of the
    // fillings.
    template <class F>
    void read(std::size_t bytes, F f) {
        if (reads_ >= trials || reads_ >= fills_ || !is_comparable(bytes)) [[likely]]
            return f();
        measure(read_times_[int(kind_of(reads_++))], bytes, f);
    }

    // The present choice.
    store_kind best() const { return best_; }

private:
    static constexpr int trials = store_kinds * tuning::store_trials;
    static store_kind kind_of(int trial) { return store_kind(trial % store_kinds); }

    // Times of sizes that are more different say nothing.
    bool is_comparable(std::size_t bytes) const {
        return bytes <= 2 * of_trials_ && of_trials_ <= 2 * bytes;
    }

    void begin_trials() {
        fills_ = reads_ = 0;
        since_ = 0;
        for (int k = 0; k < store_kinds; ++k) fill_times_[k] = read_times_[k] = unknown;
    }

    // Keeps the least time of a byte, in seconds: longer ones have been disturbed.
    template <class F>
    static void measure(double& least, std::size_t bytes, F f) {
        const time_point begin = now();
        f();
        const double time = double(now() - begin) / double(tuning::second) / double(bytes);
        if (time < least) least = time;
    }

    // The last fillings may not have been read yet, and a rank that only writes reads nothing.
    void choose() {
        const bool read = reads_ >= store_kinds;
        double least = 2 * unknown;
        for (int k = 0; k < store_kinds; ++k) {
            const double time = fill_times_[k] + (read ? read_times_[k] : 0);
            if (time >= least) continue;
            least = time;
            best_ = store_kind(k);
        }
    }

    static constexpr double unknown = 1;  // more seconds than any byte takes
    store_kind best_ = store_kind::vectors;
    int fills_ = store_kinds > 1 ? 0 : trials + 1, reads_ = fills_;  // of the trials
    std::size_t of_trials_ = 0, since_ = 0;                          // bytes
    double fill_times_[3] = {unknown, unknown, unknown},
           read_times_[3] = {unknown, unknown, unknown};
};

}  // namespace hvd::inline v0::detail
