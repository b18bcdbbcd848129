// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <thread>

#include <hvd/tcp.hpp>
#include <hvd/transport/tcp/rendezvous.hpp>

#include "hvd_test.hpp"
#include "outsider_process.hpp"

namespace listening_tests {

// Where the ports of a job listen, and what connections of strangers cost.

using namespace hvd::detail;
using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

host_address local(std::uint8_t last) {
    host_address a = host_address::loopback();
    a.bytes[3] = last;
    return a;
}

bool is_open(const host_address& at, std::uint16_t port) {
    const descriptor s = begin_connect(at, port);
    if (!s) return false;
    pollfd p{s.number(), POLLOUT, 0};
    ::poll(&p, 1, 5000);
    return error_of(s) == 0;
}

// Takes all descriptors that are left, up to `most`.
std::vector<descriptor> take_descriptors(int most = 1000) {
    std::vector<descriptor> all;
    for (int number = 0; int(all.size()) < most && number >= 0;) {
        number = ::fcntl(0, F_DUPFD_CLOEXEC, 0);
        if (number >= 0) all.emplace_back(number);
    }
    return all;
}

}  // namespace

TEST_CASE("strangers have an eighth of the descriptors of a process, and the others are its own") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    outsider_process many(listener.port(), 300);
    many.await();
    const few_descriptors limit(256);
    pending_connections waiting(secret, 0);
    const std::size_t before = take_descriptors().size();
    for (int i = 0; i < 20; ++i) waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
    CHECK(take_descriptors().size() == before - 32);
    CHECK(!waiting.print_refused().empty());
}

TEST_CASE("a process without descriptors drops a stranger for a rank of its own") {
    const few_descriptors limit(256);
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, 0);
    outsider_process some(listener.port(), 3);
    some.await();
    waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
    descriptor rank = begin_connect(host_address::loopback(), listener.port());
    REQUIRE(rank);
    const std::vector<descriptor> taken = take_descriptors();
    handshake talk(secret, 3, 0);
    descriptor let_in;
    for (int i = 0; i < 2000 && !let_in; ++i) {
        talk.advance(rank);
        waiting.advance(listener, [&](int peer, std::uint64_t, descriptor s) {
            CHECK(peer == 3);
            let_in = std::move(s);
        });
        std::this_thread::sleep_for(1ms);
    }
    CHECK(let_in);
}

TEST_CASE("a socket listens at the addresses that are named, on one port, and at no other one") {
    const host_address some[] = {local(1), local(3)};
    const listening_socket listener(-1, 0, some);
    CHECK(is_open(local(1), listener.port()));
    CHECK(is_open(local(3), listener.port()));
    CHECK_FALSE(is_open(local(2), listener.port()));
    for (const host_address& own : own_addresses()) CHECK_FALSE(is_open(own, listener.port()));
    const listening_socket everywhere(-1);
    CHECK(is_open(local(2), everywhere.port()));
    CHECK_THROWS_AS(listening_socket(-1, listener.port(), some), hvd::usage_error);

    host_address absent;  // 192.0.2.77 of RFC 5737
    const std::uint8_t bytes[4] = {192, 0, 2, 77};
    std::memcpy(absent.bytes, bytes, 4);
    const host_address half[] = {absent, local(1)};
    CHECK(is_open(local(1), listening_socket(-1, 0, half).port()));
    CHECK_THROWS_WITH_AS(listening_socket(-1, 0, std::span(half, 1)),
                         doctest::Contains("assign requested address"), hvd::usage_error);
}

TEST_CASE("a job whose ranks meet at a loopback address is of one host") {
    hvd::tcp_options o;
    o.rank = 0;
    o.size = 2;
    for (const char* where : {"localhost:7", "127.0.0.1:7", "127.0.1.1:7", "[::1]:7"}) {
        CAPTURE(where);
        o.rendezvous = where;
        CHECK(is_of_one_host(o));
    }
    for (const char* where : {"node1:7", "10.0.0.1:7", "[fe80::1]:7", "127.example.org:7"}) {
        CAPTURE(where);
        o.rendezvous = where;
        CHECK_FALSE(is_of_one_host(o));
    }
    CHECK(is_of_one_host({}));
}

TEST_CASE("an interface restricts where a process listens, but for what its host's name says") {
    hvd::tcp_options o;
    CHECK(addresses_for_ranks(o, false).empty());
    REQUIRE(addresses_for_ranks(o, true).size() == 1);
    o.network_interface = "lo";
    const auto of_interface = addresses_for_ranks(o, false);
    REQUIRE_FALSE(of_interface.empty());
    for (const host_address& a : of_interface) CHECK(a.is_loopback());

    host_address other;
    const std::uint8_t bytes[4] = {10, 9, 8, 7};
    std::memcpy(other.bytes, bytes, 4);
    const auto with_other = addresses_for_meeting(o, false, std::span(&other, 1));
    CHECK(with_other.size() == of_interface.size() + 1);
    // A host may know itself by 127.0.1.1, and be known to others by another address.
    const host_address itself[] = {local(1)};
    CHECK(addresses_for_meeting(o, false, itself).empty());
    CHECK(addresses_for_meeting(o, true, itself).size() == 1);
    REQUIRE(addresses_for_ranks(o, true).size() == 1);
}

TEST_CASE("the ports of a job of one host are closed to other addresses, and it computes") {
    std::uint16_t port = 0;
    {
        const listening_socket reserved(-1);
        port = reserved.port();
    }
    const std::string secret(64, 'b');
    std::vector<std::thread> ranks;
    std::atomic<int> sum{0};
    for (int rank = 0; rank < 2; ++rank)
        ranks.emplace_back([&, rank] {
            hvd::tcp_options own;
            own.rank = rank;
            own.size = 2;
            own.rendezvous = "localhost:" + std::to_string(port);
            own.secret = secret;
            auto world = hvd::communicator<hvd::tcp>::world(own, {});
            int one = rank + 1;
            world.allreduce(one, hvd::sum);
            sum += one;
            for (const listening_place& place : tcp_job::of(own)->connections().places()) {
                CHECK(is_open(host_address::loopback(), place.port));
                CHECK_FALSE(is_open(local(2), place.port));
                REQUIRE(place.addresses == 1);
                CHECK(place.address[0].is_loopback());
            }
        });
    for (std::thread& t : ranks) t.join();
    CHECK(sum == 6);
}

}  // namespace listening_tests
