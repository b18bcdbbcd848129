// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <hvd/interop/gloo.hpp>

#include "hvd_test.hpp"
#include "tcp_ranks.hpp"

namespace gloo_tests {

// The messages of hvd::gloo between two ranks, and what it does to the process.

using namespace hvd::detail;
using namespace std::chrono_literals;

namespace {

// Rank 0 and rank 1 of a communicator, whose data goes by Gloo.
struct two_ranks {
    two_ranks() {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        shared<gloo_pairs> pairs[2];
        for (int r = 0; r < 2; ++r) {
            std::vector<plain_wire> wires(2);
            wires[std::size_t(1 - r)] = plain_wire(descriptor(ends[r]));
            rank[r] = gloo_messages(std::move(wires));
            pairs[r] = shared<gloo_pairs>::make(r, 2, rank[r].own_address());
        }
        for (int r = 0; r < 2; ++r) {
            auto places = pairs[r]->places();
            places[std::size_t(1 - r)] = pairs[1 - r]->places()[std::size_t(r)];
            rank[r].use(pairs[r]);
            rank[r].connect_library(places);
        }
    }
    // True if all messages arrive.
    bool finish() {
        for (int i = 0; i < 20000; ++i) {
            const bool one = rank[0].poll(), other = rank[1].poll();
            if (one && other) return true;
            rank[i % 2].sleep(tuning::millisecond);
        }
        return false;
    }
    gloo_messages rank[2];
};

std::vector<std::byte> random_bytes(std::size_t n, std::mt19937& random) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = std::byte(random());
    return bytes;
}

// The reason for which rank 1 is lost, or "".
std::string why_lost(gloo_messages& m) {
    failure_notice news;
    message why;
    m.poll();
    while (m.receive_notice(news)) {
    }
    const std::vector<int> ranks = m.lost(why);
    CHECK((ranks.empty() || ranks == std::vector<int>{1}));
    return std::string(std::string_view(why));
}
std::string await_loss(gloo_messages& m) {
    std::string why;
    for (int i = 0; i < 20000 && why.empty(); ++i) {
        why = why_lost(m);
        std::this_thread::sleep_for(1ms);
    }
    return why;
}

hvd::communicator_options on_nodes_of_one() { return {.timeout = 20s, .node_size = 1}; }

}  // namespace

TEST_CASE("messages of any size arrive in their order, in both directions at once, by Gloo") {
    two_ranks both;
    CHECK(both.finish());
    std::mt19937 random(1);
    for (int round = 0; round < 20; ++round) {
        std::vector<std::vector<std::byte>> sent[2], got[2];
        for (int side = 0; side < 2; ++side)
            for (int i = 0; i < 5; ++i) {
                sent[side].push_back(
                    random_bytes(1 + random() % (i == 4 ? 1500000 : 3000), random));
                got[side].emplace_back(sent[side].back().size());
            }
        for (std::size_t i = 0; i < 5; ++i) {
            both.rank[0].receive(1, got[1][i].data(), got[1][i].size());
            if (round % 2 == 0) both.rank[1].receive(0, got[0][i].data(), got[0][i].size());
            both.rank[0].send(1, sent[0][i].data(), sent[0][i].size());
            both.rank[1].send(0, sent[1][i].data(), sent[1][i].size());
            if (round % 2 == 1) both.rank[1].receive(0, got[0][i].data(), got[0][i].size());
        }
        CHECK(both.finish());
        CHECK(got[0] == sent[0]);
        CHECK(got[1] == sent[1]);
    }
    CHECK(both.rank[0].sends_begun(1) == 100);
    CHECK(both.rank[1].receives_begun(0) == 100);
}

TEST_CASE("after a cancel no memory of the caller is used, in the middle of messages, by Gloo") {
    two_ranks both;
    CHECK(both.finish());
    std::mt19937 random(2);
    const auto sent = random_bytes(20'000'000, random);
    auto got = std::vector<std::byte>(sent.size());
    both.rank[1].receive(0, got.data(), got.size());
    both.rank[0].send(1, sent.data(), sent.size());
    both.rank[1].receive(0, got.data(), 100);  // nobody sends it
    both.rank[1].poll();
    CHECK(both.rank[1].pending(0));
    both.rank[1].cancel();
    CHECK_FALSE(both.rank[1].pending(0));
    std::vector<std::byte> before = got;
    std::this_thread::sleep_for(50ms);
    CHECK(got == before);
    both.rank[0].cancel();
    CHECK_FALSE(both.rank[0].pending(1));
}

TEST_CASE("a pair that ends names its rank, and nothing of Gloo's is thrown") {
    two_ranks both;
    CHECK(both.finish());
    std::byte word[8] = {};
    both.rank[0].receive(1, word, sizeof word);
    both.rank[1].cancel();  // its pairs end, and its rank says nothing
    CHECK(await_loss(both.rank[0]).find("rank 1 is gone (Gloo: ") == 0);
    both.rank[0].send(1, word, sizeof word);
    CHECK_FALSE(both.rank[0].poll());
    CHECK(both.rank[0].pending(1));
}

