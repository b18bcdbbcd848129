// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../core/error.hpp"

namespace hvd::inline v0::detail {

// The numbers that an optimizer keeps of each parameter's elements: at most two.
template <class T>
using state_numbers = std::array<std::vector<T>, 2>;

// An optimizer's state of this rank's slices. All parameters are one vector of elements, in which
// each has its place.
template <class T>
class sliced_state {
public:
    // Elements that follow each other, whose numbers do so, too.
    struct run {
        std::uint64_t place, count;
    };

    // Makes the numbers of `n` elements from a place on, of the first `kinds` and of those that are
    // kept, if they are not there yet. `done` elements of this rank's slices come before them.
    // @throws hvd::usage_error if these are other elements than in the step before.
    void provide(std::size_t done, std::size_t place, std::size_t n, int kinds) {
        if (n == 0) return;
        if (done + n <= size_) {
            for (std::size_t k = 0; k < std::size_t(kinds); ++k)
                if (numbers_[k].empty()) numbers_[k].resize(size_);
            return require_run(done, place, n);
        }
        for (std::size_t k = 0; k < numbers_.size(); ++k) {
            if (k >= std::size_t(kinds) && numbers_[k].empty() && whole_[k].empty()) continue;
            numbers_[k].resize(done);  // without those of a step that failed here
            if (whole_[k].empty()) numbers_[k].resize(done + n);
            else {
                const auto first = whole_[k].begin() + std::ptrdiff_t(place);
                numbers_[k].insert(numbers_[k].end(), first, first + std::ptrdiff_t(n));
            }
        }
        if (!runs_.empty() && runs_.back().place + runs_.back().count == place)
            runs_.back().count += n;
        else runs_.push_back({place, n});
        size_ = done + n;
    }

    T* numbers(std::size_t kind, std::size_t done) { return numbers_[kind].data() + done; }

    // Replaces everything by the state of all elements. The next step takes this rank's part.
    void take_whole(state_numbers<T> whole) {
        *this = {};
        whole_ = std::move(whole);
    }
    // The slices will be others. Drops those that were made for a step that failed.
    void cut_again() { take_whole(std::move(whole_)); }
    bool is_whole() const { return !whole_[0].empty(); }
    // The first step after that is complete.
    void forget_whole() {
        for (auto& of_kind : whole_) std::vector<T>().swap(of_kind);
    }

    // The first step grew the vectors.
    void shrink() {
        for (auto& of_kind : numbers_) of_kind.shrink_to_fit();
    }

    std::size_t bytes() const {
        std::size_t all = 0;
        for (const auto* numbers : {&numbers_, &whole_})
            for (const auto& of_kind : *numbers) all += of_kind.size() * sizeof(T);
        return all;
    }

    // Elements with state, in the order of their numbers.
    const std::vector<run>& runs() const { return runs_; }
    std::size_t size() const { return size_; }
    const state_numbers<T>& numbers() const { return numbers_; }
    const state_numbers<T>& whole() const { return whole_; }

private:
    void require_run(std::size_t done, std::size_t place, std::size_t n) {
        if (done == 0) at_ = before_ = 0;
        while (done >= before_ + runs_[at_].count) before_ += std::size_t(runs_[at_++].count);
        const run& here = runs_[at_];
        const std::size_t in_run = done - before_;
        if (here.place + in_run != place || in_run + n > here.count) [[unlikely]]
            throw usage_error(-1,
                              "hvd: run_and_apply: the plan reduces other slices on this rank "
                              "than before, and the optimizer's state is that of the old ones");
    }

    state_numbers<T> numbers_, whole_;
    std::vector<run> runs_;
    std::size_t size_ = 0;
    std::size_t at_ = 0, before_ = 0;  // the run of the last elements, and those before it
};

}  // namespace hvd::inline v0::detail
