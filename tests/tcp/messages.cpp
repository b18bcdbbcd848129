// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/socket.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hvd_test.hpp"
#include "wires.hpp"

namespace messages_tests {

// The connections between two ranks of a communicator: messages, notices, and bytes that no rank
// sends. encrypted.cpp has what encryption adds.

using namespace hvd::detail;
using namespace hvd_test;

namespace {

// Rank 0, and somebody who writes what he likes.
struct pair_of_sockets {
    pair_of_sockets() { open_both_ends(socket); }
    tcp_messages take(int rank) { return messages_over<plain_wire>(socket, rank); }
    descriptor socket[2];
};

failure_notice notice(int sender, const char* words) {
    return notice_of(sender, word::failed, words, {sender});
}

// The first notice that comes.
template <class Messages>
failure_notice await_notice(Messages& from, Messages& to) {
    failure_notice news;
    for (int i = 0; i < 100000; ++i) {
        if (to.receive_notice(news)) return news;
        from.poll();
    }
    FAIL("no notice");
    return news;
}

void say(const descriptor& socket, const void* data, std::size_t bytes) {
    CHECK(::send(socket.number(), data, bytes, MSG_NOSIGNAL) == ssize_t(bytes));
}

}  // namespace

TEST_CASE_TEMPLATE("messages of any size arrive in their order, in both directions at once", Wire,
                   HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto &a = ranks.end[0], &b = ranks.end[1];
    std::mt19937 random(1);
    for (int round = 0; round < 30; ++round) {
        std::vector<std::vector<std::byte>> sent[2], got[2];
        for (auto& s : sent)
            for (int i = 0; i < 6; ++i)
                s.push_back(random_bytes(1 + random() % (i == 5 ? 1500000 : 3000), random));
        for (int side = 0; side < 2; ++side)
            for (const auto& bytes : sent[side]) got[side].emplace_back(bytes.size());
        for (std::size_t i = 0; i < 6; ++i) {
            a.receive(1, got[1][i].data(), got[1][i].size());
            if (round % 2 == 0) b.receive(0, got[0][i].data(), got[0][i].size());
            a.send(1, sent[0][i].data(), sent[0][i].size());
            b.send(0, sent[1][i].data(), sent[1][i].size());
            if (round % 2 == 1) b.receive(0, got[0][i].data(), got[0][i].size());
            CHECK(a.pending(1));
        }
        finish(a, b);
        CHECK(got[0] == sent[0]);
        CHECK(got[1] == sent[1]);
    }
    CHECK(a.sends_begun(1) == 180 + ranks.begun);
    CHECK(b.receives_begun(0) == 180 + ranks.begun);
}

TEST_CASE_TEMPLATE("a message is shorter than its memory only where that is expected", Wire,
                   HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto &a = ranks.end[0], &b = ranks.end[1];
    const std::vector<int> sent{1, 2, 3};
    std::vector<int> got(10), next(1);
    std::size_t size = 0;
    b.receive(0, reinterpret_cast<std::byte*>(got.data()), 40, &size);
    b.receive(0, reinterpret_cast<std::byte*>(next.data()), 4);
    a.send(1, reinterpret_cast<const std::byte*>(sent.data()), 12);
    a.send(1, reinterpret_cast<const std::byte*>(sent.data()), 4);
    finish(a, b);
    CHECK(got == std::vector<int>{1, 2, 3, 0, 0, 0, 0, 0, 0, 0});
    CHECK(next[0] == 1);
    CHECK(size == 12);
    std::mt19937 random(3);
    for (const std::size_t bytes : {std::size_t(500000), std::size_t(tuning::frame_bytes) + 1}) {
        CAPTURE(bytes);  // it comes in several reads, and in several frames
        const auto large = random_bytes(bytes, random);
        std::vector<std::byte> place(bytes + 1000);
        b.receive(0, place.data(), place.size(), &size);
        a.send(1, large.data(), large.size());
        finish(a, b);
        CHECK(size == bytes);
        CHECK(std::equal(large.begin(), large.end(), place.begin()));
    }
    b.receive(0, reinterpret_cast<std::byte*>(got.data()), 40);
    a.send(1, reinterpret_cast<const std::byte*>(sent.data()), 12);
    CHECK(!get_through(a, b, [] {}));
    CHECK(why_lost(b, 0) == "rank 0 is gone (it sent a message of another size)");
}

TEST_CASE_TEMPLATE(
    "a notice is heard beside data, behind data that nobody asked for, and after a cancel", Wire,
    HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto &a = ranks.end[0], &b = ranks.end[1];
    std::mt19937 random(2);
    const auto sent = random_bytes(100000, random);
    auto got = std::vector<std::byte>(sent.size());
    SUBCASE("beside data") {
        a.send(1, sent.data(), sent.size());
        a.send_notice(1, notice(0, "now"));
        a.send(1, sent.data(), sent.size());
        b.receive(0, got.data(), got.size());
        CHECK(std::string(await_notice(a, b).text) == "now");
        auto second = std::vector<std::byte>(sent.size());
        b.receive(0, second.data(), second.size());
        finish(a, b);
        CHECK(second == sent);
    }
    SUBCASE("behind data that nobody asked for, which is not lost") {
        for (int i = 0; i < 3; ++i) {
            a.send(1, sent.data() + i, 1000);
            a.send_notice(1, notice(0, i == 0 ? "first" : "later"));
        }
        CHECK(std::string(await_notice(a, b).text) == "first");
        got.resize(3000);
        for (std::size_t i = 0; i < 3; ++i) b.receive(0, got.data() + 1000 * i, 1000);
        finish(a, b);
        for (std::size_t i = 0; i < 3; ++i)
            CHECK(std::equal(sent.begin() + std::ptrdiff_t(i),
                             sent.begin() + std::ptrdiff_t(i) + 1000,
                             got.begin() + std::ptrdiff_t(1000 * i)));
        CHECK(std::string(await_notice(a, b).text) == "later");
    }
    SUBCASE("after a cancel in the middle of a message") {
        auto large = random_bytes(4000000, random);
        const auto before = large;
        got = std::vector<std::byte>(large.size());
        b.receive(0, got.data(), got.size());
        a.send(1, large.data(), large.size());
        b.poll();
        a.cancel();
        for (std::byte& b : large) b = ~b;  // the memory is the caller's again
        CHECK(a.poll());
        a.send_notice(1, notice(0, "gave up"));
        CHECK(std::string(await_notice(a, b).text) == "gave up");
        CHECK(b.pending(0));  // the message is not complete
        std::size_t same = 0;
        while (same < got.size() && got[same] == before[same]) ++same;
        CHECK(same > 100000);
        CHECK(std::all_of(got.begin() + std::ptrdiff_t(same), got.end(),
                          [](std::byte x) { return x == std::byte(0); }));
    }
    SUBCASE("after a cancel of the receiver, whose memory stays as it is") {
        const auto large = random_bytes(3000000, random);
        got = std::vector<std::byte>(large.size());
        b.receive(0, got.data(), got.size());
        a.send(1, large.data(), large.size());
        b.poll();
        b.cancel();
        const auto before = got;
        a.send_notice(1, notice(0, "on"));
        CHECK(std::string(await_notice(a, b).text) == "on");
        CHECK(got == before);
    }
}

TEST_CASE_TEMPLATE(
    "a notice in the name of another rank, or of ranks that do not exist, is dropped", Wire,
    HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto &a = ranks.end[0], &b = ranks.end[1];
    b.send_notice(0, notice(0, "forged"));
    b.send_notice(0, notice_of(1, word::waits, "of ranks that do not exist", {0, 2}));
    b.send_notice(0, notice_of(1, word(7), "of a kind that does not exist", {}));
    b.send_notice(0, notice(1, "own"));
    CHECK(std::string(await_notice(b, a).text) == "own");
}

TEST_CASE_TEMPLATE(
    "a peer that is gone is named while its data is waited for, and its last data counts", Wire,
    HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto& a = ranks.end[0];
    {
        auto b = std::move(ranks.end[1]);
        const int x = 7;
        b.send(0, reinterpret_cast<const std::byte*>(&x), sizeof x);
    }
    CHECK(why_lost(a) == "");  // nobody waits
    int got = 0;
    a.receive(1, reinterpret_cast<std::byte*>(&got), sizeof got);
    CHECK(why_lost(a) == "");
    CHECK(got == 7);
    a.receive(1, reinterpret_cast<std::byte*>(&got), sizeof got);
    CHECK(why_lost(a) == "rank 1 is gone (its connection was closed)");
    a.send(1, reinterpret_cast<const std::byte*>(&got), sizeof got);  // raises no signal
    a.poll();
    CHECK(a.pending(1));
}

TEST_CASE_TEMPLATE("a peer that is gone is named behind much data that nobody asked for", Wire,
                   HVD_TEST_WIRES) {
    pair_of_ranks<Wire> ranks;
    auto& a = ranks.end[0];
    std::vector<std::byte> unasked(2 * tuning::read_ahead), asked(1000000);
    {
        auto b = std::move(ranks.end[1]);
        b.send(0, unasked.data(), unasked.size());
        failure_notice news;
        for (int i = 0; i < 1000; ++i) {
            CHECK_FALSE(a.receive_notice(news));
            b.poll();
        }
        CHECK(b.pending(0));
    }
    a.send(1, asked.data(), asked.size());
    CHECK(why_lost(a) == "rank 1 is gone (its connection was closed)");
    a.cancel();
}

#if defined(TCP_USER_TIMEOUT)
TEST_CASE("the system keeps a connection to a rank that reads nothing, however long") {
    const listening_socket listener(0);
    std::vector<descriptor> sockets(2);
    sockets[1] = begin_connect(host_address::loopback(), listener.port());
    REQUIRE(sockets[1]);
    const int number = sockets[1].number();
    const tcp_messages a = messages_over<plain_wire>(sockets.data(), 1);
    unsigned limit = 1;
    socklen_t size = sizeof limit;
    REQUIRE(::getsockopt(number, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size) == 0);
    CHECK(limit == 0);
}
#endif

TEST_CASE("frames that no rank sends end the connection, and are not waited for") {
    const auto check = [](std::uint32_t bytes, std::uint32_t kind, const char* reason) {
        INFO("a frame of ", bytes, " bytes and the kind ", kind);
        pair_of_sockets ends;
        tcp_messages a = ends.take(0);
        std::byte place[64];
        a.receive(1, place, sizeof place);
        const std::uint32_t head[2] = {bytes, kind};
        say(ends.socket[1], head, sizeof head);
        CHECK(why_lost(a) == std::string("rank 1 is gone (") + reason + ")");
    };
    const auto kind = [](frame::kind k) { return std::uint32_t(k); };
    check(0xffffffffu, kind(frame::kind::last), "it sent what no rank sends");
    check(tuning::frame_bytes + 1, kind(frame::kind::part), "it sent what no rank sends");
    check(0, kind(frame::kind::last), "it sent what no rank sends");
    check(8, 0, "it sent what no rank sends");
    check(sizeof(failure_notice) - 1, kind(frame::kind::notice), "it sent what no rank sends");
    check(1, kind(frame::kind::probe), "it sent what no rank sends");
    check(65, kind(frame::kind::last), "it sent a message of another size");
    check(65, kind(frame::kind::part), "it sent a message of another size");
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        pair_of_sockets ends;
        tcp_messages a = ends.take(0);
        std::byte place[64];
        if (seed % 2 == 0) a.receive(1, place, sizeof place);
        const auto noise = random_bytes(8 + random() % 5000, random);
        say(ends.socket[1], noise.data(), noise.size());
        why_lost(a);
        a.receive(1, place, sizeof place);
        CHECK(why_lost(a) == "rank 1 is gone (it sent what no rank sends)");
    }
}

