// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tests of a backend that has only messages, beyond hvd's own tests.

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "hvd_test.hpp"

TEST_CASE("an endpoint of one's own reduces in rank order, as threads do") {
    // Sums of these values depend on the order.
    const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
    for (const int ranks : {2, 3, 4}) {
        std::vector<float> on_threads(1000), on_mailboxes(1000);
        const auto fill_and_sum = [&values](auto& comm, std::vector<float>& result) {
            std::vector<float> x(1000, values[comm.rank()]);
            comm.allreduce(x, hvd::sum);
            if (comm.rank() == 0) result = x;
        };
        hvd::run_threads(ranks, [&](auto& comm) { fill_and_sum(comm, on_threads); });
        hvd_test::on_mailboxes(ranks, [&](auto& comm) { fill_and_sum(comm, on_mailboxes); });
        CHECK(std::memcmp(on_threads.data(), on_mailboxes.data(), 1000 * sizeof(float)) == 0);
    }
}

TEST_CASE("an endpoint of one's own tells ranks that disagree, and works on") {
    hvd_test::on_mailboxes(2, [](auto& comm) {
        std::vector<float> x(std::size_t(1 + comm.rank()));
        CHECK_THROWS_AS(comm.allreduce(x, hvd::sum), hvd::mismatch_error);
        float one = 1;
        comm.allreduce(one, hvd::sum);
        CHECK(one == 2);
    });
}

TEST_CASE("an endpoint of one's own names the rank that does not come in time") {
    hvd_test::on_mailboxes(3, [](auto& comm) {
        if (comm.rank() == 1) return;
        try {
            comm.barrier({.timeout = std::chrono::milliseconds(200)});
            CHECK_MESSAGE(false, "nothing was thrown");
        } catch (const hvd::peer_error& e) {
            CHECK(e.peers() == std::vector<int>{1});
        }
        CHECK_THROWS_AS(comm.barrier(), hvd::peer_error);  // the communicator has been given up
    });
}

TEST_CASE("an endpoint of one's own takes the policies") {
    const auto office = std::make_shared<post_office>(1);
    using checked = hvd::checked<hvd::observed<mailboxes, hvd::statistics>>;
    hvd::communicator<checked> comm(std::make_unique<mailbox_endpoint>(office, 0));
    comm.barrier();
    CHECK(comm.observer().calls() == 1);
    CHECK(comm.split(0).size() == 1);
}
