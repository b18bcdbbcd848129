// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <iostream>
#include <mutex>
#include <sstream>

#include "ranks.hpp"
#include "watchdog.hpp"

namespace hvd_test {

// A rank's output is kept until it is known if the rank failed. Then it is printed in one piece
// under its number. After live() it is printed at once, for a process that is about to end.
class collected_output : std::streambuf {
public:
    explicit collected_output(int rank) : rank_(rank) {}

    std::ostream& stream() { return stream_; }

    void print() {
        const std::lock_guard lock(mutex_);
        if (text_.empty()) return;
        std::fprintf(stderr, "---- rank %d ----\n%s\n", rank_, text_.c_str());
        std::fflush(stderr);
        text_.clear();
    }

    void live() {
        print();
        live_ = true;
    }

private:
    int overflow(int c) override {
        const char character = char(c);
        xsputn(&character, 1);
        return c;
    }

    std::streamsize xsputn(const char* text, std::streamsize size) override {
        const std::lock_guard lock(mutex_);
        if (live_) std::fwrite(text, 1, std::size_t(size), stderr);
        else text_.append(text, std::size_t(size));
        return size;
    }

    const int rank_;
    std::mutex mutex_;
    std::string text_;
    bool live_ = false;
    std::ostream stream_{this};
};

// One rank of a test program that was launched as several processes. A main provides how they meet
// and agree.
class launched {
public:
    launched(int own_rank, int all_ranks)
        : rank(own_rank),
          ranks(all_ranks),
          output(own_rank),
          dog([this](const std::string& what) { bark(what); }) {}
    launched(const launched&) = delete;
    launched& operator=(const launched&) = delete;
    virtual ~launched() = default;

    // Waits until all ranks are at the end of a test case. A rank that left it by an exception may
    // have left the others in a collective. Then it does not wait for the watchdog.
    void meet() {
        const auto timeout = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        await_all([&] {
            if (excepted && std::chrono::steady_clock::now() > timeout)
                abort(
                    "an exception ended this rank's test case and the others do not reach its end");
        });
        excepted = false;
    }

    // Returns the largest number of all ranks.
    virtual int agree_on(int status) = 0;

    // Prints the output of each rank in turn.
    void print_by_rank(bool mine) {
        for (int turn = 0; turn < ranks; ++turn) {
            if (mine && turn == rank) output.print();
            agree_on(0);
        }
    }

    [[noreturn]] void abort(const char* reason) {
        output.live();
        std::fprintf(stderr, "rank %d: %s\n", rank, reason);
        end_all();
        std::_Exit(EXIT_FAILURE);
    }

    const int rank, ranks;
    bool excepted = false;
    collected_output output;
    watchdog dog;

protected:
    // Waits for all ranks, and calls `meanwhile` now and then.
    virtual void await_all(const std::function<void()>& meanwhile) = 0;
    // Ends the processes of all ranks.
    virtual void end_all() = 0;

private:
    [[noreturn]] void bark(const std::string& what) {
        output.live();
        std::fprintf(stderr, "watchdog: rank %d after %ld s still in: %s\n", rank,
                     watchdog::patience(), what.c_str());
        // Meanwhile the others print where they are, too.
        std::this_thread::sleep_for(std::chrono::seconds(1));
        std::_Exit(EXIT_FAILURE);
    }
};

inline launched* current = nullptr;

struct keeps_ranks_together : listener {
    explicit keeps_ranks_together(const doctest::ContextOptions&) {}
    void test_case_start(const doctest::TestCaseData& test) override {
        current->dog.begin(test.m_name);
    }
    void test_case_reenter(const doctest::TestCaseData&) override { current->meet(); }
    void test_case_end(const doctest::CurrentTestCaseStats&) override { current->meet(); }
    void test_case_exception(const doctest::TestCaseException& e) override {
        if (e.is_crash) current->output.live();
    }
};

// Runs the tests of a launch's rank.
inline int run_launched(launched& launch, int argc, char** argv) {
    current = &launch;
    const long expected = number_from_environment("HVD_TEST_NP", launch.ranks);
    if (expected != launch.ranks) {
        std::fprintf(stderr, "asked for %ld ranks, launched with %d\n", expected, launch.ranks);
        return EXIT_FAILURE;
    }
    doctest::Context context(argc, argv);
    context.setOption("no-colors", true);
    context.setCout(&launch.output.stream());
    const int status = run(context, launch.dog);
    launch.print_by_rank(status != 0 || launch.rank == 0);
    return launch.agree_on(status);
}

}  // namespace hvd_test