TEST_CASE("a frame that is cut off fills no message") {
    pair_of_sockets ends;
    tcp_messages a = ends.take(0);
    std::byte place[64];
    a.receive(1, place, sizeof place);
    const std::uint32_t head[2] = {64, std::uint32_t(frame::kind::last)};
    say(ends.socket[1], head, sizeof head);
    say(ends.socket[1], place, 63);
    CHECK(why_lost(a) == "");
    ends.socket[1] = descriptor();
    CHECK(why_lost(a) == "rank 1 is gone (its connection was closed)");
}

TEST_CASE("a probe behind data that nobody asked for is no notice, and the data comes") {
    pair_of_sockets ends;
    plain_wire wire(std::move(ends.socket[0]));
    frame_reader in;
    in.set_up();
    const std::uint32_t data[4] = {8, std::uint32_t(frame::kind::last), 11, 12},
                        probe[2] = {0, std::uint32_t(frame::kind::probe)};
    for (int i = 0; i < 2; ++i) {
        say(ends.socket[1], data, sizeof data);
        say(ends.socket[1], probe, sizeof probe);
    }
    failure_notice news;
    CHECK_FALSE(in.take_notice(wire, news));
    std::uint32_t got[4] = {};
    for (int i = 0; i < 2; ++i) in.add(reinterpret_cast<std::byte*>(got + 2 * i), 8);
    in.pull(wire);
    CHECK(in.is_idle());
    CHECK(std::vector(got, got + 4) == std::vector<std::uint32_t>{11, 12, 11, 12});
    CHECK_FALSE(in.take_notice(wire, news));
}

