// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <stdexcept>
#include <typeinfo>

#include <cxxabi.h>

#include "thread_group.hpp"

namespace hvd::inline v0 {
namespace detail {

// Keeps the first exception of several threads.
class first_failure {
public:
    void offer(int rank, std::exception_ptr failure) {
        const lock_guard lock(mutex_);
        if (failure_) return;
        failure_ = std::move(failure);
        rank_ = rank;
    }

    void rethrow() const {
        if (!failure_) return;
        try {
            std::rethrow_exception(failure_);
        } catch (const std::exception& e) {
            throw_with_rank(abi::__cxa_current_exception_type()->name(), e.what());
            throw;
        }
    }

private:
    // hvd's errors name their rank. The standard's plain ones get it in front of their text and
    // keep their type; others pass as they are. The types are known by their mangled names, since
    // engines compile without RTTI, where typeid does not compile.
    void throw_with_rank(std::string_view type, const char* what) const {
        const message with_rank = text("rank ", rank_, ": ", what);
        if (type == "St13runtime_error") throw std::runtime_error(with_rank.c_str());
        if (type == "St11logic_error") throw std::logic_error(with_rank.c_str());
        if (type == "St16invalid_argument") throw std::invalid_argument(with_rank.c_str());
        if (type == "St12out_of_range") throw std::out_of_range(with_rank.c_str());
    }

    mutex mutex_;
    std::exception_ptr failure_;
    int rank_ = -1;
};

inline message reason_of(const std::exception_ptr& failure) noexcept {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& e) {
        return text_or("it threw", "it threw: ", e.what());
    } catch (...) {
        return message::fixed("it threw an exception that is no std::exception");
    }
}

}  // namespace detail

/// Runs `f(comm)` on `ranks` threads, each with its rank of one communicator, and joins them.
///
/// If `f` throws or returns early on one rank, calls of the others that need it throw
/// `hvd::peer_error` with its reason. The first exception is rethrown here. hvd's own and other
/// types are rethrown as they are; the standard's plain ones get `rank N: ` before their text. Each
/// thread is a rank of its own: `f` must not share unsynchronised state. Horovod: `horovod.run`.
/// @throws hvd::usage_error if `ranks` < 1 or a thread can't be started.
/// @snippet tests/docs/snippets.cpp run_threads
/// @tparam Backend `threads`, or a policy around it: `run_threads<hvd::checked<hvd::threads>>(4,
/// f)`
template <class Backend = threads, class F>
    requires std::is_same_v<typename Backend::endpoint_type, detail::threads_endpoint>
void run_threads(int ranks, F&& f, const communicator_options& options = {}) {
    constexpr bool takes_communicator = std::is_invocable_v<F&, communicator<Backend>&>;
    static_assert(takes_communicator,
                  "hvd: run_threads calls f(comm) on each rank: "
                  "[](hvd::communicator<hvd::threads>& comm) { … }");
    thread_group group(ranks, options);
    detail::first_failure failure;
    const auto body = [&](int rank) {
        detail::is_rank_of_run_threads() = true;
        communicator<Backend> comm;
        try {
            comm = group.communicator<Backend>(rank);
            if constexpr (takes_communicator) f(comm);
        } catch (...) {
            failure.offer(rank, std::current_exception());
            group.leave(rank, detail::reason_of(std::current_exception()));
        }
    };
    struct member {
        const decltype(body)* run = nullptr;
        int rank = 0;
    };
    {
        // Once the first thread runs, the others must come: so nothing is allocated from there on.
        detail::table<member> members{std::size_t(ranks)};
        detail::table<detail::thread> threads{std::size_t(ranks)};
        for (int rank = 0; rank < ranks; ++rank) {
            member& self = members[std::size_t(rank)];
            self = {&body, rank};
            detail::thread& mine = threads[std::size_t(rank)];
            mine = detail::thread([&self] { (*self.run)(self.rank); });
            if (mine) continue;
            const auto refused = std::make_exception_ptr(
                usage_error(rank, detail::text("hvd: no thread for rank ", rank)));
            failure.offer(rank, refused);
            group.leave(rank, detail::reason_of(refused));
        }
    }
    failure.rethrow();
}

}  // namespace hvd::inline v0
