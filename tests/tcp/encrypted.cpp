// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "wires.hpp"

namespace encrypted_tests {

// Encrypted connections: who hears and changes what passes on its way, and who does not know the
// secret.

using namespace hvd::detail;
using namespace hvd_test;

namespace {

using bytes = std::vector<std::byte>;

// Two ranks, and somebody between them. He sees what passes from rank to rank, and may change it.
template <class Wire>
class tapped_pair {
public:
    explicit tapped_pair(std::uint64_t records_of_a_key = 1 << 24) {
        for (int r = 0; r < 2; ++r) {
            descriptor ends[2];
            open_both_ends(ends);
            tap_[r] = std::move(ends[1]);
            if constexpr (std::is_same_v<Wire, plain_wire>)
                end[r] = messages_of(r, plain_wire(std::move(ends[0])));
            else
                end[r] = messages_of(
                    r, tls_wire(std::move(ends[0]), r == 1, secret_of_test, records_of_a_key));
        }
    }

    // One message from each rank to the other. False if it does not arrive.
    bool exchange(const bytes& from_0, const bytes& from_1) {
        got[0].assign(from_1.size(), std::byte(0));
        got[1].assign(from_0.size(), std::byte(0));
        for (int r = 0; r < 2; ++r) {
            const bytes& mine = r == 0 ? from_0 : from_1;
            end[r].receive(1 - r, got[r].data(), got[r].size());
            end[r].send(1 - r, mine.data(), mine.size());
        }
        return go_on();
    }
    bool go_on() {
        for (int i = 0; i < 20000; ++i) {
            const bool one = end[0].poll(), other = end[1].poll();
            if (one && other) return true;
            const bool forth = pump(0), back = pump(1);
            if (forth || back || i < 100) continue;
            message why;
            if (!end[0].lost(why).empty() || !end[1].lost(why).empty()) return false;
        }
        return false;
    }

    // Somebody ends both connections.
    void cut() {
        for (descriptor& t : tap_) t = descriptor();
    }
    // Somebody speaks in the name of the other rank.
    void say_to(int rank, const bytes& data) {
        CHECK(::send(tap_[rank].number(), data.data(), data.size(), MSG_NOSIGNAL) ==
              ssize_t(data.size()));
    }

    basic_tcp_messages<Wire> end[2];
    bytes got[2], seen[2];  // what each rank has got, and what it has sent
    // Changes bytes of a rank, of which so many have passed before.
    std::function<void(int rank, std::size_t before, bytes& data)> change;

private:
    bool pump(int rank) {
        if (!tap_[rank]) return false;
        bytes data(65536);
        const ssize_t n = ::recv(tap_[rank].number(), data.data(), data.size(), 0);
        if (n <= 0) return false;
        data.resize(std::size_t(n));
        const std::size_t before = seen[rank].size();
        seen[rank].insert(seen[rank].end(), data.begin(), data.end());
        if (change) change(rank, before, data);
        for (std::size_t sent = 0; sent < data.size();) {
            const ssize_t m = ::send(tap_[1 - rank].number(), data.data() + sent,
                                     data.size() - sent, MSG_NOSIGNAL);
            if (m > 0) sent += std::size_t(m);
            else if (errno == EAGAIN) end[1 - rank].poll();
            else break;
        }
        return true;
    }

