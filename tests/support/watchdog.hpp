// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <latch>
#include <mutex>
#include <string>
#include <thread>

namespace hvd_test {

inline long number_from_environment(const char* name, long otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != '\0' ? std::strtol(text, nullptr, 10) : otherwise;
}

// Calls `bark(what)` in its own thread when a test case has run for HVD_TEST_TIMEOUT seconds (120).
// The thread is up when it is made and only sleeps then: a child of fork() would find a sanitizer's
// allocator locked by a thread that is just starting.
class watchdog {
public:
    explicit watchdog(std::function<void(const std::string&)> bark)
        : bark_(std::move(bark)), thread_([this] { watch(); }) {
        up_.wait();
    }

    ~watchdog() {
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }

    void begin(std::string what) {
        const std::lock_guard lock(mutex_);
        what_ = std::move(what);
        timeout_ = clock::now() + patience_;
    }

    // Returns true if any test case has begun.
    bool began() {
        const std::lock_guard lock(mutex_);
        return !what_.empty();
    }

    static long patience() { return number_from_environment("HVD_TEST_TIMEOUT", 120); }

private:
    using clock = std::chrono::steady_clock;

    void watch() {
        up_.count_down();
        std::unique_lock lock(mutex_);
        while (!ended_) {
            if (clock::now() >= timeout_) {
                bark_(what_.empty() ? "the time before the first test case" : what_);
                return;
            }
            const auto timeout = timeout_;
            changed_.wait_until(lock, timeout);
        }
    }

    std::function<void(const std::string&)> bark_;
    const std::chrono::seconds patience_{patience()};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string what_;
    clock::time_point timeout_ = clock::now() + patience_;
    bool ended_ = false;
    std::latch up_{1};
    std::thread thread_;
};

// A program without tests has not passed.
inline int run(doctest::Context& context, watchdog& dog) {
    const int status = context.run();
    return dog.began() || context.shouldExit() ? status : EXIT_FAILURE;
}

// Listens to doctest and does nothing. Mains override the functions they need.
struct listener : doctest::IReporter {
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats&) override {}
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace hvd_test
