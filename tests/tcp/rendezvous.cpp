// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <hvd/hvd.hpp>
#include <hvd/transport/tcp/job_secret.hpp>
#include <hvd/transport/tcp/launcher_variables.hpp>
#include <hvd/transport/tcp/meeting.hpp>
#include <hvd/transport/tcp/outgoing_connection.hpp>
#include <hvd/transport/tcp/rendezvous.hpp>
#include <hvd/transport/tcp/rendezvous_client.hpp>
#include <hvd/transport/tcp/tcp_job.hpp>

#include "hvd_test.hpp"
#include "sanitizers.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"
#include "wires.hpp"

namespace rendezvous_tests {

// The ranks of a job find each other, with the secret of the job and with nothing else.

using namespace hvd::detail;
using namespace std::chrono_literals;

namespace {

struct outcome {
    bool served = false;
    std::string failure;
    std::vector<int> peers;
};

// A rendezvous in a thread of its own.
class served {
public:
    served(int size, const shared_secret& secret, hvd::time_span timeout)
        : server(0, size, secret, timeout), thread_([this] {
              try {
                  result.served = server.serve();
              } catch (const hvd::peer_error& e) {
                  result.failure = e.what();
                  result.peers.assign(e.peers().begin(), e.peers().end());
              }
          }) {}

    const outcome& end() {
        thread_.join();
        return result;
    }
    std::string place() const { return "127.0.0.1:" + std::to_string(server.port()); }

    rendezvous_server server;
    outcome result;

private:
    std::thread thread_;
};

listening_place place_with(std::uint16_t port) {
    listening_place p;
    p.host = 7;
    p.port = port;
    return p;
}

// The outcome for one rank: the table, or the text of its error.
struct met {
    job_table table;
    std::string failure;
};

met come(const std::string& place, int rank, int size, const shared_secret& secret,
         std::int64_t seconds = 20) {
    met m;
    try {
        m.table =
            rendezvous_client(place, rank, size, secret)
                .meet(place_with(std::uint16_t(1000 + rank)), now() + seconds * tuning::second);
    } catch (const hvd::error& e) {
        m.failure = e.what();
    }
    return m;
}

std::vector<met> come_together(const std::string& place, const std::vector<int>& ranks, int size,
                               const shared_secret& secret) {
    std::vector<met> all(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i)
        threads.emplace_back([&, i] { all[i] = come(place, ranks[i], size, secret); });
    for (std::thread& t : threads) t.join();
    return all;
}

bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

descriptor stranger_at(std::uint16_t port) {
    descriptor s = begin_connect(host_address::loopback(), port);
    pollfd p{s.number(), POLLOUT, 0};
    ::poll(&p, 1, 1000);
    return s;
}

// True if the other side closes within some seconds.
bool is_closed(const descriptor& s) {
    for (int i = 0; i < 100; ++i) {
        pollfd p{s.number(), POLLIN, 0};
        ::poll(&p, 1, 100);
        std::byte b[256];
        const ssize_t n = ::recv(s.number(), b, sizeof b, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    }
    return false;
}

// Proves that a rank knows the secret.
void prove(const descriptor& s, int rank, const shared_secret& secret) {
    handshake talk(secret, rank, rendezvous_rank);
    while (talk.advance(s) == handshake::state::goes_on) {
        pollfd p{s.number(), POLLIN, 0};
        ::poll(&p, 1, 100);
    }
}

// A rank that knows the secret, up to where it registers.
descriptor proved(std::uint16_t port, int rank, const shared_secret& secret) {
    descriptor s = stranger_at(port);
    prove(s, rank, secret);
    return s;
}

// A rank that the rendezvous knows.
framed_socket registered(std::uint16_t port, int rank, int size, const shared_secret& secret) {
    framed_socket link(rendezvous_rank, proved(port, rank, secret));
    registration r;
    r.size = size;
    link.queue(wire_bytes(r));
    link.flush();
    return link;
}

// The reason by which a rendezvous that has ended refused a rank.
std::string refusal(framed_socket& link) {
    std::span<const std::byte> said;
    for (int i = 0; i < 1000 && !link.next(said); ++i) link.fill();
    REQUIRE(said.size() > sizeof(rendezvous_answer));
    said = said.subspan(sizeof(rendezvous_answer));
    return {reinterpret_cast<const char*>(said.data()), said.size()};
}

}  // namespace

TEST_CASE("every rank gets the places of all, whichever comes first") {
    for (const int size : {1, 2, 3, 8}) {
        const shared_secret secret = new_secret();
        served s(size, secret, 20s);
        std::vector<int> ranks;
        for (int r = size; r-- > 0;) ranks.push_back(r);
        const std::vector<met> all = come_together(s.place(), ranks, size, secret);
        CHECK(s.end().served);
        for (const met& m : all) {
            CHECK(m.failure == "");
            REQUIRE(m.table.places.size() == std::size_t(size));
            CHECK(m.table.job == all[0].table.job);
            for (int r = 0; r < size; ++r) {
                CHECK(m.table.places[std::size_t(r)].port == 1000 + r);
                CHECK(m.table.places[std::size_t(r)].host == 7);
            }
        }
    }
}

TEST_CASE("a rank may come before the rendezvous is there") {
    const shared_secret secret = new_secret();
    std::uint16_t port = 0;
    {
        const listening_socket reserved(0);
        port = reserved.port();
    }
    met m;
    std::thread early([&] { m = come("127.0.0.1:" + std::to_string(port), 0, 1, secret); });
    std::this_thread::sleep_for(100ms);
    rendezvous_server server(port, 1, secret, 20s);
    CHECK(server.serve());
    early.join();
    CHECK(m.failure == "");
    CHECK(m.table.places.size() == 1);
}

TEST_CASE("ranks that do not come are named to the server and to those that have come") {
    const shared_secret secret = new_secret();
    served s(4, secret, 500ms);
    const std::vector<met> all = come_together(s.place(), {0, 2}, 4, secret);
    const outcome& o = s.end();
    CHECK(has(o.failure, "rank 1, rank 3 of 4 did not come in time"));
    CHECK(o.peers == std::vector<int>{1, 3});
    for (const met& m : all) CHECK(has(m.failure, "rank 1, rank 3 of 4 did not come in time"));
}

TEST_CASE("who does not know the secret learns nothing, and is counted") {
    const shared_secret secret = new_secret(), other = new_secret();
    served s(2, secret, 1500ms);
    const met stranger = come(s.place(), 1, 2, other);
    CHECK(has(stranger.failure, "does not know the secret of this job"));
    const met m = come(s.place(), 0, 2, secret);
    CHECK(has(m.failure, "rank 1 of 2 did not come in time (1 connection was refused"));
    CHECK_FALSE(s.end().served);
}

TEST_CASE("of several connections that were refused the last one has its reason told") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, 0);
    const auto refused = [&] { return std::string(std::string_view(waiting.print_refused())); };
    const auto await = [&](const char* count) {
        while (!has(refused(), count))
            waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
    };
    CHECK(refused() == "");
    const descriptor noise = stranger_at(listener.port());
    const std::vector<std::byte> bytes(36);
    send_some(noise, bytes.data(), bytes.size());
    await("(1 connection was refused");
    CHECK(has(refused(), "the last one because it does not speak hvd's protocol)"));
    {
        const descriptor gone = stranger_at(listener.port());
    }
    await("(2 connections were refused");
    CHECK(has(refused(), "the last one because it was closed)"));
}