    descriptor tap_[2];
};

bytes text_of(const std::string& words, int times) {
    bytes all;
    for (int i = 0; i < times; ++i)
        for (const char c : words) all.push_back(std::byte(c));
    return all;
}

bool has(const bytes& all, const std::string& words) {
    const bytes part = text_of(words, 1);
    return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

// The bytes of the records that a rank has sent, but for the heads.
std::vector<std::size_t> records_of(const bytes& seen) {
    std::vector<std::size_t> all;
    for (std::size_t at = sizeof(frame); at + 5 <= seen.size(); at += 5 + all.back())
        all.push_back(std::size_t(seen[at + 3]) << 8 | std::size_t(seen[at + 4]));
    return all;
}

constexpr const char* marker = "the weights of the model";

}  // namespace

TEST_CASE("somebody between two ranks reads what they send on plain wires, and not on encrypted") {
    const auto both_see = [](auto pair, bool sees) {
        const bytes first = text_of(marker, 20000), second = text_of(marker, 1);
        REQUIRE(pair->exchange(first, second));
        CHECK(pair->got[1] == first);
        CHECK(pair->got[0] == second);
        failure_notice news;
        CHECK(pair->end[0].send_notice(1, notice_of(0, word::failed, "the disk is full", {0})));
        pair->go_on();
        CHECK(has(pair->seen[0], marker) == sees);
        CHECK(has(pair->seen[1], marker) == sees);
        for (int i = 0; i < 1000 && !pair->end[1].receive_notice(news); ++i) pair->exchange({}, {});
        CHECK(std::string(news.text) == "the disk is full");
        CHECK(has(pair->seen[0], "the disk is full") == sees);
    };
    both_see(std::make_unique<tapped_pair<plain_wire>>(), true);
    both_see(std::make_unique<tapped_pair<tls_wire>>(), false);
}

TEST_CASE("each connection has keys of its own, though the secret is the same") {
    bytes seen[2];
    for (bytes& s : seen) {
        tapped_pair<tls_wire> pair;
        const bytes same = text_of(marker, 100);
        REQUIRE(pair.exchange(same, same));
        s = pair.seen[0];
    }
    CHECK(seen[0].size() == seen[1].size());
    CHECK(!std::equal(seen[0].end() - 1000, seen[0].end(), seen[1].end() - 1000));
}

TEST_CASE("a byte that is changed on its way ends the connection, and nothing wrong is received") {
    std::mt19937 random(1);
    const bytes from_0 = random_bytes(40000, random), from_1 = random_bytes(40000, random);
    std::size_t all = 0;  // bytes that a rank sends
    {
        tapped_pair<tls_wire> pair;
        REQUIRE(pair.exchange(from_0, from_1));
        all = std::min(pair.seen[0].size(), pair.seen[1].size());
    }
    for (int i = 0; i < 40; ++i) {
        const int rank = i % 2;
        // Every second one is in the handshake.
        const std::size_t at = random() % (i % 4 < 2 ? 400 : all);
        INFO("byte ", at, " of rank ", rank);
        tapped_pair<tls_wire> pair;
        bool changed = false;
        pair.change = [&](int from, std::size_t before, bytes& data) {
            if (from != rank || at < before || at >= before + data.size()) return;
            data[at - before] ^= std::byte(1 << random() % 8);
            changed = true;
        };
        const bool arrived = pair.exchange(from_0, from_1);
        REQUIRE(changed);
        CHECK_FALSE(arrived);
        const std::string why = why_lost(pair.end[1 - rank], rank);
        CHECK_MESSAGE(why.starts_with("rank " + std::to_string(rank) + " is gone ("), why);
        for (int r = 0; r < 2; ++r) {
            const bytes& right = r == 0 ? from_1 : from_0;
            const auto [wrong, there] =
                std::mismatch(pair.got[r].begin(), pair.got[r].end(), right.begin());
            CHECK(std::all_of(wrong, pair.got[r].end(),
                              [](std::byte b) { return b == std::byte(0); }));
            static_cast<void>(there);
        }
        CHECK(pair.end[1 - rank].pending(rank));
    }
}

TEST_CASE("bytes that are left out, sent twice, or cut off end the connection") {
    const auto lost_after = [](const char* reason, auto change) {
        tapped_pair<tls_wire> pair;
        REQUIRE(pair.exchange(text_of("a", 10), text_of("b", 10)));
        change(pair);
        CHECK_FALSE(pair.exchange(text_of(marker, 5000), text_of("c", 10)));
        CHECK(pair.end[1].pending(0));
        const std::string why = why_lost(pair.end[1], 0);
        CHECK_MESSAGE(why.find(reason) != std::string::npos, why);
    };
    lost_after("TLS: decryption failed or bad record mac", [](auto& pair) {
        pair.change = [](int rank, std::size_t, bytes& data) {
            if (rank == 0) data.insert(data.end(), data.begin(), data.end());
        };
    });
    lost_after("rank 0 is gone (", [&](auto& pair) {
        pair.change = [](int rank, std::size_t, bytes& data) {
            if (rank == 0) data.erase(data.begin(), data.begin() + std::ptrdiff_t(data.size() / 2));
        };
    });
    lost_after("its connection was closed", [](auto& pair) { pair.cut(); });
    // A record that is longer than TLS allows, and one that is not encrypted.
    const auto said = [](std::initializer_list<int> head) {
        return [head](auto& pair) {
            bytes data;
            for (const int b : head) data.push_back(std::byte(b));
            data.resize(20000);
            pair.say_to(1, data);
        };
    };
    lost_after("TLS: ", said({0x17, 3, 3, 0xff, 0xff}));
    lost_after("TLS: ", said({0x16, 3, 3, 0, 4}));
    lost_after("TLS: ", said({0, 0, 0, 0, 0}));
}

TEST_CASE("bytes that no rank sends end the connection, whenever they come") {
    for (int seed = 0; seed < 40; ++seed) {
        std::mt19937 random{unsigned(seed)};
        descriptor socket[2];
        open_both_ends(socket);
        auto end = messages_over<tls_wire>(socket, seed % 2);
        const int other = 1 - seed % 2;
        bytes noise = random_bytes(8 + random() % 5000, random);
        const frame greeting{0, frame::kind::encrypted};
        if (seed % 4 < 2) std::memcpy(noise.data(), &greeting, sizeof greeting);
        CHECK(::send(socket[other].number(), noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
        ::shutdown(socket[other].number(), SHUT_WR);
        std::byte place[64];
        end.receive(other, place, sizeof place);
        const std::string why = why_lost(end, other);
        CHECK_MESSAGE(
            why.find(seed % 4 < 2 ? "is gone (" : "it does not encrypt") != std::string::npos, why);
    }
}

TEST_CASE("a rank that encrypts and one that does not refuse each other, and say why") {
    for (int encrypts = 0; encrypts < 2; ++encrypts) {
        descriptor socket[2];
        open_both_ends(socket);
        auto with = messages_over<tls_wire>(socket, encrypts);
        auto without = messages_over<plain_wire>(socket, 1 - encrypts);
        std::byte sent[100] = {}, got[100];
        with.receive(1 - encrypts, got, sizeof got);
        with.send(1 - encrypts, sent, sizeof sent);
        without.receive(encrypts, got, sizeof got);
        without.send(encrypts, sent, sizeof sent);
        const std::string one = why_lost(with, 1 - encrypts), other = why_lost(without, encrypts);
        CHECK_MESSAGE(one.find("it does not encrypt its connections, and this rank does") !=
                          std::string::npos,
                      one);
        CHECK_MESSAGE(
            other.find("it encrypts its connections, and this rank does not") != std::string::npos,
            other);
    }
}

TEST_CASE("ranks with different secrets refuse each other, and say why") {
    descriptor socket[2];
    open_both_ends(socket);
    std::byte sent[100] = {}, got[2][100];
    shared_secret others = secret_of_test;
    others[31] ^= std::byte(1);
    auto a = messages_of(0, tls_wire(std::move(socket[0]), false, secret_of_test));
    auto b = messages_of(1, tls_wire(std::move(socket[1]), true, others));
    a.receive(1, got[0], sizeof got[0]);
    b.receive(0, got[1], sizeof got[1]);
    a.send(1, sent, sizeof sent);
    b.send(0, sent, sizeof sent);
    for (int i = 0; i < 100; ++i) {
        a.poll();
        b.poll();
    }
    CHECK(why_lost(a, 1) == "rank 1 is gone (TLS: binder does not verify)");
    const std::string why = why_lost(b, 0);
    CHECK_MESSAGE(why.find("TLS: ") != std::string::npos, why);
    CHECK(ERR_peek_error() == 0);
}

namespace {

// A peer that knows no secret and speaks TLS all the same.
class outsider {
public:
    outsider(descriptor socket, bool connects)
        : socket_(std::move(socket)), context_(SSL_CTX_new(TLS_method())), ssl_(nullptr) {
        EVP_PKEY* const key = EVP_EC_gen("P-256");
        X509* const paper = X509_new();
        X509_gmtime_adj(X509_getm_notBefore(paper), 0);
        X509_gmtime_adj(X509_getm_notAfter(paper), 3600);
        X509_set_pubkey(paper, key);
        X509_sign(paper, key, EVP_sha256());
        SSL_CTX_use_certificate(context_, paper);
        SSL_CTX_use_PrivateKey(context_, key);
        X509_free(paper);
        EVP_PKEY_free(key);
        ssl_ = SSL_new(context_);
        SSL_set_fd(ssl_, socket_.number());
        connects ? SSL_set_connect_state(ssl_) : SSL_set_accept_state(ssl_);
        const frame greeting{0, frame::kind::encrypted};
        CHECK(::send(socket_.number(), &greeting, sizeof greeting, MSG_NOSIGNAL) == 8);
    }
    ~outsider() {
        SSL_free(ssl_);
        SSL_CTX_free(context_);
        ERR_clear_error();
    }
    bool advance() {
        if (!greeted_)
            return greeted_ = ::recv(socket_.number(), &heard_, sizeof heard_, 0) == 8, false;
        return SSL_do_handshake(ssl_) == 1;
    }

private:
    descriptor socket_;
    SSL_CTX* context_;
    SSL* ssl_;
    bool greeted_ = false;
    frame heard_;
};

}  // namespace

TEST_CASE("a peer that has a certificate in the place of the secret is refused") {
    for (int rank = 0; rank < 2; ++rank) {
        descriptor socket[2];
        open_both_ends(socket);
        outsider other(std::move(socket[1 - rank]), rank == 0);
        auto end = messages_over<tls_wire>(socket, rank);
        std::byte place[64];
        end.receive(1 - rank, place, sizeof place);
        end.send(1 - rank, place, sizeof place);
        for (int i = 0; i < 100; ++i) {
            end.poll();
            CHECK_FALSE((other.advance() && rank == 0));
        }
        const std::string why = why_lost(end, 1 - rank);
        const char* const reason =
            rank == 1 ? "TLS: certificate verify failed" : "TLS: no suitable signature algorithm";
        CHECK_MESSAGE(why.find(reason) != std::string::npos, why);
    }
}

TEST_CASE("keys change after so many records, in both directions at once") {
    std::mt19937 random(3);
    std::size_t records[2];
    for (const std::uint64_t of_a_key : {std::uint64_t(1) << 24, std::uint64_t(3)}) {
        tapped_pair<tls_wire> pair(of_a_key);
        for (int i = 0; i < 4; ++i) {
            const bytes one = random_bytes(300000, random), other = random_bytes(200000, random);
            REQUIRE(pair.exchange(one, other));
            CHECK(pair.got[1] == one);
            CHECK(pair.got[0] == other);
        }
        records[of_a_key == 3] = records_of(pair.seen[0]).size();
    }
    CHECK(records[1] > records[0] + records[0] / 4);
}

TEST_CASE("errors of OpenSSL that the caller has not looked at stay, and none is added") {
    tapped_pair<tls_wire> pair;
    REQUIRE(pair.exchange(text_of("a", 10), text_of("b", 10)));
    ERR_raise(ERR_LIB_USER, 77);
    REQUIRE(pair.exchange(text_of("a", 100000), text_of("b", 100000)));
    pair.say_to(1, bytes(100));
    CHECK_FALSE(pair.exchange(text_of("a", 10), text_of("b", 10)));
    CHECK(ERR_GET_REASON(ERR_get_error()) == 77);
    CHECK(ERR_get_error() == 0);
}

TEST_CASE("a rank that leaves before the other has come gets its last words through") {
    descriptor socket[2];
    open_both_ends(socket);
    auto b = messages_over<tls_wire>(socket, 1);
    auto a = messages_over<tls_wire>(socket, 0);
    CHECK(a.send_notice(1, notice_of(0, word::failed, "gives up", {0})));
    CHECK(a.say_goodbye());  // the other has said nothing yet
    CHECK(a.has_words());
    failure_notice news;
    for (int i = 0; i < 100 && !b.receive_notice(news); ++i) a.say_goodbye();
    CHECK(std::string(news.text) == "gives up");
    CHECK_FALSE(a.has_words());
    CHECK(a.say_goodbye());
    while (b.say_goodbye() && a.say_goodbye()) {
    }
}

}  // namespace encrypted_tests
