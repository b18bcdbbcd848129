// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// One of three ranks fails: nobody hangs, everybody is told, nothing leaks.

#include <mutex>
#include <set>
#include <string>

#include "support.hpp"
#include "text_of.hpp"

namespace device_test {

using hvd_test::text_of;

using world_type = hvd::communicator<hvd::threads>;

struct outcome {
    int failed = 0, told = 0, done = 0;
    std::string why;  // the reason that the others were told
};

inline void count(int& what) { __atomic_fetch_add(&what, 1, __ATOMIC_RELAXED); }

// Runs `f` on three ranks. Each may fail in the call that is named, be told by peer_error, or end
// well.
template <class F>
outcome with_failures(const std::string& function, F f) {
    outcome seen;
    std::mutex mutex;
    const auto begun = std::chrono::steady_clock::now();
    hvd::run_threads(3, [&](world_type& world) {
        try {
            f(world);
            count(seen.done);
        } catch (const hvd::library_error& e) {
            const std::string said = function == "launch_tiles" ? "launch of hvd's " : function;
            CHECK_MESSAGE(std::string(e.what()).find(said) != std::string::npos, e.what());
            CHECK(e.rank() == world.rank());
            count(seen.failed);
        } catch (const hvd::peer_error& e) {
            CHECK_MESSAGE(std::string(e.what()).find("rank") != std::string::npos, e.what());
            count(seen.told);
            const std::lock_guard lock(mutex);
            seen.why += std::string(e.what()) + "; ";
        }
    });
    // A busy machine may take long, but not as long as a hang.
    CHECK(std::chrono::steady_clock::now() - begun < 60s);
    return seen;
}

// If nothing fails, the timeout is long enough for a busy machine.
constexpr hvd::communicator_options patient{.timeout = std::chrono::seconds(10)};
constexpr hvd::communicator_options impatient{
    .timeout = std::chrono::milliseconds(400 * slowness),
    .destructor_timeout = std::chrono::milliseconds(200 * slowness)};

// Fails the first call of each function, one in the middle, and the last one; or every call. The
// timeout is short if peers learn of a failure only by it.
template <class F>
void fail_each(std::initializer_list<const char*> functions, F work, bool every = false,
               const hvd::communicator_options& options = impatient) {
    emulation::reset();
    hvd::run_threads(3, [&](world_type& world) { work(world, patient); });
    std::vector<int> calls;
    for (const char* function : functions) calls.push_back(emulation::calls_of(function));
    CHECK(emulation::live_objects() == 0);
    const int* last = calls.data();
    for (const char* function : functions) {
        const int n = *last++;
        INFO(std::string(function), ", called ", n, " times");
        REQUIRE(n > 0);
        std::set<int> chosen{1, (n + 1) / 2, n};
        for (int k = 1; every && k <= n; ++k) chosen.insert(k);
        for (const int k : chosen) {
            INFO("call ", k);
            emulation::reset();
            // an internal error of NCCL; "not initialised" of CUDA
            emulation::fail(function, k, 3);
            const outcome seen =
                with_failures(function, [&](world_type& world) { work(world, options); });
            INFO(seen.why);
            CHECK(seen.failed <= 1);
            CHECK(seen.failed + seen.told + seen.done == 3);
            // The number of polls varies, so the last one may not be made.
            const bool polled = std::string(function) == "cudaEventQuery" ||
                                std::string(function) == "ncclCommGetAsyncError";
            if (k == 1 || !polled) CHECK(seen.failed == 1);
            CHECK(emulation::live_objects() == 0);
        }
    }
    emulation::reset();
}

}  // namespace device_test