namespace {

// Notes the frames that are written, and takes as many bytes as it is told.
struct narrow_wire {
    ssize_t write(const std::byte* first, std::size_t first_bytes, const std::byte* second,
                  std::size_t second_bytes) {
        const std::size_t n = std::min(room, first_bytes + second_bytes);
        if (n == 0) {
            errno = EAGAIN;
            return -1;
        }
        const std::size_t of_first = std::min(n, first_bytes);
        written.insert(written.end(), first, first + of_first);
        written.insert(written.end(), second, second + (n - of_first));
        room -= n;
        return ssize_t(n);
    }
    static bool flush() { return true; }

    std::vector<frame::kind> kinds() const {
        std::vector<frame::kind> all;
        for (std::size_t at = 0; at + sizeof(frame) <= written.size();) {
            frame head;
            std::memcpy(&head, written.data() + at, sizeof head);
            all.push_back(head.what);
            at += sizeof head + head.bytes;
        }
        return all;
    }

    // The texts of the notices, if there is nothing else.
    std::vector<std::string> texts() const {
        std::vector<std::string> all;
        failure_notice news;
        constexpr std::size_t bytes = sizeof(frame) + sizeof news;
        for (std::size_t at = 0; at + bytes <= written.size(); at += bytes) {
            std::memcpy(static_cast<void*>(&news), written.data() + at + sizeof(frame),
                        sizeof news);
            all.emplace_back(news.text);
        }
        return all;
    }

