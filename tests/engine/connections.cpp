// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <hvd/engine.hpp>

#include "hvd_test.hpp"

namespace {

// Calls of bind in this program, and those of them at another address than 127.0.0.1.
std::atomic<int> binds = 0, binds_elsewhere = 0;

}  // namespace

extern "C" int bind(int socket, const sockaddr* at, socklen_t bytes) noexcept {
    ++binds;
    sockaddr_in v4{};
    if (at->sa_family == AF_INET) std::memcpy(&v4, at, sizeof v4);
    if (v4.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) ++binds_elsewhere;
    return int(syscall(SYS_bind, socket, at, bytes));
}

namespace connections_tests {

// The connections of an engine: who is let in, and what is done with bytes from strangers.

using namespace hvd::detail;
using namespace std::chrono_literals;

namespace {

std::vector<std::byte> bytes_of_text(std::string_view text) {
    std::vector<std::byte> bytes;
    for (const char c : text) bytes.push_back(std::byte(c));
    return bytes;
}

std::string hex(const digest256& d) {
    std::string result;
    for (const std::byte b : d) {
        result += "0123456789abcdef"[int(b) >> 4];
        result += "0123456789abcdef"[int(b) & 15];
    }
    return result;
}

bool nobody_is_gone() { return false; }

int open_descriptors() {
    int n = 0;
    DIR* const folder = opendir("/proc/self/fd");
    while (folder != nullptr && readdir(folder) != nullptr) ++n;
    if (folder != nullptr) closedir(folder);
    return n;
}

listening_place place_of(const listening_socket& socket) {
    listening_place place;
    place.host = 1;
    place.port = socket.port();
    return place;
}

descriptor connect_to(const listening_socket& socket) {
    descriptor s = begin_connect(host_address::loopback(), socket.port());
    pollfd p{s.number(), POLLOUT, 0};
    ::poll(&p, 1, 1000);
    return s;
}

void say(const descriptor& s, const std::vector<std::byte>& bytes) {
    send_some(s, bytes.data(), bytes.size());
}

std::vector<std::byte> hear(const descriptor& s, std::size_t n) {
    std::vector<std::byte> bytes(n);
    std::size_t got = 0;
    while (got < n) {
        pollfd p{s.number(), POLLIN, 0};
        if (::poll(&p, 1, 1000) <= 0) break;
        const ssize_t more = ::recv(s.number(), bytes.data() + got, n - got, 0);
        if (more <= 0) break;
        got += std::size_t(more);
    }
    bytes.resize(got);
    return bytes;
}

// Runs a meeting of rank 0, which waits for rank 1. `strangers` runs before rank 1 comes.
template <class F>
void meet_beside(F strangers) {
    shared_secret secret{};
    fill_random(0, secret.data(), secret.size());
    const listening_socket socket(0);
    std::vector<meeting::connection> at_root;
    std::thread root([&] {
        meeting talks(0, secret, socket);
        at_root = talks.run(-1, {}, true, {1}, now() + 20 * tuning::second, nobody_is_gone);
    });
    strangers(socket, secret);
    const listening_socket unused(1);
    meeting talks(1, secret, unused);
    const auto at_child =
        talks.run(0, place_of(socket), true, {}, now() + 20 * tuning::second, nobody_is_gone);
    root.join();
    REQUIRE(at_root.size() == 1);
    CHECK(at_root[0].peer == 1);
    REQUIRE(at_child.size() == 1);
    CHECK(at_child[0].peer == 0);
}

}  // namespace

TEST_CASE("the digests are those of the standards") {
    CHECK(hex(sha256().finish()) ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(sha256().add(bytes_of_text("abc")).finish()) ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(sha256()
                  .add(bytes_of_text("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))
                  .finish()) == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(sha256().add(std::vector<std::byte>(1000000, std::byte('a'))).finish()) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    // RFC 4231, test cases 1, 2 and 6
    CHECK(
        hex(hmac_sha256(std::vector<std::byte>(20, std::byte(0x0b)), bytes_of_text("Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hex(hmac_sha256(bytes_of_text("Jefe"), bytes_of_text("what do ya want for nothing?"))) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(
        hex(hmac_sha256(std::vector<std::byte>(131, std::byte(0xaa)),
                        bytes_of_text("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("strangers are not let in, and disturb nobody") {
    SUBCASE("silent") {
        meet_beside([](const listening_socket& s, const shared_secret&) {
            static std::vector<descriptor> kept;
            for (int i = 0; i < 20; ++i) kept.push_back(connect_to(s));
        });
    }
    SUBCASE("random bytes") {
        meet_beside([](const listening_socket& s, const shared_secret&) {
            std::mt19937 random(1);
            for (int i = 0; i < 50; ++i) {
                std::vector<std::byte> noise(random() % 200);
                for (std::byte& b : noise) b = std::byte(random());
                say(connect_to(s), noise);
            }
        });
    }
    SUBCASE("another secret") {
        meet_beside([](const listening_socket& s, const shared_secret&) {
            const shared_secret other{};
            handshake talk(other, 1, 0);
            const descriptor socket = connect_to(s);
            handshake::state state = handshake::state::goes_on;
            while (state == handshake::state::goes_on) state = talk.advance(socket);
            CHECK(state == handshake::state::refused);
            CHECK(std::string(talk.reason()).find("secret") != std::string::npos);
        });
    }
    SUBCASE("a proof that was heard before") {
        meet_beside([](const listening_socket& s, const shared_secret& secret) {
            // Rank 1 is let in elsewhere in the job, and somebody hears all that it says.
            const listening_socket real(0), overheard(0);
            const auto let_in = [&](handshake talk, const descriptor& socket) {
                while (talk.advance(socket) == handshake::state::goes_on) {
                }
            };
            std::thread rank0([&] {
                descriptor there;
                while (!there) there = real.accept();
                let_in(handshake(secret, 0, -1), there);
            });
            std::thread rank1([&] { let_in(handshake(secret, 1, 0), connect_to(overheard)); });
            descriptor from_rank1;
            while (!from_rank1) from_rank1 = overheard.accept();
            const descriptor to_rank0 = connect_to(real);
            const auto greeting = hear(from_rank1, 36);
            say(to_rank0, greeting);
            say(from_rank1, hear(to_rank0, 48));
            const auto proof = hear(from_rank1, 32);
            say(to_rank0, proof);
            say(from_rank1, hear(to_rank0, 1));
            rank0.join();
            rank1.join();
            REQUIRE(proof.size() == 32);
            const descriptor replay = connect_to(s);
            say(replay, greeting);
            CHECK(hear(replay, 48).size() == 48);
            say(replay, proof);
            CHECK(hear(replay, 1).empty());  // it is closed
        });
    }
    SUBCASE("a rank that is nobody's child") {
        meet_beside([](const listening_socket& s, const shared_secret& secret) {
            handshake talk(secret, 7, 0);
            const descriptor socket = connect_to(s);
            while (talk.advance(socket) == handshake::state::goes_on) {
            }
            CHECK(hear(socket, 1).empty());
        });
    }
}

TEST_CASE("ranks that do not come are named") {
    const shared_secret secret{};
    const listening_socket socket(0);
    meeting talks(0, secret, socket);
    try {
        (void)talks.run(-1, {}, true, {1, 2}, now() + 100 * tuning::millisecond, nobody_is_gone);
        FAIL("no error");
    } catch (const hvd::peer_error& e) {
        CHECK(e.peers() == std::vector<int>{1, 2});
        CHECK(std::string(e.what()).find("from rank 1, 2") != std::string::npos);
    }
}

TEST_CASE("messages arrive whole and in order, however large they are") {
    std::atomic<int> done{0};
    hvd::run_threads(4, [&](hvd::communicator<hvd::threads>& comm) {
        link_tree links(comm, {.fanout = 2});
        const int me = comm.rank();
        std::vector<int> others;
        if (me > 0) others.push_back((me - 1) / 2);
        for (int c = 2 * me + 1; c <= 2 * me + 2 && c < 4; ++c) others.push_back(c);
        const std::size_t sizes[] = {0, 1, 5, 70000, 3, 3000000, 16384, 16380, 9};
        for (const int to : others)
            for (const std::size_t n : sizes)
                links.send(to, std::vector<std::byte>(n, std::byte(me + int(n))));
        std::vector<std::size_t> next(4);
        for (std::size_t got = 0; got < others.size() * std::size(sizes);) {
            links.wait(INT64_MAX);
            for (link_tree::received r; links.next(r); ++got) {
                const std::size_t n = sizes[next[std::size_t(r.from)]++];
                REQUIRE(r.bytes.size() == n);
                const std::byte expected{std::uint8_t(r.from + int(n))};
                REQUIRE(std::count(r.bytes.begin(), r.bytes.end(), expected) == std::ptrdiff_t(n));
            }
        }
        for (++done; done < 4;) links.wait(tuning::millisecond);  // it still writes
    });
}

TEST_CASE("a neighbour that is gone is told once, and a message that is too long ends the link") {
    hvd::run_threads(3, [](hvd::communicator<hvd::threads>& comm) {
        link_tree links(comm, {.fanout = 2});
        if (comm.rank() != 0) links.close();
        link_tree::lost l;
        for (int lost = 0; comm.rank() == 0 && lost < 2;) {
            links.wait(INT64_MAX);
            for (; links.next_lost(l); ++lost) CHECK(l.reason == "it was closed");
        }
        CHECK(!links.next_lost(l));
        comm.barrier();
    });
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    framed_socket in(1, descriptor(ends[0]));
    const descriptor out(ends[1]);
    say(out, {std::byte(255), std::byte(255), std::byte(255), std::byte(255)});
    in.fill();
    std::span<const std::byte> message;
    CHECK(!in.next(message));
    CHECK(!in.is_open());
    CHECK(std::string(in.reason()) == "a message is too long");
}

TEST_CASE("the last words of a neighbour are heard, also by a rank that writes before it reads") {
    for (const bool reads_first : {false, true})
        hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& comm) {
            link_tree links(comm, {});
            const std::vector<std::byte> words(32, std::byte(7));
            if (comm.rank() == 0) links.send(1, words);
            links.flush();
            comm.barrier();
            if (comm.rank() == 1) {
                if (reads_first) links.wait(tuning::second);
                links.send(0, words);
                links.close();
            }
            comm.barrier();
            if (comm.rank() == 1) return;
            links.send(1, words);
            links.flush();
            sleep_for(20 * tuning::millisecond);
            links.send(1, words);
            links.wait(INT64_MAX);
            link_tree::received r;
            CHECK(links.next(r));
            link_tree::lost l;
            while (!links.next_lost(l)) links.wait(INT64_MAX);
            CHECK(l.neighbour == 1);
        });
}

TEST_CASE("any number of wake-ups from any thread wake the sleeper") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& comm) {
        link_tree links(comm, {});
        std::atomic<int> asked{0}, seen{0};
        std::vector<std::thread> wakers;
        for (int t = 0; t < 3; ++t)
            wakers.emplace_back([&] {
                for (int i = 0; i < 2000; ++i) {
                    ++asked;
                    links.wake();
                }
            });
        while (seen < 6000) {
            links.wait(INT64_MAX);
            seen = asked.load();
        }
        for (std::thread& t : wakers) t.join();
    });
}

TEST_CASE("an engine of one host listens at the loopback address alone") {
    binds_elsewhere = 0;
    binds = 0;
    setenv("HVD_NETWORK_INTERFACE", "no-such-0", 1);
    hvd::run_threads(3, [](hvd::communicator<hvd::threads>& comm) {
        hvd::engine e{comm};
        e.barrier().wait();
    });
    unsetenv("HVD_NETWORK_INTERFACE");
    CHECK(binds == 3);
    CHECK(binds_elsewhere == 0);
}

TEST_CASE("engines leave no descriptors behind") {
    const int before = open_descriptors();
    for (int i = 0; i < 50; ++i)
        hvd::run_threads(3, [](hvd::communicator<hvd::threads>& comm) {
            hvd::engine e{comm};
            std::vector<float> x(3, 1);
            e.allreduce("x", x, hvd::sum).wait();
        });
    CHECK(open_descriptors() <= before + 1);
}

}  // namespace connections_tests