TEST_CASE("a rank that is dropped before it was let in knows it, and comes again") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, 0);
    outgoing_connection rank3(secret, 3, 0, place_with(listener.port()), true);
    descriptor let_in;
    const auto turn = [&] {
        pollfd wanted{};
        const bool tries = rank3.prepare(wanted);
        if (tries) ::poll(&wanted, 1, 100);
        const bool is_done = tries && rank3.advance(wanted.revents != 0);
        waiting.advance(listener, [&](int, std::uint64_t, descriptor s) { let_in = std::move(s); });
        return is_done;
    };
    REQUIRE_FALSE(turn());  // it has got the answer to its greeting
    std::vector<descriptor> others;
    for (int i = 0; i < 256; ++i) others.push_back(stranger_at(listener.port()));
    waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
    CHECK(has(std::string(std::string_view(waiting.print_refused())), "too many came at once"));
    bool is_done = false;
    for (int i = 0; i < 1000 && !is_done; ++i) is_done = turn();
    REQUIRE(is_done);
    REQUIRE(let_in);
    const descriptor mine = rank3.take();
    const std::byte sent{42};
    CHECK(send_some(mine, &sent, 1) == 1);
    pollfd readable{let_in.number(), POLLIN, 0};
    ::poll(&readable, 1, 1000);
    std::byte got{};
    CHECK(::recv(let_in.number(), &got, 1, 0) == 1);
    CHECK(got == sent);
}

TEST_CASE("a peer that has proved itself is waited for, and one that has not is dropped") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, 0);
    outgoing_connection rank3(secret, 3, 0, place_with(listener.port()), true, 0, 50'000'000);
    int times = 0;
    const auto look_for_long = [&] {
        for (int i = 0; i < 100; ++i) {
            rank3.advance(false);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    };
    descriptor let_in;
    const auto turn = [&] {
        pollfd wanted{};
        if (!rank3.prepare(wanted)) return false;
        ::poll(&wanted, 1, 100);
        return rank3.advance(wanted.revents != 0);
    };
    const auto accept = [&] {
        waiting.advance(listener, [&](int, std::uint64_t, descriptor s) {
            let_in = std::move(s);
            ++times;
        });
    };
    REQUIRE_FALSE(turn());  // connected, and the greeting is sent
    look_for_long();
    CHECK(has(std::string(std::string_view(rank3.print())), "it does not answer"));
    bool is_done = turn();
    for (int i = 0; i < 100 && times == 0 && !is_done; ++i) {
        accept();
        is_done = turn();  // its proof is on its way
        look_for_long();   // the peer is busy
        accept();
    }
    CHECK(times == 1);
    for (int i = 0; i < 20 && !is_done; ++i) is_done = turn();
    REQUIRE(is_done);
    const descriptor mine = rank3.take();
    const std::byte sent{42};
    CHECK(send_some(mine, &sent, 1) == 1);
    pollfd readable{let_in.number(), POLLIN, 0};
    ::poll(&readable, 1, 1000);
    std::byte got{};
    CHECK(::recv(let_in.number(), &got, 1, 0) == 1);
    CHECK(got == sent);
}

TEST_CASE("a greeting that is changed on its way is refused, each byte of it") {
    const shared_secret secret = new_secret();
    constexpr std::size_t greeting_bytes = 36;
    for (std::size_t changed = 0; changed <= greeting_bytes; ++changed) {
        CAPTURE(changed);
        hvd::detail::descriptor connects[2], accepts[2];
        hvd_test::open_both_ends(connects);
        hvd_test::open_both_ends(accepts);
        handshake rank(secret, 3, 0, 17), peer(secret, 0, -1);
        // Somebody between them hands on what each says.
        std::size_t said = 0;
        const auto hand_on = [&](const descriptor& from, const descriptor& to, bool may_change) {
            std::byte bytes[256];
            const ssize_t n = ::recv(from.number(), bytes, sizeof bytes, 0);
            for (ssize_t i = 0; may_change && i < n; ++i)
                if (said++ == changed) bytes[i] ^= std::byte(1);
            if (n > 0) CHECK(send_some(to, bytes, std::size_t(n)) == n);
        };
        handshake::state of_rank{}, of_peer{};
        for (int i = 0; i < 4; ++i) {
            of_rank = rank.advance(connects[0]);
            hand_on(connects[1], accepts[1], said < greeting_bytes);
            of_peer = peer.advance(accepts[0]);
            if (of_peer == handshake::state::refused) connects[1] = descriptor();  // it closes
            else hand_on(accepts[1], connects[1], false);
        }
        const bool fits = changed == greeting_bytes;
        CHECK((of_rank == handshake::state::done) == fits);
        CHECK((of_peer == handshake::state::done) == fits);
        if (fits) CHECK(peer.context() == 17);
        if (fits) CHECK(peer.peer() == 3);
    }
}

TEST_CASE("a greeting of a rank above the largest number is refused, and that number is a rank") {
    const shared_secret secret = new_secret();
    for (const unsigned highest : {0x7fu, 0x80u, 0xffu}) {
        CAPTURE(highest);
        descriptor ends[2];
        hvd_test::open_both_ends(ends);
        handshake peer(secret, 0, -1);
        std::vector<std::byte> greeting(36, std::byte(0xff));
        std::memcpy(greeting.data(), "hvd lnk\x03", 8);
        greeting[11] = std::byte(highest);
        REQUIRE(send_some(ends[1], greeting.data(), greeting.size()) == 36);
        const bool is_rank = highest == 0x7f;
        CHECK((peer.advance(ends[0]) == handshake::state::goes_on) == is_rank);
        if (is_rank) CHECK(peer.peer() == INT32_MAX);
        else CHECK(std::string(peer.reason()) == "it gives a rank that does not exist");
    }
}