    std::size_t room = 0;
    std::vector<std::byte> written;
};

}  // namespace

TEST_CASE("a notice overtakes the data that is queued, at the next frame") {
    using kind = frame::kind;
    const std::vector<std::byte> large(3 * tuning::frame_bytes), small(100);
    frame_writer out;
    narrow_wire wire{.room = 10};
    out.add(large.data(), large.size());
    out.add(small.data(), small.size());
    out.push(wire);  // the first frame is under way
    out.add_notice(notice(0, "first"));
    out.add_notice(notice(0, "second"));
    wire.room = SIZE_MAX;
    out.push(wire);
    CHECK(wire.kinds() == std::vector<kind>{kind::part, kind::notice, kind::notice, kind::part,
                                            kind::last, kind::last});
    CHECK(out.is_idle());
}

TEST_CASE("after a cancel the peer gets the old bytes of the frame that is under way") {
    std::vector<std::byte> data(1000, std::byte(1));
    // Within the head of the frame, at its end, and within the data.
    for (const std::size_t gone : {std::size_t(1), sizeof(frame), std::size_t(500)}) {
        CAPTURE(gone);
        frame_writer out;
        for (int message = 0; message < 2; ++message) {
            std::fill(data.begin(), data.end(), std::byte(1));
            narrow_wire wire{.room = gone};
            out.add(data.data(), data.size());
            out.push(wire);
            out.cancel();
            std::fill(data.begin(), data.end(), std::byte(2));
            for (int i = 0; i < 2; ++i) {
                wire.room = 200;
                out.push(wire);
                out.cancel();  // a second time
            }
            wire.room = SIZE_MAX;
            out.push(wire);
            REQUIRE(wire.written.size() == sizeof(frame) + data.size());
            CHECK(std::count(wire.written.begin() + sizeof(frame), wire.written.end(),
                             std::byte(1)) == 1000);
            CHECK(!out.has_work());
        }
    }
}

