// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <hvd/engine.hpp>

#include "hvd_test.hpp"

namespace paths_tests {

// How calls moved their data, as their observer is told.

using namespace hvd_test;
using hvd::data_path;
using watched = hvd::observed<backend, hvd::statistics>;

namespace {

template <class F>
void on_watched_ranks([[maybe_unused]] const hvd::communicator_options& options, F f) {
#if defined(HVD_TEST_BACKEND_MPI)
    const failing_rank_does_not_hang guard;
    auto world = hvd::communicator<watched>::world(options);
    f(world);
#else
    for (const int ranks : thread_counts()) hvd::run_threads<watched>(ranks, f);
#endif
}

// Makes a call that its observer sees alone, and returns the counts of its path.
template <class Comm, class F>
hvd::call_statistics counts_of(Comm& comm, F call) {
    comm.observer().clear();
    call();
    REQUIRE(comm.observer().by_path().size() == 1);
    const hvd::call_statistics s = comm.observer().by_path().front();
    CHECK(s.calls == 1);
    CHECK(s.nanoseconds > 0);
    return s;
}

}  // namespace

TEST_CASE("small tensors of a node go through windows, large ones of threads are read in place") {
    on_watched_ranks({}, [](auto& comm) {
        std::vector<float> small(16, 1), large(1 << 20, 1);
        const auto of_small = counts_of(comm, [&] { comm.allreduce(small, hvd::sum); });
        CHECK(of_small.path == data_path::windows);
        CHECK(of_small.bytes == 64);
        CHECK(of_small.total_bytes == 64);
        CHECK(of_small.size == comm.size());
        const auto of_large = counts_of(comm, [&] { comm.allreduce(large, hvd::sum); });
        CHECK(of_large.bytes == 4 << 20);
#if !defined(HVD_TEST_BACKEND_MPI)
        CHECK(of_large.path == data_path::in_place);
        if (comm.size() > 1)
            CHECK(counts_of(comm, [&] { comm.broadcast(large); }).path == data_path::in_place);
        // a callable may throw, so that the ranks agree once more afterwards
        CHECK(counts_of(comm, [&] {
                  comm.allreduce(large, [](float a, float b) { return a < b ? a : b; });
              }).path == data_path::in_place);
#else
        CHECK(of_large.path == (comm.size() > 1 ? data_path::windows : data_path::in_place));
#endif
        CHECK(counts_of(comm, [&] { comm.allreduce(small, hvd::sum); }).path == data_path::windows);
    });
}

// A busy machine may hold another rank for as long, but not in most of the calls.
TEST_CASE("every rank knows which one comes last, how long the others wait, and in which calls") {
    for (const int node_size : {0, 1, 2})
        on_watched_ranks({.node_size = node_size}, [](auto& comm) {
            constexpr int steps = 8;
            const int slow = comm.size() - 1;
            comm.observer().clear();
            const auto call = [&](const char* name, int late) {
                if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                float x = 1;
                comm.allreduce(x, hvd::max, {.name = name});
            };
            for (int i = 0; i < steps; ++i) {
                call("slow", slow);
                call("other", 0);
                comm.observer().end_step();
            }
            comm.barrier();  // tells of the last one
            const hvd::statistics& s = comm.observer();
            if (comm.size() == 1) {
                CHECK(s.lateness().empty());
                return;
            }
            REQUIRE(s.lateness().size() == std::size_t(comm.size()));
            std::size_t calls = 0;
            for (const hvd::rank_lateness& of_rank : s.lateness()) calls += of_rank.calls;
            CHECK(calls == 2 * steps);
            CHECK(s.lateness("slow")[std::size_t(slow)].calls > steps / 2);
            CHECK(s.lateness("slow")[std::size_t(slow)].nanoseconds > 5'000'000);
            CHECK(s.lateness("other")[0].calls > steps / 2);
            CHECK(s.slowest_rank() >= 0);
        });
}

TEST_CASE("the size of an allgather is that of all ranks, as nccl-tests counts it") {
    on_watched_ranks({}, [](auto& comm) {
        const std::size_t n = std::size_t(comm.size());
        std::vector<float> rows(std::size_t(comm.rank() + 1), 1);
        const auto s = counts_of(comm, [&] { (void)comm.allgather(rows); });
        CHECK(s.bytes == rows.size() * 4);
        CHECK(s.total_bytes == n * (n + 1) / 2 * 4);
        std::vector<float> even(n * 5, 1);
        CHECK(counts_of(comm, [&] { (void)comm.reduce_scatter(even, hvd::sum); }).total_bytes ==
              n * 20);
    });
}

TEST_CASE("calls that move nothing, and calls that fail, have no path") {
    on_watched_ranks({}, [](auto& comm) {
        CHECK(counts_of(comm, [&] { comm.barrier(); }).path == data_path::none);
        std::vector<float> nothing;
        CHECK(counts_of(comm, [&] { comm.allreduce(nothing, hvd::sum); }).path == data_path::none);
        comm.observer().clear();
        std::vector<float> x(5);
        CHECK_THROWS_AS(comm.broadcast(x, hvd::root{-1}), hvd::usage_error);
        REQUIRE(comm.observer().by_path().size() == 1);
        const hvd::call_statistics& s = comm.observer().by_path().front();
        CHECK(s.path == data_path::none);
        CHECK(s.failed == 1);
        CHECK(s.calls == 0);
        CHECK(s.bytes == 0);
    });
}

TEST_CASE("an observer of the communicator that an engine has counts its units") {
    on_watched_ranks({}, [](auto& comm) {
#if defined(HVD_TEST_BACKEND_MPI)
        int level = 0;
        MPI_Query_thread(&level);
        if (level < MPI_THREAD_MULTIPLE) return;
#endif
        hvd::engine<watched> e{comm, {.prediction = false}};
        std::vector<float> x(1000, 1);
        for (int i = 0; i < 3; ++i) e.allreduce("x", x, hvd::sum).wait();
        std::size_t calls = 0, bytes = 0;
        for (const hvd::call_statistics& s : e.observer().by_path())
            if (s.collective == "allreduce") {
                calls += s.calls;
                bytes += s.bytes;
            }
        CHECK(calls == 3);
        CHECK(bytes == 12000);
    });
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("between nodes small tensors go with the headers, large ones by messages") {
    on_watched_ranks({.node_size = 1}, [](auto& comm) {
        if (comm.size() == 1) return;
        std::vector<float> small(4, 1), large(1 << 18, 1);
        CHECK(counts_of(comm, [&] { comm.allreduce(small, hvd::sum); }).path == data_path::carried);
        CHECK(counts_of(comm, [&] { comm.allreduce(large, hvd::sum); }).path ==
              data_path::messages);
    });
    on_watched_ranks({.node_size = 2}, [](auto& comm) {
        if (comm.size() < 3) return;
        std::vector<float> small(4, 1), large(1 << 18, 1);
        CHECK(counts_of(comm, [&] { comm.allreduce(small, hvd::sum); }).path == data_path::carried);
        CHECK(counts_of(comm, [&] { comm.allreduce(large, hvd::sum); }).path == data_path::nodes);
    });
}

TEST_CASE("direct<mpi> moves fused tensors by one call of the library") {
    auto comm = hvd::communicator<hvd::observed<hvd::direct<hvd::mpi>, hvd::statistics>>::world();
    std::vector<float> a(10, 1), b(20, 1);
    CHECK(counts_of(comm, [&] { comm.allreduce(hvd::fuse(a, b), hvd::sum); }).path ==
          data_path::library);
}
#endif

}  // namespace paths_tests