TEST_CASE("a proof that is not the rank's own is refused by the side that accepts") {
    struct forgery {
        const char* what;
        unsigned char rank = 3, context = 17, noise = 0;
        bool is_reflected = false;
    };
    const shared_secret secret = new_secret();
    for (const forgery& sent : {forgery{"none: it is let in"},
                                {.what = "of another rank", .rank = 4},
                                {.what = "for another context", .context = 18},
                                {.what = "with a wrong bit", .noise = 1},
                                {.what = "that of the other side", .is_reflected = true}}) {
        CAPTURE(sent.what);
        descriptor ends[2];
        hvd_test::open_both_ends(ends);
        handshake peer(secret, 0, -1);
        std::vector<std::byte> greeting(36);  // of rank 3 for the context 17
        std::memcpy(greeting.data(), "hvd lnk\x03", 8);
        greeting[8] = std::byte(3);
        greeting[12] = std::byte(17);
        REQUIRE(send_some(ends[1], greeting.data(), greeting.size()) == 36);
        REQUIRE(peer.advance(ends[0]) == handshake::state::goes_on);
        std::byte answer[48];
        REQUIRE(::recv(ends[1].number(), answer, sizeof answer, 0) == 48);
        std::array<std::byte, 8 + 16 + 32> said{};
        std::memcpy(said.data(), "connect", 7);
        said[8] = std::byte(sent.rank);
        said[16] = std::byte(sent.context);
        std::memcpy(said.data() + 40, answer, 16);
        digest256 proof = hmac_sha256(secret, said);
        proof[31] ^= std::byte(sent.noise);
        if (sent.is_reflected) std::memcpy(proof.data(), answer + 16, sizeof proof);
        send_some(ends[1], proof.data(), sizeof proof);
        const bool is_let_in = peer.advance(ends[0]) == handshake::state::done;
        CHECK(is_let_in == std::string_view(sent.what).starts_with("none"));
        if (!is_let_in)
            CHECK(std::string(peer.reason()) == "it does not know the secret of this job");
    }
}

TEST_CASE("who says nothing is dropped: a stranger, and a rank that does not register") {
    const shared_secret secret = new_secret();
    served s(2, secret, 20s);
    const framed_socket first = registered(s.server.port(), 0, 2, secret);
    const descriptor unregistered = proved(s.server.port(), 1, secret);
    const listening_socket listener(0);
    pending_connections waiting(secret, 0);
    const descriptor silent = stranger_at(listener.port());
    for (int i = 0; i < 1000 && std::string_view(waiting.print_refused()).empty(); ++i) {
        waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
        std::this_thread::sleep_for(10ms);
    }
    CHECK(is_closed(silent));
    CHECK(has(std::string(std::string_view(waiting.print_refused())), "it said nothing"));
    CHECK(has(s.end().failure, "rank 1 does not register"));
    CHECK(s.result.peers == std::vector<int>{1});
    CHECK(is_closed(unregistered));
}

TEST_CASE("who is not looked at for long is not dropped for his silence") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, 0, 2, 500 * tuning::millisecond);
    const auto look = [&] { waiting.advance(listener, [](int, std::uint64_t, descriptor) {}); };
    const descriptor slow = stranger_at(listener.port());
    look();
    std::this_thread::sleep_for(1s);  // this process has no processor, and the peer may have none
    look();
    CHECK(std::string_view(waiting.print_refused()).empty());
    for (int i = 0; i < 1000 && std::string_view(waiting.print_refused()).empty(); ++i) {
        look();
        std::this_thread::sleep_for(10ms);
    }
    CHECK(has(std::string(std::string_view(waiting.print_refused())), "it said nothing"));
}

TEST_CASE("all ranks of a job may come at once") {
    constexpr int ranks = 300;
    const shared_secret secret = new_secret();
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    if (before.rlim_max < 8 * ranks) return;
    const rlimit enough{before.rlim_max, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &enough) == 0);
    const listening_socket listener(0);
    pending_connections waiting(secret, 0, ranks);
    std::vector<descriptor> all;
    for (int i = 0; i < ranks; ++i) all.push_back(stranger_at(listener.port()));
    for (int i = 0; i < 3; ++i) waiting.advance(listener, [](int, std::uint64_t, descriptor) {});
    CHECK(std::string_view(waiting.print_refused()).empty());
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a rendezvous that says nothing is not waited for beyond the timeout") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    pending_connections waiting(secret, rendezvous_rank);
    std::vector<descriptor> ranks;
    std::atomic<bool> is_over = false;
    std::thread silent([&] {
        while (!is_over) {
            waiting.advance(
                listener, [&](int, std::uint64_t, descriptor s) { ranks.push_back(std::move(s)); });
            std::this_thread::sleep_for(1ms);
        }
    });
    rendezvous_client client("127.0.0.1:" + std::to_string(listener.port()), 1, 2, secret);
    CHECK_THROWS_WITH_AS(client.meet({}, now() + 300 * tuning::millisecond),
                         doctest::Contains("did not say in time that all ranks have come"),
                         hvd::peer_error);
    is_over = true;
    silent.join();
    CHECK(ranks.size() == 1);
}

TEST_CASE("a rank that looks for a reason to give up until the time is over still gives up") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    const time_point limit = now() + tuning::millisecond;
    bool has_waited = false;
    const auto gone = [&] {
        while (!has_waited && now() < limit + 20 * tuning::millisecond)
            std::this_thread::sleep_for(1ms);
        has_waited = true;
        return false;
    };
    CHECK_THROWS_AS(meeting(0, secret, listener).run(-1, {}, true, {1}, limit, gone),
                    hvd::timeout_error);
}

TEST_CASE("a rank tries the other addresses of a host when the first is dead") {
    const shared_secret secret = new_secret();
    const listening_socket listener(0);
    listening_place place = place_with(listener.port());
    host_address dead;  // no TCP connects to it
    for (int i = 0; i < 4; ++i) dead.bytes[i] = 255;
    place.add(dead);
    place.add(host_address::loopback());
    pending_connections waiting(secret, 0);
    outgoing_connection rank3(secret, 3, 0, place, false);
    bool is_done = false;
    int who = -1;
    for (int i = 0; i < 500 && !is_done; ++i) {
        pollfd wanted{};
        if (rank3.prepare(wanted)) {
            ::poll(&wanted, 1, 10);
            is_done = rank3.advance(wanted.revents != 0);
        } else {
            std::this_thread::sleep_for(1ms);
        }
        waiting.advance(listener, [&](int peer, std::uint64_t, descriptor) { who = peer; });
    }
    CHECK(is_done);
    CHECK(who == 3);
}

TEST_CASE("an address that leads nowhere costs little, and a far host is waited for in the end") {
    const std::int64_t whole = patience_with_host;
    const std::int64_t expected[] = {whole / 8, whole / 4, whole / 2, whole, whole};
    for (std::size_t round = 0; round < std::size(expected); ++round)
        CHECK(patience_in_round(round) == expected[round]);
    CHECK(patience_in_round(std::size_t(-1)) == whole);
}