TEST_CASE("a cancel forgets no notice, however much of it has gone, and data that has not begun") {
    using kind = frame::kind;
    const std::vector<std::byte> data(1000);
    // Nothing, a part of the head, the head, and some of the notice.
    for (const std::size_t gone : {std::size_t(0), std::size_t(1), sizeof(frame), std::size_t(100)})
        for (const bool data_waits_first : {false, true}) {
            CAPTURE(gone);
            CAPTURE(data_waits_first);
            frame_writer out;
            narrow_wire wire;
            if (data_waits_first) {
                out.add(data.data(), data.size());
                out.push(wire);  // the wire takes nothing
                out.cancel();
            }
            wire.room = gone;
            out.add_notice(notice(0, "first"));
            out.add_notice(notice(0, "second"));
            out.add(data.data(), data.size());
            out.push(wire);
            out.cancel();
            wire.room = SIZE_MAX;
            out.push(wire);
            CHECK(wire.kinds() == std::vector<kind>{kind::notice, kind::notice});
            CHECK(wire.texts() == std::vector<std::string>{"first", "second"});
            CHECK(!out.has_work());
        }
}

namespace {

// Each read is interrupted once.
struct interrupted_wire {
    ssize_t read(std::byte* first, std::size_t first_bytes, std::byte* second,
                 std::size_t second_bytes) {
        is_interrupted = !is_interrupted;
        if (is_interrupted || left.empty()) {
            errno = is_interrupted ? EINTR : EAGAIN;
            return -1;
        }
        const std::size_t n = std::min(left.size(), first_bytes + second_bytes),
                          of_first = std::min(n, first_bytes);
        if (of_first > 0) std::memcpy(first, left.data(), of_first);
        if (n > of_first) std::memcpy(second, left.data() + of_first, n - of_first);
        left = left.subspan(n);
        return ssize_t(n);
    }
    static const char* why() { return strerror(errno); }
    static const char* why_closed() { return "its connection was closed"; }

    std::span<const std::byte> left;
    bool is_interrupted = false;
};

}  // namespace

TEST_CASE("a signal that interrupts a read does not end the connection") {
    narrow_wire sent{.room = SIZE_MAX};
    frame_writer out;
    const std::vector<std::byte> data(1000, std::byte(7));
    out.add(data.data(), data.size());
    out.add_notice(notice(0, "later"));
    out.push(sent);
    for (const bool asks : {true, false}) {
        CAPTURE(asks);
        interrupted_wire wire{.left = sent.written};
        frame_reader in;
        in.set_up();
        std::vector<std::byte> got(data.size());
        if (asks) in.add(got.data(), got.size());
        failure_notice news;
        REQUIRE(in.take_notice(wire, news));
        CHECK(std::string(news.text) == "later");
        if (!asks) in.add(got.data(), got.size());
        in.pull(wire);
        CHECK(in.is_idle());
        CHECK(got == data);
        CHECK_FALSE(in.has_ended());
    }
}

