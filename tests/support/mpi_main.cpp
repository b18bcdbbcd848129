// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include <hvd/mpi.hpp>

#include "ranks.hpp"
#include "watchdog.hpp"

namespace {

using namespace std::chrono_literals;

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

// One launch of a test program: its ranks, its own communicator, and the agreement of the ranks.
class launch {
public:
    launch()
        : output(rank_in(MPI_COMM_WORLD)), dog([this](const std::string& what) { bark(what); }) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
        MPI_Comm_size(comm_, &ranks);
    }
    launch(const launch&) = delete;
    launch& operator=(const launch&) = delete;
    ~launch() { MPI_Comm_free(&comm_); }

    // Waits until all ranks are at the end of a test case. A rank that left it by an exception may
    // have left the others in a collective. Then it does not wait for the watchdog.
    void meet() {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Ibarrier(comm_, &request);
        const auto deadline = std::chrono::steady_clock::now() + 10s;
        for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done;) {
            if (excepted && std::chrono::steady_clock::now() > deadline) {
                abort(
                    "an exception ended this rank's test case and the others do not reach its end");
            }
            std::this_thread::sleep_for(50us);
        }
        excepted = false;
    }

    int agree_on(int status) const {
        int worst = status;
        MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MAX, comm_);
        return worst;
    }

    // Prints the output of each rank in turn.
    void print_by_rank(bool mine) {
        for (int turn = 0; turn < ranks; ++turn) {
            if (mine && turn == rank) output.print();
            MPI_Barrier(comm_);
        }
    }

    [[noreturn]] void abort(const char* reason) {
        output.live();
        std::fprintf(stderr, "rank %d: %s\n", rank, reason);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        std::_Exit(EXIT_FAILURE);
    }

    const int rank = rank_in(MPI_COMM_WORLD);
    int ranks = 0;
    bool excepted = false;
    collected_output output;
    hvd_test::watchdog dog;

private:
    static int rank_in(MPI_Comm comm) {
        int rank = 0;
        MPI_Comm_rank(comm, &rank);
        return rank;
    }

    [[noreturn]] void bark(const std::string& what) {
        output.live();
        std::fprintf(stderr, "watchdog: rank %d after %ld s still in: %s\n", rank,
                     hvd_test::watchdog::patience(), what.c_str());
        std::this_thread::sleep_for(1s);  // meanwhile the others print where they are, too
        std::_Exit(EXIT_FAILURE);
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
};

launch* current = nullptr;

struct keeps_ranks_together : hvd_test::listener {
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

DOCTEST_REGISTER_LISTENER("keeps_ranks_together", 1, keeps_ranks_together);

}  // namespace

int hvd_test::launched_ranks() { return current->ranks; }

void hvd_test::an_exception_leaves() { current->excepted = true; }

int main(int argc, char** argv) {
    hvd::mpi_environment environment{argc, argv};
    launch launch;
    current = &launch;

    const long expected = hvd_test::number_from_environment("HVD_TEST_NP", launch.ranks);
    if (expected != launch.ranks) {
        std::fprintf(stderr, "asked for %ld ranks, launched with %d\n", expected, launch.ranks);
        return EXIT_FAILURE;
    }

    doctest::Context context(argc, argv);
    context.setOption("no-colors", true);
    context.setCout(&launch.output.stream());
    const int status = hvd_test::run(context, launch.dog);
    launch.print_by_rank(status != 0 || launch.rank == 0);
    return launch.agree_on(status);
}