TEST_CASE("a connection for a communicator that is made later waits for it") {
    const shared_secret secret = new_secret();
    listening_socket listeners[2] = {listening_socket(0), listening_socket(1)};
    std::vector<listening_place> places;
    for (const listening_socket& l : listeners) places.push_back(place_with(l.port()));
    job_connections rank0(0, secret, std::move(listeners[0]), places);
    job_connections rank1(1, secret, std::move(listeners[1]), places);
    const int both[] = {0, 1};
    const auto make = [&](job_connections& rank, std::uint64_t context) {
        const auto never = [] { return false; };
        return rank.connect(context, both, now() + 5 * tuning::second, true, never, never);
    };
    // Rank 1 makes the communicators 1 and 2, and rank 0 makes the second one first.
    std::vector<descriptor> theirs[2];
    std::thread other([&] {
        theirs[0] = make(rank1, 1);
        theirs[1] = make(rank1, 2);
    });
    const auto second = make(rank0, 2);
    CHECK(second[1]);
    std::vector<descriptor> first;
    CHECK_NOTHROW(first = make(rank0, 1));
    other.join();
    CHECK((theirs[0][0] && theirs[1][0]));
}

namespace {

// Rank 1 of a job makes a communicator of the ranks 4, 1, 6 and 7. The test plays the others, which
// connect to it: the last one only when the others are there and have said what they had to say.
class making_by_hand {
public:
    explicit making_by_hand(std::function<void(making_by_hand&)> say) : say_(std::move(say)) {
        listening_socket listener(1);
        std::vector<listening_place> places(8);
        places[1] = place_with(listener.port());
        for (const int rank : {4, 6, 7})
            outgoing_.emplace_back(secret_, rank, 1, places[1], true, context);
        connections_.emplace(1, secret_, std::move(listener), std::move(places));
        fail();
    }

    const std::string& why() const { return why_; }
    const std::vector<int>& named() const { return named_; }
    bool is_explained() const { return is_explained_; }

    // Ranks 4 and 6 are the first two. Each ends its connection. It may have sent data before.
    void say(std::size_t number, const failure_notice& last, bool behind_data = false) {
        if (behind_data) {
            std::vector<std::byte> data(sizeof(frame) + 200);
            const frame head_of_data{200, frame::kind::last};
            std::memcpy(data.data(), &head_of_data, sizeof head_of_data);
            send_some(sockets_[number], data.data(), data.size());
        }
        const frame head{sizeof last, frame::kind::notice};
        send_some(sockets_[number], reinterpret_cast<const std::byte*>(&head), sizeof head);
        send_some(sockets_[number], reinterpret_cast<const std::byte*>(&last), sizeof last);
        close(number);
    }
    void close(std::size_t number) { sockets_[number] = descriptor(); }

    // The message of rank 1 to rank 7.
    failure_notice told() {
        while (!sockets_[2]) go_on(2);
        plain_wire wire(std::move(sockets_[2]));
        frame_reader in;
        in.set_up();
        failure_notice news;
        REQUIRE(in.take_notice(wire, news));
        return news;
    }

private:
    static constexpr std::uint64_t context = 17;

    void go_on(std::size_t number) {
        pollfd wanted{};
        if (sockets_[number] || !outgoing_[number].prepare(wanted)) return;
        ::poll(&wanted, 1, 0);
        if (outgoing_[number].advance(wanted.revents != 0))
            sockets_[number] = outgoing_[number].take();
    }
    void meanwhile() {
        if (has_said_) return go_on(2);
        go_on(0);
        go_on(1);
        has_said_ = sockets_[0] && sockets_[1];
        if (has_said_) say_(*this);
    }

    void fail() try {
        const int ranks[] = {4, 1, 6, 7};
        connections_->connect(
            context, ranks, now() + 20 * tuning::second, true,
            [this] {
                meanwhile();
                return false;
            },
            [] { return false; });
        FAIL("it was made");
    } catch (const hvd::peer_error& e) {
        why_ = e.what();
        named_ = e.peers();
        is_explained_ = dynamic_cast<const unexplained_end*>(&e) == nullptr;
    }

    const shared_secret secret_ = new_secret();
    std::optional<job_connections> connections_;
    std::vector<outgoing_connection> outgoing_;
    descriptor sockets_[3];
    std::function<void(making_by_hand&)> say_;
    bool has_said_ = false;
    std::string why_;
    std::vector<int> named_;
    bool is_explained_ = false;
};

}  // namespace

TEST_CASE("who ends the making of a communicator is named, or whom he names, to all its ranks") {
    const std::string making = "hvd: making of a communicator on rank 1: ";
    const auto failed = [](std::vector<int> ranks, const char* text = "no descriptors") {
        return notice_of(0, word::failed, text, ranks);
    };
    struct {
        const char* what;
        std::vector<failure_notice> said;
        int named;
        std::string why;
    } const cases[] = {
        {"itself", {failed({0})}, 0, "no descriptors"},
        {"another rank", {failed({2})}, 2, "no descriptors"},
        {"a rank that has not come", {failed({3})}, 3, "no descriptors"},
        {"the rank that is told", {failed({1})}, 0, "no descriptors"},
        {"nobody", {failed({})}, 0, "no descriptors"},
        {"a rank that does not exist", {failed({4})}, 0, ""},
        {"that it departs", {notice_of(0, word::departs, "goodbye", {0})}, 0, ""},
        {"nothing", {}, 0, ""},
        {"what comes first counts", {failed({0}), failed({2}, "later")}, 0, "no descriptors"},
    };
    const auto check = [&](const auto& c, bool behind_data) {
        CAPTURE(c.what);
        CAPTURE(behind_data);
        making_by_hand made([&](making_by_hand& m) {
            for (std::size_t i = 0; i < c.said.size(); ++i) m.say(i, c.said[i], behind_data);
            if (c.said.empty()) m.close(0);
        });
        const std::string why = c.why.empty() ? "rank 0 has given it up" : c.why;
        CHECK(made.why() == making + why);
        CHECK(made.named() == std::vector<int>{c.named});
        CHECK(made.is_explained() == !c.why.empty());
        const failure_notice told = made.told();
        CHECK(told.what == word::failed);
        CHECK(told.sender == 1);
        CHECK(told.ranks[0] == c.named);
        CHECK(told.ranks[1] == -1);
        CHECK(std::string(told.text) == why);
    };
    for (const auto& c : cases)
        for (const bool behind_data : {false, true}) check(c, behind_data);
}