TEST_CASE_TEMPLATE("a rank hears each of many others, also one that speaks while it sleeps", Wire,
                   HVD_TEST_WIRES) {
    constexpr int others = 20;
    std::vector<Wire> mine(others + 1);
    std::vector<basic_tcp_messages<Wire>> theirs;
    for (int p = 0; p < others; ++p) {
        descriptor socket[2];
        open_both_ends(socket);
        mine[std::size_t(p)] = wire_over<Wire>(std::move(socket[0]), 0);
        theirs.push_back(messages_of(1, wire_over<Wire>(std::move(socket[1]), 1)));
    }
    basic_tcp_messages<Wire> hub(std::move(mine));
    std::mt19937 random(2);
    for (int round = 0; round < 4; ++round) {
        std::vector<std::vector<std::byte>> sent, got;
        for (int p = 0; p < others; ++p)
            sent.push_back(random_bytes(p % 3 == 0 ? 100000 : p % 3 == 1 ? 4096 : 5, random));
        got = sent;
        for (auto& g : got) std::ranges::fill(g, std::byte(0));
        const std::size_t late = random() % others;
        for (std::size_t p = 0; p < others; ++p) {
            hub.receive(int(p), got[p].data(), got[p].size());
            hub.send(int(p), sent[p].data(), sent[p].size());
            theirs[p].receive(0, sent[p].data(), sent[p].size());
            if (p != late) theirs[p].send(0, sent[p].data(), sent[p].size());
        }
        for (int i = 0; i < 200; ++i) {
            CHECK_FALSE(hub.poll());
            for (auto& t : theirs) t.poll();
        }
        hub.sleep(tuning::millisecond);
        theirs[late].send(0, sent[late].data(), sent[late].size());
        bool is_complete = false;
        for (int i = 0; i < 100000 && !is_complete; ++i) {
            if (i % 3 == 1) hub.sleep(1000);
            is_complete = hub.poll();
            for (auto& t : theirs) is_complete = t.poll() && is_complete;
        }
        REQUIRE(is_complete);
        CHECK(got == sent);
        // Notices of all come, also behind data that nobody has asked for.
        failure_notice news;
        for (std::size_t p = 0; p < others; ++p) {
            theirs[p].send(0, sent[p].data(), 5);
            failure_notice said = notice(1, "more");
            said.sender = int(p);
            for (int twice = 0; twice < 2; ++twice) theirs[p].send_notice(0, said);
        }
        int heard = 0;
        for (int i = 0; i < 100000 && heard < 2 * others; ++i) {
            heard += hub.receive_notice(news);
            for (auto& t : theirs) t.poll();
        }
        CHECK(heard == 2 * others);
        for (std::size_t p = 0; p < others; ++p) hub.receive(int(p), got[p].data(), 5);
        for (int i = 0; i < 1000 && !hub.poll(); ++i) hub.sleep(1000);
        CHECK(hub.poll());
    }
}

TEST_CASE("ranks of one host do not ask each other's systems if they are there") {
    const listening_socket listener(0);
    descriptor near = begin_connect(host_address::loopback(), listener.port());
    pollfd p{near.number(), POLLOUT, 0};
    REQUIRE(::poll(&p, 1, 1000) == 1);
    const int socket = near.number();
    const tcp_messages one = messages_of(0, plain_wire(std::move(near)));
    int keeps_alive = 1;
    socklen_t size = sizeof keeps_alive;
    REQUIRE(::getsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &keeps_alive, &size) == 0);
    CHECK(keeps_alive == 0);
}

#if HVD_LINUX
// A rank that waits for a host, and looks after some milliseconds each.
struct watching_rank {
    host_silence silence;
    tcp_info info{};
    time_point time = 1;

