// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <stdexcept>
#include <string>

#include "hvd_test.hpp"

namespace {

// Runs f on `ranks` threads and counts who got peer_error with the text.
template <class F>
int peers_told(int ranks, const std::string& text, F f) {
    std::atomic<int> told = 0;
    hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& comm) {
        try {
            f(comm);
        } catch (const hvd::peer_error& e) {
            CHECK(std::string(e.what()).find(text) != std::string::npos);
            ++told;
        }
    });
    return told;
}

}  // namespace

TEST_CASE("a thread that throws is rethrown with its rank, and its peers are told") {
    for (const int ranks : {2, 3, 4}) {
        std::atomic<int> told = 0;
        CHECK_THROWS_WITH_AS(hvd::run_threads(ranks,
                                              [&told](hvd::communicator<hvd::threads>& comm) {
                                                  if (comm.rank() == 1)
                                                      throw std::runtime_error("the disk is full");
                                                  try {
                                                      comm.barrier();
                                                  } catch (const hvd::peer_error&) {
                                                      ++told;
                                                  }
                                              }),
                             "rank 1: the disk is full", std::runtime_error);
        CHECK(told == ranks - 1);
    }
}

TEST_CASE("a thread that returns early does not hang its peers") {
    for (const int ranks : {2, 3, 4}) {
        CHECK(peers_told(ranks, "rank 1", [](hvd::communicator<hvd::threads>& comm) {
                  if (comm.rank() != 1) comm.barrier();
              }) == ranks - 1);
    }
}