TEST_CASE("who gives a communicator up before another one makes it is heard by that at once") {
    const shared_secret secret = new_secret();
    listening_socket listener(0);
    std::vector<listening_place> places(2, place_with(listener.port()));
    job_connections rank0(0, secret, std::move(listener), places);
    const int both[] = {0, 1};
    const auto never = [] { return false; };
    for (const bool says_why : {true, false}) {
        CAPTURE(says_why);
        const std::uint64_t first = says_why ? 1 : 3, second = first + 1;
        // Rank 0 makes the first communicator. Meanwhile rank 1 gives the second one up.
        outgoing_connection of_second(secret, 1, 0, places[0], true, second),
            of_first(secret, 1, 0, places[0], true, first);
        descriptor kept, given_up;
        const auto go_on = [](outgoing_connection& c, descriptor& made) {
            pollfd wanted{};
            if (made || !c.prepare(wanted)) return;
            ::poll(&wanted, 1, 0);
            if (c.advance(wanted.revents != 0)) made = c.take();
        };
        int looks = 0;
        const auto meanwhile = [&] {
            if (looks == 0) go_on(of_second, given_up);
            if (given_up && looks == 0) {
                const failure_notice last = notice_of(1, word::failed, "no descriptors", {1});
                const frame head{sizeof last, frame::kind::notice};
                if (says_why) {
                    send_some(given_up, reinterpret_cast<const std::byte*>(&head), sizeof head);
                    send_some(given_up, reinterpret_cast<const std::byte*>(&last), sizeof last);
                }
                given_up = descriptor();
                looks = 1;
            }
            if (looks > 0 && ++looks > 5) go_on(of_first, kept);
            return false;
        };
        const auto made =
            rank0.connect(first, both, now() + 20 * tuning::second, true, meanwhile, never);
        REQUIRE(made[1]);
        try {
            rank0.connect(second, both, now() + 2 * tuning::second, true, never, never);
            FAIL("it was made");
        } catch (const hvd::peer_error& e) {
            CHECK(std::string(e.what()) ==
                  "hvd: making of a communicator on rank 0: " +
                      std::string(says_why ? "no descriptors" : "rank 1 has given it up"));
            CHECK(e.peers() == std::vector<int>{1});
        }
    }
}

TEST_CASE("only a close proves the end of a peer on another host, a reset may be the network's") {
    for (const bool is_within_host : {true, false}) {
        CAPTURE(is_within_host);
        CHECK(was_closed_by_peer(0, 0, is_within_host));
        for (const int error : {ECONNRESET, EPIPE}) {
            CHECK(was_closed_by_peer(error, 0, is_within_host) == is_within_host);
            CHECK(was_closed_by_peer(0, error, is_within_host) == is_within_host);
            CHECK(was_closed_by_peer(error, error, is_within_host) == is_within_host);
        }
        for (const int error : {ETIMEDOUT, EHOSTUNREACH, ENETDOWN}) {
            CHECK_FALSE(was_closed_by_peer(error, 0, is_within_host));
            CHECK_FALSE(was_closed_by_peer(0, error, is_within_host));
        }
    }
}

TEST_CASE("a write that has failed before the end of a stream leaves it open who has closed it") {
    const std::vector<std::byte> bytes(100);
    for (const bool is_within_host : {true, false})
        for (const bool writes : {false, true}) {
            CAPTURE(is_within_host);
            CAPTURE(writes);
            host_address at = host_address::loopback();  // it is connected to from 127.0.0.1
            at.bytes[3] = is_within_host ? 1 : 2;
            const listening_socket listener(-1, 0, std::span(&at, 1));
            descriptor mine = begin_connect(at, listener.port()), other;
            for (int i = 0; i < 1000 && !other; ++i) {
                other = listener.accept();
                if (!other) std::this_thread::sleep_for(1ms);
            }
            REQUIRE(other);
            framed_socket link(0, std::move(mine));
            other = descriptor();
            if (writes) {
                link.queue(bytes);
                link.flush();  // the other system answers by a reset
                pollfd p{link.number(), 0, 0};
                while ((p.revents & POLLERR) == 0) ::poll(&p, 1, 1000);
                link.queue(bytes);
                link.flush();
            }
            for (int i = 0; i < 1000 && link.is_open(); ++i) {
                link.fill();
                if (link.is_open()) std::this_thread::sleep_for(1ms);
            }
            REQUIRE_FALSE(link.is_open());
            CHECK(link.is_silent() == (writes && !is_within_host));
        }
}

TEST_CASE("ranks that do not come to a communicator are named with where they were looked for") {
    std::uint16_t closed = 0;
    {
        const listening_socket reserved(0);
        closed = reserved.port();
    }
    const shared_secret secret = new_secret();
    listening_socket listener(1);
    const std::string port = std::to_string(listener.port());
    std::vector<listening_place> places(4);
    places[0] = place_with(closed);
    places[0].host = places[1].host = 7;
    host_address far;
    const std::uint8_t address[4] = {192, 0, 2, 77};
    std::memcpy(far.bytes, address, sizeof address);
    places[3].add(far);
    job_connections rank1(1, secret, std::move(listener), places);
    const int ranks[] = {3, 1, 2, 0};
    const auto never = [] { return false; };
    try {
        rank1.connect(17, ranks, now() + 50 * tuning::millisecond, true, never, never);
        FAIL("it was made");
    } catch (const hvd::peer_error& e) {
        CHECK(std::string(e.what()) ==
              "hvd: making of a communicator on rank 1: rank 0 (of 192.0.2.77, to port " + port +
                  " here), rank 2, rank 3 (port " + std::to_string(closed) +
                  " of 127.0.0.1: Connection refused) did not come in time");
        CHECK(e.peers() == std::vector<int>{0, 2, 3});
    }
}

namespace {

// The connections of a communicator that has ended, of which something has still to go. A forked
// child sees the count.
struct counted_words {
    bool say_goodbye() noexcept {
        ++*said;
        return true;
    }
    bool has_words() const noexcept { return false; }
    std::atomic<int>* said;
};

}  // namespace

