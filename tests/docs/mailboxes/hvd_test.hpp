// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Replaces tests/support/hvd_test.hpp, so that hvd's own tests of collectives run on the backend of
// docs/adding_a_backend.md.

//! [on_ranks]
#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <hvd/hvd.hpp>

#include "mailboxes.hpp"

namespace hvd_test {

using backend = mailboxes;
using communicator = hvd::communicator<backend>;

template <class F>
void on_mailboxes(int ranks, F f) {
    const auto office = std::make_shared<post_office>(ranks);
    // An endpoint learns of a lost rank by its timeout alone.
    const hvd::communicator_options options{.timeout = std::chrono::seconds(60)};
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                communicator comm(std::make_unique<mailbox_endpoint>(office, rank), options);
                f(comm);
            } catch (...) {
                failures[std::size_t(rank)] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

template <class F>
void on_ranks_from(int least, F f) {
    for (const int ranks : {1, 2, 3, 4})
        if (ranks >= least) on_mailboxes(ranks, f);
}

template <class F>
void on_ranks(F f) {
    on_ranks_from(1, f);
}

}  // namespace hvd_test
//! [on_ranks]
