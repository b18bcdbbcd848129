// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <type_traits>

#include "../core/error.hpp"
#include "../platform/clock.hpp"

namespace hvd::inline v0 {
namespace detail {

// Calls under way, of which each is waited for without a result: `request`, `device_request`.
template <class R>
concept waitable = requires(R& call) {
    { call.test() } -> std::same_as<bool>;
    { call.wait() } -> std::same_as<void>;
    { static_cast<bool>(call) };
};

template <class Range>
concept range_of_waitable = requires(Range& calls) {
    std::end(calls);
    requires waitable<std::remove_reference_t<decltype(*std::begin(calls))>>;
};

// Asks `test()` again and again, until it is true or the limit has passed.
template <class Test>
bool test_until(time_point limit, Test test) {
    for (backoff pauses(false); !test();)
        if (now() > limit) return false;
        else pauses.pause();
    return true;
}
template <class Test>
bool test_for(time_span time, Test test) {
    time_point limit = never;
    if (__builtin_add_overflow(now(), time.nanoseconds, &limit)) limit = never;
    return test_until(limit, test);
}

// Ends several calls, and keeps the exception of the first that fails.
class failure_of_several {
public:
    template <class F>
    void run(F f) {
        try {
            f();
        } catch (...) {
            if (!failure_) failure_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

private:
    std::exception_ptr failure_;
};

}  // namespace detail

/// Waits until all requests are complete. A range has them, such as a vector. MPI: `MPI_Waitall`.
///
/// If calls fail, the exception of the first of them in the range is thrown once all have been
/// waited for; those of the others are dropped. **Completion** and **threads** as for `wait()`.
/// @snippet tests/docs/snippets.cpp wait_all
template <detail::range_of_waitable Requests>
void wait_all(Requests&& requests) {
    detail::failure_of_several failure;
    for (auto& call : requests) failure.run([&] { call.wait(); });
    failure.rethrow();
}

/// Waits until all these requests are complete: `hvd::wait_all(first, second)`.
template <detail::waitable... Requests>
void wait_all(Requests&&... requests) {
    detail::failure_of_several failure;
    (failure.run([&] { requests.wait(); }), ...);
    failure.rethrow();
}

/// Waits until one request of the range is complete, and returns its index. The request is empty
/// then, and requests that are empty before are not looked at. MPI: `MPI_Waitany`.
/// @throws hvd::usage_error if all requests are empty; the exception of a call that failed, whose
/// request is empty then.
/// @snippet tests/docs/snippets.cpp wait_any
template <detail::range_of_waitable Requests>
[[nodiscard("hvd: the index tells the request that is complete")]]
std::size_t wait_any(Requests&& requests) {
    std::size_t found = 0;
    detail::test_until(detail::never, [&] {
        std::size_t index = 0, under_way = 0;
        for (auto& call : requests) {
            found = index++;
            if (!call) continue;
            if (call.test()) return true;
            ++under_way;
        }
        if (under_way > 0) return false;
        throw usage_error(-1, detail::text("hvd: wait_any: none of ", index,
                                           " requests is under way: all are empty"));
    });
    return found;
}

/// Checks once if all requests of the range are complete. Those that are, are empty then. MPI:
/// `MPI_Testall`, which empties all or none.
///
/// If it finds calls that have failed, the exception of the first of them in the range is thrown
/// once all have been looked at; those of the others are dropped.
/// @snippet tests/docs/snippets.cpp wait_all
template <detail::range_of_waitable Requests>
[[nodiscard("hvd: it waits for none, and returns if all are complete")]] bool test_all(
    Requests&& requests) {
    detail::failure_of_several failure;
    bool all = true;
    for (auto& call : requests) failure.run([&] { all = call.test() && all; });
    failure.rethrow();
    return all;
}

}  // namespace hvd::inline v0