    bool look(unsigned since_heard, int later = 100) {
        info.tcpi_last_ack_recv = info.tcpi_last_data_recv = since_heard;
        return silence.judge(info, time += later * tuning::millisecond);
    }
    bool look_often(unsigned since_heard) {
        bool silent = false;
        for (int i = 0; i < 10; ++i) silent = look(since_heard);
        return silent;
    }
};

TEST_CASE("a host that acknowledges nothing is silent, one whose window is closed is not") {
    constexpr unsigned long_ago = 5000, now = 10;  // milliseconds
    const auto is_silent = [](unsigned unacked, unsigned probes, unsigned ack, unsigned data) {
        watching_rank rank;
        rank.info.tcpi_unacked = unacked;
        rank.info.tcpi_probes = std::uint8_t(probes);
        bool result = false;
        for (int i = 0; i < 10; ++i) {
            rank.info.tcpi_last_ack_recv = ack;
            rank.info.tcpi_last_data_recv = data;
            result = rank.silence.judge(rank.info, rank.time += 100 * tuning::millisecond);
            if (i == 0) CHECK_FALSE(result);  // one look is not enough
        }
        CHECK(rank.silence.wants_probe() ==
              (unacked == 0 && probes <= 2 && ack == data && ack > now));
        return result;
    };
    CHECK(is_silent(1, 0, long_ago, long_ago));
    CHECK(is_silent(0, 3, long_ago, long_ago));  // it answers no probe of its window
    CHECK_FALSE(is_silent(0, 0, long_ago, long_ago));
    for (const unsigned probes : {1u, 2u})  // on their way to a window that is closed
        CHECK_FALSE(is_silent(0, probes, long_ago, long_ago));
    CHECK_FALSE(is_silent(1, 0, now, long_ago));
    CHECK_FALSE(is_silent(1, 3, long_ago, now));
}

TEST_CASE("a host that answers between two silences is there") {
    watching_rank rank;
    rank.info.tcpi_unacked = 1;
    for (int i = 0; i < 3; ++i) {
        for (int n = 0; n < 4; ++n) CHECK_FALSE(rank.look(5000));
        CHECK_FALSE(rank.look(10));
    }
    CHECK(rank.look_often(5000));
}

TEST_CASE("a rank that gets no processor for seconds does not take a busy host for gone") {
    watching_rank rank;
    CHECK_FALSE(rank.look(6000, 6000));  // it has asked nothing meanwhile
    CHECK(rank.silence.wants_probe());
    rank.info.tcpi_unacked = 1;
    for (int i = 0; i < 2; ++i) CHECK_FALSE(rank.look(6000, 6000));
    CHECK_FALSE(rank.look(10, 6000));  // the answer
    CHECK_FALSE(rank.look(6000, 6000));
    CHECK(rank.look_often(6000));
}

TEST_CASE("a rank that only waits for data asks a host that has been silent for some time") {
    host_address other_host = host_address::loopback();  // it is connected to from 127.0.0.1
    other_host.bytes[3] = 2;
    const listening_socket listener(-1, 0, std::span(&other_host, 1));
    descriptor mine = begin_connect(other_host, listener.port()), theirs;
    for (int i = 0; i < 1000 && !theirs; ++i) {
        theirs = listener.accept();
        if (!theirs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(theirs);
    tcp_messages a = messages_of(0, plain_wire(std::move(mine)));
    std::byte place[8];
    a.receive(1, place, sizeof place);
    frame said;
    for (int asked = 0; asked < 2; ++asked) {  // it is asked again and again
        ssize_t n = -1;
        for (int i = 0; i < 3000 && n < 0; ++i) {
            message why;
            CHECK(a.lost(why).empty());
            a.poll();
            n = ::recv(theirs.number(), &said, sizeof said, MSG_DONTWAIT);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        REQUIRE(n == sizeof said);
        CHECK(said.what == frame::kind::probe);
        CHECK(said.bytes == 0);
    }
}
#endif

}  // namespace messages_tests