TEST_CASE("a rank whose both connections end is named at once") {
    two_ranks both;
    CHECK(both.finish());
    std::byte word[8] = {};
    both.rank[0].receive(1, word, sizeof word);
    both.rank[1] = gloo_messages();
    CHECK(await_loss(both.rank[0]) == "rank 1 is gone (its connection was closed)");
}

TEST_CASE("the data of a rank that has departed comes after the end of hvd's connection") {
    two_ranks both;
    CHECK(both.finish());
    std::byte got[8] = {}, sent[8] = {std::byte(7)};
    both.rank[0].receive(1, got, sizeof got);
    both.rank[1].send_notice(0, notice_of(1, word::departs, "the end", {}));
    both.rank[1].say_goodbye();
    for (int i = 0; i < 100; ++i) {
        CHECK(why_lost(both.rank[0]) == "");
        std::this_thread::sleep_for(1ms);
    }
    both.rank[1].send(0, sent, sizeof sent);
    CHECK(both.finish());
    CHECK(got[0] == std::byte(7));
}

TEST_CASE(
    "a failure of Gloo in the making is an error of hvd, and a peer that stays away is named") {
    CHECK_THROWS_WITH_AS(gloo_pairs(3, 4, "192.0.2.1"),
                         doctest::Contains("hvd: Gloo failed on rank 3: "), hvd::error);
    gloo_pairs first(0, 3, "127.0.0.1");
    auto places = first.places();
    // The higher one of two ports connects to the other one: nobody does here.
    for (auto& place : places) place.bytes[2] = place.bytes[3] = char(0xff);
    first.connect(places);
    for (int i = 0; i < 20000 && !first.pending(1); ++i) first.sleep(tuning::millisecond);
    CHECK_FALSE(first.poll());
    CHECK(first.pending(1));
    CHECK_FALSE(first.pending(2));
    first.cancel();  // does not wait for it
}

TEST_CASE("the first pairs make a process ignore broken pipes, unless it has its own handler") {
    struct sigaction before{};
    REQUIRE(sigaction(SIGPIPE, nullptr, &before) == 0);
    static int broken = 0;
    signal(SIGPIPE, [](int) { ++broken; });
    gloo_pairs(0, 1, "127.0.0.1");
    raise(SIGPIPE);
    CHECK(broken == 1);
    signal(SIGPIPE, SIG_DFL);
    gloo_pairs(0, 1, "127.0.0.1");
    raise(SIGPIPE);
    CHECK(broken == 1);
    sigaction(SIGPIPE, &before, nullptr);
}

TEST_CASE("ranks of hvd::gloo that are threads meet, split and reduce") {
    const auto secret = new_secret();
    rendezvous_server server(0, 4, secret, 20s);
    std::thread serves([&] { CHECK(server.serve()); });
    std::vector<std::thread> threads;
    for (int r = 0; r < 4; ++r)
        threads.emplace_back([&, r] {
            hvd::tcp_options own;
            own.rank = r;
            own.size = 4;
            own.rendezvous = "127.0.0.1:" + std::to_string(server.port());
            own.rendezvous_served = true;
            own.secret = std::string_view(hex_of(secret));
            //! [gloo]
            auto world = hvd::communicator<hvd::gloo>::world(own, on_nodes_of_one());
            std::vector<float> gradient(1000, float(world.rank()));
            world.allreduce(gradient, hvd::average);
            //! [gloo]
            CHECK(gradient[999] == 1.5f);
            auto half = world.split(r % 2);
            int x = r;
            half.allreduce(x, hvd::sum);
            CHECK(x == (r % 2 == 0 ? 2 : 4));
            CHECK(world.cross_size() == 4);
        });
    for (std::thread& t : threads) t.join();
    serves.join();
}

TEST_CASE("a forked child destroys the communicator of its parent without a word") {
    hvd_test::tcp_ranks job(2, 1);
    job.start([](int) {
        auto world = hvd::communicator<hvd::gloo>::world();
        int x = 1;
        world.allreduce(x, hvd::sum);
        const pid_t child = fork();
        if (child == 0) {
            world = {};
            std::_Exit(7);
        }
        int status = 0;
        waitpid(child, &status, 0);
        world.allreduce(x, hvd::sum);
        return x == 4 && WIFEXITED(status) && WEXITSTATUS(status) == 7 ? 0 : 1;
    });
    CHECK(job.end_all_with_the_first_that_fails());
}

TEST_CASE("ranks of tcp and of gloo refuse each other by name, on one host and on two") {
    for (const int host_size : {0, 1}) {
        hvd_test::tcp_ranks job(2, host_size);
        job.start([](int rank) {
            const hvd::communicator_options within{.timeout = 20s};
            try {
                if (rank == 0) (void)hvd::communicator<hvd::tcp>::world(within);
                else (void)hvd::communicator<hvd::gloo>::world(within);
            } catch (const hvd::mismatch_error& e) {
                const std::string text = e.what();
                return int(text.find("rank 0: hvd::tcp") == text.npos ||
                           text.find("rank 1: hvd::gloo") == text.npos);
            }
            return 2;
        });
        for (int r = 0; r < 2; ++r) CHECK(job.wait_for(r) == 0);
    }
}

}  // namespace gloo_tests
