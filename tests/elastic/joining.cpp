// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <optional>
#include <string>
#include <thread>

#include "elastic_test.hpp"
#include "outsider_process.hpp"

namespace joining_tests {

// Processes that come to an elastic job, and find nobody or strangers.

using namespace hvd_test;
using namespace hvd::detail;
using namespace std::chrono_literals;

namespace {

// Returns the error of a process that comes to a job, or nothing.
std::string come(const hvd::elastic::options& o) {
    float weight = 0;
    hvd::elastic::state state(weight);
    try {
        hvd::elastic::run(state, [](auto&) {}, o);
    } catch (const hvd::peer_error& e) {
        return e.what();
    }
    return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Waits at the place of a coordinator until a rank has joined, and ends without an answer.
void die_when_asked(const elastic_job& job) {
    const shared_secret secret =
        membership_secret(secret_from_hex(job.options(1).tcp.secret, "the test"));
    const listening_socket listener(-1, job.port());
    pending_connections waiting(secret, rendezvous_rank);
    std::optional<framed_socket> link;
    for (std::span<const std::byte> bytes; !link || !link->next(bytes);) {
        waiting.advance(listener, [&](int peer, std::uint64_t, descriptor socket) {
            link.emplace(peer, std::move(socket));
        });
        if (link) link->fill();
        std::this_thread::sleep_for(1ms);
    }
}

}  // namespace

TEST_CASE("a coordinator that dies before the first epoch is not waited for, and is named") {
    for (const bool has_launcher : {false, true}) {
        CAPTURE(has_launcher);
        hvd::elastic::bounds bounds;
        bounds.timeout = 10s;
        elastic_job job(2, false, bounds);
        std::string text;
        job.start(1, [&](hvd::elastic::options o) {
            o.tcp.rendezvous_served = has_launcher;
            text = come(o);
        });
        die_when_asked(job);
        job.await();
        CAPTURE(text);
        CHECK(has(text, "has died before this process could take part"));
        CHECK(has(text, "127.0.0.1:" + std::to_string(job.port())));
        CHECK(has(text, has_launcher ? "the launcher at" : "rank 0 at"));
    }
}

TEST_CASE("a newcomer does not wait for a job that is over longer than for one that begins") {
    hvd::elastic::bounds bounds;
    bounds.timeout = 20s;
    elastic_job job(2, false, bounds);
    std::string text, first;
    job.start(2, [&](hvd::elastic::options o) {
        o.tcp.start_timeout = 100ms;
        text = come(o);
    });
    job.start(1, [&](hvd::elastic::options o) {  // which others may start later
        o.tcp.start_timeout = 100ms;
        o.bounds.timeout = 1s;
        first = come(o);
    });
    job.await();
    CAPTURE(text);
    CHECK(has(text, "Connection refused (127.0.0.1:" + std::to_string(job.port()) + ")"));
    CHECK(has(text, "HVD_START_TIMEOUT"));
    CHECK(has(first, "HVD_ELASTIC_TIMEOUT"));
}

TEST_CASE("a process that no coordinator answers says where it has looked") {
    hvd::elastic::bounds bounds;
    bounds.timeout = 100ms;
    elastic_job job(2, false, bounds);
    std::string text;
    job.start(1, [&](auto& o) { text = come(o); });
    job.await();
    CAPTURE(text);
    CHECK(has(text, "Connection refused (127.0.0.1:" + std::to_string(job.port()) + ")"));
}

TEST_CASE("strangers take no epoch from a job with few descriptors") {
    elastic_job job(2);
    outsider_process many(job.port(), 300);
    const few_descriptors limit(256);
    std::atomic<bool> are_there{false}, is_over{false};
    std::atomic<int> epochs{0};
    for (int rank = 0; rank < 2; ++rank)
        job.start(rank, [&, rank](const hvd::elastic::options& o) {
            float weight = 0;
            hvd::elastic::state state(weight);
            try {
                hvd::elastic::run(
                    state,
                    [&](auto& ranks) {
                        if (ranks.rank() == 0) ++epochs;
                        work_until(is_over, state, ranks, [&] {
                            ++weight;
                            if (rank == 1 && are_there) throw std::runtime_error("it leaves");
                            if (ranks.size() == 1) is_over = true;
                        });
                    },
                    o);
                CHECK(double(weight) == double(state.step()));
            } catch (const std::runtime_error& e) {
                CHECK(std::string(e.what()) == "it leaves");
            }
        });
    many.await();
    are_there = true;
    job.await();
    CHECK(epochs >= 2);
    CHECK(is_over);
}

}  // namespace joining_tests
