// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// A test of collectives is written once, against on_ranks, and compiled per backend:
//
//     TEST_CASE("every rank gets the sum") {
//         hvd_test::on_ranks([](auto& comm) {
//             int x = comm.rank();
//             comm.allreduce(x, hvd::sum);
//             CHECK(x == comm.size() * (comm.size() - 1) / 2);
//         });
//     }
//
// On threads the function runs for 1, 2, 3, 4, 5 and 7 ranks in turn, on MPI and TCP for those of
// the launch. Some files are also compiled for threads that reach only each other's arenas
// (apart.hpp).

#include <doctest/doctest.h>

#include <functional>
#include <initializer_list>

#include <hvd/hvd.hpp>

#include "ranks.hpp"
#include "sanitizers.hpp"
#if defined(HVD_TEST_BACKEND_APART)
#include "apart.hpp"
#endif
#if defined(HVD_TEST_BACKEND_TCP)
#if defined(HVD_TEST_OPENSSL)
#include <hvd/tcp.hpp>

#include <hvd/interop/openssl.hpp>
#else
#include "tcp_backend.hpp"
#endif
#endif
#if defined(HVD_TEST_BACKEND_MPI) || defined(HVD_TEST_BACKEND_TCP)
#define HVD_TEST_LAUNCHED  // ranks are processes
#endif

namespace hvd_test {

#if defined(HVD_TEST_BACKEND_MPI)
using backend = hvd::mpi;
#elif defined(HVD_TEST_BACKEND_TCP) && defined(HVD_TEST_OPENSSL)
using backend = hvd::encrypted<hvd::tcp>;
#elif defined(HVD_TEST_BACKEND_TCP)
using backend = tcp;
#elif defined(HVD_TEST_BACKEND_APART)
using backend = apart;
#else
using backend = hvd::threads;
#endif
using communicator = hvd::communicator<backend>;

#if defined(HVD_TEST_LAUNCHED)

// Returns the ranks of this launch.
communicator world(const hvd::communicator_options& options = {});

// Runs a test that needs at least `least` ranks on this launch's ranks, each time with a new
// communicator.
template <class F>
void on_ranks_from(int least, const hvd::communicator_options& options, F f) {
    if (launched_ranks() < least) return;
    const failing_rank_does_not_hang guard;
    auto all = world(options);
    f(all);
}

#else

// hvd::run_threads, compiled once.
void run_threads(int ranks, const std::function<void(communicator&)>& f,
                 const hvd::communicator_options& options = {});

template <class F>
void on_ranks_from(int least, const hvd::communicator_options& options, F f) {
    for (const int ranks : thread_counts()) {
        if (ranks < least) continue;
        INFO("on ", ranks, " threads");
        const auto on_rank = [&f](communicator& comm) {
            INFO("rank ", comm.rank(), " of ", comm.size());
            f(comm);
        };
        hvd_test::run_threads(ranks, on_rank, options);
    }
}

#endif

template <class F>
void on_ranks_from(int least, F f) {
    on_ranks_from(least, {}, f);
}
template <class F>
void on_ranks(F f) {
    on_ranks_from(1, {}, f);
}

// Runs f on ranks whose communicator has a policy around the tests' backend.
template <class P, class F>
void on_ranks_of(F f, const hvd::communicator_options& options = {}) {
#if defined(HVD_TEST_LAUNCHED)
    const failing_rank_does_not_hang guard;
    auto world = hvd::communicator<P>::world(options);
    f(world);
#else
    for (const int ranks : thread_counts()) hvd::run_threads<P>(ranks, f, options);
#endif
}

}  // namespace hvd_test

// The implementation of a communicator is compiled once, in backend.cpp, and not in each test.
extern template class hvd::communicator<hvd_test::backend>;
