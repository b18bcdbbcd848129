// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "support.hpp"

namespace hvd_test {

// Runs f, which fails on every rank, and throws that failure. A rank that had left the call of f is
// told in the next one. The others hear there that it is.
template <class Comm, class F>
void by_next_call(Comm& comm, F f) {
    try {
        f();
    } catch (...) {
        try {
            comm.barrier();
        } catch (const hvd::peer_error& e) {
            CHECK(contains(e.what(), "had left an earlier call"));
        }
        throw;
    }
    comm.barrier();
}

// Every rank throws mismatch_error about `field`, with value(rank) for every rank in table and
// text. Then calls work.
template <class Comm, class Value, class F>
void expect_mismatch(Comm& comm, const std::string& field, Value value, F call) {
    const auto e = thrown<hvd::mismatch_error>([&] { by_next_call(comm, call); });
    if (e) {
        INFO(std::string(e->what()));
        CHECK(e->field() == field);
        CHECK(e->rank() == comm.rank());
        REQUIRE(e->table().size() == size_of(comm));
        for (int r = 0; r < comm.size(); ++r) {
            const std::string theirs = value(r);
            CHECK(e->table()[std::size_t(r)] == hvd::mismatch_error::entry(r, theirs));
            CHECK(contains(e->what(), "rank " + std::to_string(r) + ": " + theirs));
        }
    }
    check_that_it_works(comm);
}

// The culprit throws usage_error with `reason`. The others throw peer_error that names it and has
// the same reason. Then calls work.
template <class Comm, class F>
void expect_refusal(Comm& comm, int culprit, const std::string& reason, F call) {
    if (comm.rank() == culprit) {
        const auto e = thrown<hvd::usage_error>([&] { by_next_call(comm, call); });
        if (e) CHECK(contains(e->what(), reason));
    } else {
        const auto e = thrown<hvd::peer_error>([&] { by_next_call(comm, call); });
        if (e) CHECK(contains(e->what(), reason));
        if (e) CHECK(contains(e->what(), "rank " + std::to_string(culprit)));
        if (e) CHECK(e->peers() == std::vector<int>{culprit});
    }
    check_that_it_works(comm);
}

}  // namespace hvd_test
