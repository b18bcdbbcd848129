// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <tuple>
#include <utility>

#include "messages.hpp"
#include "saved.hpp"

namespace hvd {
inline namespace v0 {

namespace detail {
class elastic_access;
}  // namespace detail

namespace elastic {

/// Ends the function that `run_elastic` runs, on all ranks after the same step, because the job
/// changes its size. Let it pass: `run_elastic` goes on from it with another communicator.
class membership_change {};

/// Holds what an elastic job must not lose: objects of the program, and the number of steps done.
///
/// `commit()` copies the objects in memory. When a rank is lost, the others go on from the last
/// commit, and newcomers get the objects of the rank that has done the most steps. Features J1, J2.
///
/// The objects outlive the state. **Threads**: one.
/// @tparam Ts types with `elastic::saved<T>`
/// @snippet tests/elastic/snippets.cpp run_elastic
template <class... Ts>
class state {
public:
    explicit state(Ts&... objects) : objects_(objects...) { take(copies_[0]); }
    state(const state&) = delete;
    state& operator=(const state&) = delete;

    /// The steps that are done and committed, on this rank and in this job.
    std::int64_t step() const noexcept { return step_; }

    /// Sets the number of steps that are done, of a checkpoint say, before `run_elastic`. That of
    /// the first rank counts, as its objects do.
    void begin_at(std::int64_t step) { step_ = step; }

    /// Ends a step: copies the objects, and counts it. Call it after the last collective of the
    /// step, when the objects have changed. Inside `run_elastic` the ranks also agree whether
    /// newcomers wait, by one small allreduce.
    ///
    /// **Collective** inside `run_elastic`. @throws membership_change, on all ranks, if the job
    /// changes its size; hvd::peer_error if a rank is lost. The step is committed even so.
    void commit() {
        take(copies_[1 - current_]);
        current_ = 1 - current_;
        ++step_;
        epoch_ = running_epoch_;
        if (changes_ && changes_()) throw membership_change();
    }

    /// Puts the objects back as they were at the last commit.
    void restore() { put_back(copies_[current_], std::index_sequence_for<Ts...>()); }

    /// Calls f(rank, size) at the begin of each epoch, when all ranks have the same objects: for
    /// what depends on the number of ranks, such as a learning rate.
    template <class F>
    void on_reset(F f) {
        callbacks_.emplace_back(std::move(f));
    }

private:
    friend class hvd::detail::elastic_access;

    using copies = std::tuple<typename saved<std::remove_const_t<Ts>>::copy...>;

    void take(copies& to) { take(to, std::index_sequence_for<Ts...>()); }
    template <std::size_t... I>
    void take(copies& to, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::take(std::get<I>(objects_), std::get<I>(to)), ...);
    }
    template <std::size_t... I>
    void put_back(const copies& from, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::put_back(std::get<I>(from), std::get<I>(objects_)), ...);
    }
    template <class Comm, std::size_t... I>
    void synchronize(Comm& comm, root from, std::index_sequence<I...>) {
        (saved<std::remove_const_t<Ts>>::synchronize(comm, std::get<I>(objects_), from), ...);
    }

    std::tuple<Ts&...> objects_;
    copies copies_[2];
    int current_ = 0;
    std::int64_t step_ = 0;
    std::uint64_t epoch_ = 0, running_epoch_ = 0;
    std::function<bool()> changes_;
    std::vector<std::function<void(int, int)>> callbacks_;
};

template <class... Ts>
state(Ts&...) -> state<Ts...>;

}  // namespace elastic
}  // namespace v0
}  // namespace hvd
