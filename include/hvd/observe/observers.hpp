// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <exception>
#include <tuple>

#include "observer.hpp"

namespace hvd::inline v0 {

/// Several observers as one: `hvd::observed<hvd::mpi, hvd::observers<hvd::timeline, A>>`.
///
/// Each gets every event, in the order of the list, even if one before it throws. The first
/// exception counts. A function that none of them has costs nothing.
/// @snippet tests/docs/snippets.cpp several_observers
template <observer... Observers>
class observers {
public:
    /// The observer of this type.
    template <class Observer>
    Observer& get() noexcept {
        return std::get<Observer>(all_);
    }

    void on_begin(const event& e) {
        tell_each([&](auto& o) { o.on_begin(e); });
    }
    void on_end(const event& e, bool succeeded) {
        tell_each([&](auto& o) { o.on_end(e, succeeded); });
    }
    void on_phase(const event& e, phase p)
        requires(detail::observes_phases<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_phase(e, p); }) o.on_phase(e, p);
        });
    }
    void on_arrivals(const event& e)
        requires(detail::observes_arrivals<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_arrivals(e); }) o.on_arrivals(e);
        });
    }
    void on_counts(const event& e, std::string_view names, const std::int64_t* values)
        requires(detail::observes_counts<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_counts(e, names, values); })
                o.on_counts(e, names, values);
        });
    }
    void on_split(observers& parent)
        requires(detail::observes_splits<Observers> || ...)
    {
        tell_each([&]<class O>(O& o) {
            if constexpr (detail::observes_splits<O>) o.on_split(parent.get<O>());
        });
    }
    void on_submitted(const event& e)
        requires(detail::observes_submissions<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_submitted(e); }) o.on_submitted(e);
        });
    }
    void on_rank_ready(const event& e, int rank)
        requires(detail::observes_ranks<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_rank_ready(e, rank); }) o.on_rank_ready(e, rank);
        });
    }
    void on_ready(const event& e)
        requires(detail::observes_readiness<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_ready(e); }) o.on_ready(e);
        });
    }
    void on_complete(const event& e, bool succeeded)
        requires(detail::observes_completion<Observers> || ...)
    {
        tell_each([&](auto& o) {
            if constexpr (requires { o.on_complete(e, succeeded); }) o.on_complete(e, succeeded);
        });
    }

private:
    template <class F>
    void tell_each(F tell) {
        std::exception_ptr first;
        const auto tell_one = [&](auto& o) {
            try {
                tell(o);
            } catch (...) {
                if (!first) first = std::current_exception();
            }
        };
        (tell_one(std::get<Observers>(all_)), ...);
        if (first) std::rethrow_exception(first);
    }

    std::tuple<Observers...> all_;
};

}  // namespace hvd::inline v0