TEST_CASE("a forked child says no goodbye on the connections of its parent") {
    void* const memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    auto* const said = new (memory) std::atomic<int>(0);
    auto job = std::make_unique<tcp_job>(hvd::tcp_options{});
    job->end(counted_words{said});
    CHECK(*said == 1);
    const pid_t child = ::fork();
    if (child == 0) {
        job.reset();  // as exit() does
        ::_exit(0);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(*said == 1);
    job.reset();
    CHECK(*said == 2);
    ::munmap(memory, sizeof *said);
}

// The sanitizers need descriptors themselves: UBSan's look at an exception makes a pipe.
TEST_CASE("without descriptors there is an error at once, and everybody hears it" *
          doctest::skip(hvd_test::under_asan || hvd_test::under_tsan)) {
    const shared_secret secret = new_secret();
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    // So many more can be opened; the test opens no other.
    const auto leave = [&](int n) {
        std::vector<descriptor> next;
        for (int i = 0; i <= n; ++i) next.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        const rlimit lower{rlim_t(next.back().number()), before.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
    };
    SUBCASE("the rank that connects") {
        outgoing_connection c(secret, 1, 0, place_with(1), true);
        leave(0);
        pollfd wanted{};
        CHECK_THROWS_WITH_AS(c.prepare(wanted), "hvd: socket failed on rank 1: Too many open files",
                             hvd::usage_error);
    }
    SUBCASE("the rank that comes to the rendezvous") {
        const listening_socket listener(0);
        dial to_it(secret, 1, rendezvous_rank, 1);
        leave(0);
        const time_point soon = now() + 200 * tuning::millisecond;
        CHECK_THROWS_WITH_AS(to_it.to(host_address::loopback(), listener.port(), soon, soon),
                             "hvd: socket failed on rank 1: Too many open files", hvd::usage_error);
    }
    SUBCASE("the rank that is waited for") {
        const listening_socket listener(0);
        pending_connections waiting(secret, 0);
        const descriptor other = stranger_at(listener.port());
        leave(0);
        CHECK_THROWS_WITH_AS(waiting.advance(listener, [](int, std::uint64_t, descriptor) {}),
                             "hvd: accept failed on rank 0: Too many open files", hvd::usage_error);
    }
    SUBCASE("the rendezvous") {
        std::string failure;
        rendezvous_server server(0, 2, secret, 20s);
        descriptor first = stranger_at(server.port());
        const descriptor second = stranger_at(server.port());
        leave(1);
        std::thread serves([&] {
            try {
                server.serve();
            } catch (const hvd::usage_error& e) {
                failure = e.what();
            }
        });
        prove(first, 0, secret);
        framed_socket link(rendezvous_rank, std::move(first));
        serves.join();
        CHECK(failure == "hvd: accept failed: Too many open files");
        CHECK(has(refusal(link), "accept failed: Too many open files"));
    }
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

// The sanitizers need descriptors themselves.
TEST_CASE("a rank without descriptors tells the others why, each time by one that it has kept" *
          doctest::skip(hvd_test::under_asan || hvd_test::under_tsan)) {
    const shared_secret secret = new_secret();
    listening_socket listener(0);
    std::vector<listening_place> places(2, place_with(listener.port()));
    job_connections rank0(0, secret, std::move(listener), places);
    const auto open_one = [] { return descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); };
    descriptor of_rank1 = open_one();
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit few{100, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    std::vector<descriptor> taken;
    for (std::uint64_t context = 1; context <= 3; ++context) {
        CAPTURE(context);
        while (descriptor one = open_one()) taken.push_back(std::move(one));
        of_rank1 = descriptor();
        outgoing_connection rank1(secret, 1, 0, places[0], true, context);
        const auto go_on = [&] {
            pollfd wanted{};
            if (of_rank1 || !rank1.prepare(wanted)) return;
            ::poll(&wanted, 1, 0);
            if (rank1.advance(wanted.revents != 0)) of_rank1 = rank1.take();
        };
        go_on();
        std::string why;
        const int both[] = {0, 1};
        try {
            rank0.connect(
                context, both, now() + 5 * tuning::second, true,
                [&] {
                    go_on();
                    return false;
                },
                [] { return false; });
        } catch (const hvd::usage_error& e) {
            why = e.what();
        }
        CHECK(why == "hvd: accept failed on rank 0: Too many open files");
        for (int i = 0; i < 1000 && !of_rank1; ++i) go_on();
        REQUIRE(of_rank1);
        frame_reader in;
        in.set_up();
        failure_notice news;
        plain_wire wire(std::move(of_rank1));
        REQUIRE(in.take_notice(wire, news));
        CHECK(std::string(news.text) == why);
        wire = plain_wire();
        of_rank1 = open_one();
    }
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("ranks that disagree about the job end the rendezvous for all, with the reason") {
    const shared_secret secret = new_secret();
    SUBCASE("about its size") {
        served s(3, secret, 20s);
        framed_socket first = registered(s.server.port(), 0, 3, secret);
        CHECK(has(come(s.place(), 1, 2, secret).failure, "and it has 3"));
        CHECK(s.end().peers == std::vector<int>{1});
        CHECK(has(refusal(first), "rank 1 says that the job has 2 ranks"));
    }
    SUBCASE("about the version of the protocol") {
        served s(2, secret, 2s);
        framed_socket rank(rendezvous_rank, proved(s.server.port(), 1, secret));
        registration r;
        r.version = registration::current + 1;
        r.size = 2;
        rank.queue(wire_bytes(r));
        rank.flush();
        CHECK(has(s.end().failure, "rank 1 speaks another version of the protocol"));
        CHECK(has(refusal(rank), "hvdrun, must be of one version of hvd"));
    }
    SUBCASE("about a rank") {
        served s(3, secret, 20s);
        const std::vector<met> all = come_together(s.place(), {1, 1}, 3, secret);
        for (const met& m : all) CHECK(has(m.failure, "two processes say that they are rank 1"));
        CHECK(s.end().peers == std::vector<int>{1});
    }
    SUBCASE("with a rank that does not exist") {
        served s(2, secret, 20s);
        CHECK(has(come(s.place(), 5, 2, secret).failure, "rank 5 is no rank of a job of 2 ranks"));
        CHECK(s.end().peers == std::vector<int>{5});
    }
    SUBCASE("with a rank that leaves") {
        served s(2, secret, 20s);
        framed_socket first = registered(s.server.port(), 0, 2, secret);
        proved(s.server.port(), 1, secret);
        CHECK(has(s.end().failure, "rank 1 left"));
        CHECK(has(refusal(first), "rank 1 left before all"));
    }
}

TEST_CASE("bytes of strangers, and frames of the wrong size, do no harm") {
    const shared_secret secret = new_secret();
    served s(2, secret, 20s);
    const descriptor silent = stranger_at(s.server.port());
    std::mt19937 random(1);
    for (int i = 0; i < 50; ++i) {
        const descriptor noise = stranger_at(s.server.port());
        std::vector<std::byte> bytes(random() % 300 + 36);
        for (std::byte& b : bytes) b = std::byte(random());
        send_some(noise, bytes.data(), bytes.size());
        CHECK(is_closed(noise));
    }
    for (int i = 0; i < 40; ++i) {  // the begin of a true greeting, and then nothing
        const descriptor cut = stranger_at(s.server.port());
        send_some(cut, reinterpret_cast<const std::byte*>("hvd lnk\x02"), std::size_t(i % 8 + 1));
    }
    const std::vector<met> all = come_together(s.place(), {0, 1}, 2, secret);
    CHECK(s.end().served);
    for (const met& m : all) CHECK(m.failure == "");
}

TEST_CASE("a rank that announces more than a registration is refused before it has sent it") {
    const shared_secret secret = new_secret();
    for (const std::uint32_t announced : {std::uint32_t(sizeof(registration) + 1), 0xffffffffu}) {
        served s(2, secret, 20s);
        const descriptor rank = proved(s.server.port(), 1, secret);
        send_some(rank, reinterpret_cast<const std::byte*>(&announced), sizeof announced);
        CHECK(is_closed(rank));
        CHECK(has(s.end().failure, "a message is too long"));
    }
    served s(2, secret, 20s);
    const descriptor rank = proved(s.server.port(), 1, secret);
    const std::uint32_t announced[2] = {4, 0};
    send_some(rank, reinterpret_cast<const std::byte*>(announced), sizeof announced);
    CHECK(is_closed(rank));
    const outcome& ended = s.end();
    CHECK(has(ended.failure, "rank 1 speaks another version"));
    CHECK(has(ended.failure, "hvdrun, must be of one version of hvd"));
}

TEST_CASE("after a message that is too long there is none, though others came before it") {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    const descriptor other(ends[1]);
    framed_socket link(0, descriptor(ends[0]), 8);
    const std::byte sent[] = {std::byte(1), {}, {}, {}, std::byte(7), std::byte(9), {}, {}, {}};
    send_some(other, sent, sizeof sent);
    link.fill();
    std::span<const std::byte> bytes;
    REQUIRE(link.next(bytes));
    CHECK_FALSE(link.next(bytes));
    CHECK_FALSE(link.is_open());
    link.fill();
    CHECK_FALSE(link.next(bytes));
}

TEST_CASE(
    "a rank that takes its table slowly gets all of it, and one that takes nothing does not") {
    constexpr std::int64_t patience = 200 * tuning::millisecond;
    const std::vector<std::byte> table(64 * 1024);
    std::size_t taken = 0;
    // A try in which this machine stops the slow rank for long says nothing.
    for (bool is_steady = false; !is_steady && taken < table.size();) {
        descriptor slow[2], silent[2];
        hvd_test::open_both_ends(slow);
        hvd_test::open_both_ends(silent);
        for (const descriptor* end : {&slow[0], &silent[0]}) {
            const int least = 1;
            REQUIRE(::setsockopt(end->number(), SOL_SOCKET, SO_SNDBUF, &least, sizeof least) == 0);
        }
        std::thread serves([&] {
            framed_socket of_slow(0, std::move(slow[0])), of_silent(1, std::move(silent[0]));
            framed_socket* const links[] = {&of_silent, &of_slow};
            send_while_taken(links, table, patience);
        });
        is_steady = true;
        taken = 0;
        for (time_point last = now(); taken < table.size();) {
            std::this_thread::sleep_for(25ms);
            pollfd p{slow[1].number(), POLLIN, 0};
            ::poll(&p, 1, 100);
            std::byte bytes[4096];
            const ssize_t n = ::recv(slow[1].number(), bytes, sizeof bytes, 0);
            is_steady = is_steady && now() - last < patience / 2;
            last = now();
            if (n == 0) break;
            if (n > 0) taken += std::size_t(n);
        }
        serves.join();  // though one takes nothing
    }
    CHECK(taken >= table.size());
}

TEST_CASE("a rendezvous that is stopped tells the ranks") {
    const shared_secret secret = new_secret();
    served s(2, secret, {});
    framed_socket rank = registered(s.server.port(), 0, 2, secret);
    s.server.stop();
    CHECK_FALSE(s.end().served);
    CHECK(s.result.failure == "");
    CHECK(has(refusal(rank), "it was stopped"));
}

namespace {

// The connections of a communicator, whose peers never end theirs.
struct endless_messages {
    std::shared_ptr<int> held = std::make_shared<int>();
    bool say_goodbye() noexcept { return true; }
    bool has_words() const noexcept { return false; }
};

}  // namespace

TEST_CASE(
    "the connections of a communicator that has ended are not kept for peers that keep them") {
    tcp_job job(0, 1, new_secret(), listening_socket(0), {place_with(1)});
    endless_messages one, other;
    const std::weak_ptr<int> brief = one.held, lasting = other.held;
    job.end(std::move(other), 600 * tuning::second);
    job.end(std::move(one), 10 * tuning::millisecond);
    for (int i = 0; i < 6000 && !brief.expired(); ++i) {
        CHECK(job.gives_back());
        std::this_thread::sleep_for(1ms);
    }
    CHECK(brief.expired());
    CHECK_FALSE(lasting.expired());
    CHECK(job.gives_back());
}

TEST_CASE("a second process of rank 0 names its rank, and says that there may be another one") {
    const listening_socket taken(0);
    const std::string place = "127.0.0.1:" + std::to_string(taken.port());
    const std::string secret(std::string_view(hex_of(new_secret())));
    hvd::tcp_options o{.rank = 0, .size = 2, .rendezvous = place, .secret = secret};
    std::string why;
    try {
        tcp_job(o).rank();
    } catch (const hvd::usage_error& e) {
        why = e.what();
    }
    CHECK(has(why, ("rank 0 can't listen on port " + std::to_string(taken.port())).c_str()));
    CHECK(has(why, "Another process may have the same rank"));
}

TEST_CASE(
    "a foreign rendezvous at one address is no end while another address may be the right one") {
    const shared_secret secret = new_secret();
    host_address other = host_address::loopback();
    other.bytes[3] = std::uint8_t(other.bytes[3] + 1);  // 127.0.0.2
    const host_address first = host_address::loopback();
    rendezvous_server foreign(0, 2, new_secret(), 60s, -1, {&first, 1});
    std::thread serves([&] { foreign.serve(); });
    const std::string port = std::to_string(foreign.port());
    const met early = come("127.0.0.1,127.0.0.2:" + port, 1, 2, secret, 1);
    CHECK(has(early.failure, "rank 1 does not reach the rendezvous"));
    // Where all addresses are foreign nobody waits.
    rendezvous_server both(foreign.port(), 2, new_secret(), 60s, -1, {&other, 1});
    std::thread also_serves([&] { both.serve(); });
    const met late = come("127.0.0.1,127.0.0.2:" + port, 1, 2, secret, 600);
    CHECK(has(late.failure, "is refused"));
    foreign.stop();
    both.stop();
    serves.join();
    also_serves.join();
}

TEST_CASE("a rank that finds no rendezvous says so") {
    std::uint16_t port = 0;
    {
        const listening_socket reserved(0);
        port = reserved.port();
    }
    rendezvous_client client("localhost:" + std::to_string(port), 1, 2, new_secret());
    CHECK_THROWS_WITH_AS(client.meet({}, now() + 200 * tuning::millisecond),
                         doctest::Contains("rank 1 does not reach the rendezvous at localhost:"),
                         hvd::peer_error);
}

TEST_CASE("a secret is 64 hexadecimal digits, of a file that is its owner's") {
    const shared_secret secret = new_secret();
    const std::string digits(std::string_view(hex_of(secret)));
    CHECK(secret_from_hex(digits, "HVD_SECRET") == secret);
    for (const std::string& wrong : {digits.substr(1), digits + "0", "g" + digits.substr(1)})
        CHECK_THROWS_WITH_AS(secret_from_hex(wrong, "HVD_SECRET"),
                             doctest::Contains("HVD_SECRET has no secret of a job"),
                             hvd::usage_error);
    const hvd_test::temporary_directory folder;
    const std::string path = folder / "secret";
    const auto write = [&](const std::string& text, mode_t mode) {
        ::unlink(path.c_str());
        const descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
        REQUIRE(::write(file.number(), text.data(), text.size()) == ssize_t(text.size()));
        ::fchmod(file.number(), mode);
    };
    for (const char* const end : {"\n", "\r\n", ""}) {
        write(digits + end, 0600);
        CHECK(secret_from_file(path.c_str()) == secret);
    }
    write(digits, 0640);
    CHECK_THROWS_WITH_AS(secret_from_file(path.c_str()), doctest::Contains("mode 600"),
                         hvd::usage_error);
    write(digits + digits, 0600);
    CHECK_THROWS_AS(secret_from_file(path.c_str()), hvd::usage_error);
    CHECK_THROWS_WITH_AS(secret_from_file((path + "x").c_str()), doctest::Contains("can't be read"),
                         hvd::usage_error);
    CHECK(derived_secret(secret, 1) != derived_secret(secret, 2));
}

TEST_CASE("a rendezvous is written as a host and a port") {
    const auto read = [](const char* written) { return read_host_and_port(written, "it"); };
    CHECK(read("node1:7000").port == 7000);
    CHECK(std::string_view(read("node1:7000").host) == "node1");
    CHECK(std::string_view(read("[::1]:65535").host) == "::1");
    CHECK(std::string_view(read("10.0.0.1,[fd00::1],b:7").host) == "10.0.0.1,[fd00::1],b");
    CHECK(read("10.0.0.1,[fd00::1],b:7").port == 7);
    for (const char* const wrong :
         {"", "node1", "node1:", ":7000", "node1:0", "node1:65536", "node1:7x", "::1:7000", "[]:1",
          "a,:1", ",a:1", "a,,b:1", "a,::1:7", "[::1],[]:1"})
        CHECK_THROWS_WITH_AS(read(wrong), doctest::Contains("it takes a host and a port"),
                             hvd::usage_error);
}

TEST_CASE("the addresses of a rendezvous are those of all its hosts that are known") {
    const std::vector<host_address> all =
        resolve("10.0.0.1,no-such-host.invalid,[fd00::1],127.0.0.1", "it");
    REQUIRE(all.size() == 3);
    CHECK(std::string_view(all[0].print()) == "10.0.0.1");
    CHECK(all[1].is_v6 != 0);
    CHECK(all[2].is_loopback());
    CHECK_THROWS_WITH_AS(resolve("no-such-host.invalid,other.invalid", "it"),
                         doctest::Contains("it names the host no-such-host.invalid,other.invalid"),
                         hvd::usage_error);
    // A link-local address of another host is behind each interface of this one that has one, too.
    std::size_t interfaces = 0;
    for (std::uint32_t seen = 0; const host_address& own : own_addresses()) {
        interfaces += own.is_link_local() && own.scope != seen ? 1 : 0;
        if (own.is_link_local()) seen = own.scope;
    }
    host_address other;
    other.is_v6 = 1;
    other.bytes[0] = 0xfe;
    other.bytes[1] = 0x80;
    other.scope = 4711;
    CHECK(ways_to(other).size() == interfaces);
    for (const host_address& way : ways_to(other)) CHECK(way.scope != 4711);
    CHECK(ways_to(all[0]).size() == 1);
}

TEST_CASE("a process takes its place from the launcher that started it") {
    const auto place = [](const hvd_test::values& set) {
        const hvd_test::variables environment(set);
        const hvd::tcp_options own = place_from_environment();
        return std::pair(own.rank, own.size);
    };
    hvd_test::values set;
    CHECK(place(set) == std::pair(-1, 0));
    set["HVD_RENDEZVOUS"] = "here:1";
    CHECK(place(set) == std::pair(-1, 0));
    set["SLURM_PROCID"] = "1";
    set["SLURM_NTASKS"] = "2";
    CHECK(place(set) == std::pair(-1, 0));  // a batch script
    set["SLURM_STEP_NUM_TASKS"] = "2";
    CHECK(place(set) == std::pair(1, 2));
    set["PMI_RANK"] = "2";
    CHECK(place(set) == std::pair(1, 2));
    set["PMI_SIZE"] = "3";
    CHECK(place(set) == std::pair(2, 3));
    set["OMPI_COMM_WORLD_RANK"] = "3";
    set["OMPI_COMM_WORLD_SIZE"] = "4";
    CHECK(place(set) == std::pair(3, 4));
    set.erase("HVD_RENDEZVOUS");
    CHECK(place(set) == std::pair(-1, 0));
    set["HVD_RENDEZVOUS"] = "here:1";
    set["HVD_RANK"] = "4";
    set["HVD_SIZE"] = "5";
    CHECK(place(set) == std::pair(4, 5));
    set.erase("HVD_SIZE");  // a half is not completed by what another launcher says
    CHECK(place(set) == std::pair(4, 0));
    set.erase("HVD_RANK");
    set["HVD_SIZE"] = "5";
    CHECK(place(set) == std::pair(-1, 5));
    CHECK_THROWS_WITH_AS(
        place({{"HVD_RENDEZVOUS", "here:1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "two"}}),
        doctest::Contains("PMI_SIZE: tcp.size is 'two'"), hvd::usage_error);
}

TEST_CASE("the ranks of a step of Slurm meet on its first node") {
    hvd_test::values set{{"SLURM_PROCID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_STEP_NODELIST", "n1"},
                         {"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"}};
    const auto rendezvous = [&] {
        const hvd_test::variables environment(set);
        return place_from_environment().rendezvous;
    };
    const std::string first = rendezvous();
    const host_and_port at = read_host_and_port(first, "it");
    CHECK(std::string_view(at.host) == "n1");
    CHECK((at.port >= 20000 && at.port < 30000));
    set["SLURM_PROCID"] = "1";
    CHECK(rendezvous() == first);
    set["SLURM_STEP_ID"] = "1";
    CHECK(rendezvous() != first);
    set["HVD_RENDEZVOUS"] = "there:1";
    CHECK(rendezvous() == "there:1");
    set.erase("HVD_RENDEZVOUS");
    set["SLURM_STEP_NUM_TASKS"] = "1";
    CHECK(rendezvous() == "");
    for (const auto& [list, name] : {std::pair("node1", "node1"),
                                     {"a,b", "a"},
                                     {"node[07-12,20],other", "node07"},
                                     {"rack[2,4]n[1-3].lan", "rack2n1.lan"},
                                     {"torn[3-4", "torn3"},
                                     {"", ""}})
        CHECK(first_of_node_list(list) == name);
}

}  // namespace rendezvous_tests
