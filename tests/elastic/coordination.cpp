// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include <hvd/elastic/members/coordinator.hpp>
#include <hvd/transport/tcp/framed_socket.hpp>

#include "sanitizers.hpp"

namespace coordination_tests {

// The coordination of elastic jobs without threads, connections and clocks: a random scheduler
// delivers messages, kills processes, tears the network and lets time pass.

using namespace hvd::detail;

namespace {

using word = coordinator_message::word;

constexpr std::int64_t ms = 1'000'000;

coordinator_rules rules_of(std::size_t start, std::size_t least, std::uint64_t self, bool acts) {
    coordinator_rules r;
    r.start = start;
    r.least = least;
    r.most = 8;
    r.late = 5000 * ms;
    r.join_span = 600'000 * ms;
    r.self = self;
    r.acts = acts;
    return r;
}

join_request request_of(std::uint64_t id, state_stamp stamp = {}, std::uint64_t epoch = 0,
                        std::vector<std::uint64_t> members = {}, std::uint64_t served_by = 0) {
    join_request r;
    r.said.self.id = id;
    r.said.stamp = stamp;
    r.worked = r.recorded = {epoch, served_by, std::move(members)};
    return r;
}

// The orders, without the news that an epoch ends for a member.
std::vector<word> words(const std::vector<coordinator::order>& orders) {
    std::vector<word> all;
    for (const auto& o : orders)
        if (o.what != coordinator_message::epoch_ends) all.push_back(o.what);
    return all;
}

const std::vector<word> none, begins{coordinator_message::epoch_begins},
    ends{coordinator_message::job_has_ended}, waits{coordinator_message::others_wait},
    refuses{coordinator_message::refused}, another{coordinator_message::try_another};

template <class T>
std::vector<T> twice(const std::vector<T>& v) {
    return {v[0], v[0]};
}

}  // namespace

TEST_CASE("the first epoch begins when all have come, or enough after a time") {
    coordinator c(rules_of(3, 2, 0, true));
    c.join(1, request_of(11), 0);
    c.join(2, request_of(12), 0);
    CHECK(words(c.take_orders()) == none);
    c.join(3, request_of(13), 0);
    CHECK(c.take_orders().size() == 3);
    CHECK(c.head().size == 3);
    CHECK(c.head().equal == 0);  // all are new

    coordinator_rules r = rules_of(3, 2, 0, true);
    r.start_span = 10;
    coordinator d(r);
    d.join(1, request_of(11), 0);
    d.advance(11);
    CHECK(words(d.take_orders()) == none);  // one is too few
    d.join(2, request_of(12), 20);
    CHECK(words(d.take_orders()) == twice(begins));
    coordinator_rules s = rules_of(2, 2, 0, true);
    s.join_span = 10;
    coordinator e(s);
    e.join(1, request_of(11), 0);
    e.advance(11);
    CHECK(words(e.take_orders()) == refuses);
}

TEST_CASE("who waits without a majority is sent on, and sooner on a brief visit") {
    for (const bool is_brief : {false, true}) {
        CAPTURE(is_brief);
        coordinator c(rules_of(3, 2, 12, false));
        join_request alone = request_of(11, {1, 1}, 1, {11, 12, 13}, 13);
        alone.said.is_brief = is_brief ? 1 : 0;
        c.join(1, alone, 0);
        c.advance(600 * ms);
        CHECK(words(c.take_orders()) == none);
        c.advance(700 * ms);
        CHECK(words(c.take_orders()) == (is_brief ? another : none));
        c.advance(5100 * ms);
        CHECK(words(c.take_orders()) == (is_brief ? none : another));
    }
}

TEST_CASE("a rank that is missing is named once") {
    coordinator c(rules_of(3, 2, 12, false));
    std::vector<elastic_member> table(3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        table[rank].id = 11 + rank;
        table[rank].started_as = std::int64_t(rank);
    }
    c.follow(1, {}, table, 0);
    join_request second = request_of(12);
    second.said.self.started_as = 1;
    c.join(1, second, 0);
    c.advance(10'000 * ms);
    const auto orders = c.take_orders();
    REQUIRE(orders.size() == 1);
    const std::string_view reason = orders[0].reason;
    CAPTURE(reason);
    CHECK(reason.ends_with("missing: HVD_RANK 0, 2"));
}

TEST_CASE("of many ranks that are missing some are named, and the others counted") {
    for (const std::size_t size : {std::size_t(17), std::size_t(18), std::size_t(30)}) {
        CAPTURE(size);
        coordinator c(rules_of(size, 2, 0, true));
        join_request one = request_of(11);
        one.said.self.started_as = 3;
        c.join(1, one, 0);
        c.advance(600'001 * ms);
        const auto orders = c.take_orders();
        REQUIRE(orders.size() == 1);
        CHECK(orders[0].what == coordinator_message::refused);
        const std::string reason(std::string_view(orders[0].reason));
        CAPTURE(reason);
        const std::string named =
            "missing: HVD_RANK 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16";
        CHECK(reason.ends_with(
            size == 17 ? named : named + " and " + std::to_string(size - 17) + " others"));
    }
}

TEST_CASE(
    "hundreds of ranks, of which some die while they work and others while an epoch is made") {
    constexpr std::size_t ranks = 512, dying = 4;
    coordinator_rules rules = rules_of(ranks, 1, 0, true);
    rules.most = ranks;
    coordinator c(rules);
    std::vector<std::uint64_t> members;
    for (std::uint64_t id = 1; id <= ranks; ++id) members.push_back(id);
    for (const std::uint64_t id : members) c.join(int(id), request_of(id), 0);
    CHECK(c.take_orders().size() == ranks);
    const std::vector<std::uint64_t> first = members;
    const auto lose_some = [&] {
        for (std::size_t i = 0; i < dying; ++i) {
            c.lose(int(members.back()), false, 1);
            members.pop_back();
        }
        c.take_orders();
    };
    lose_some();
    for (const std::uint64_t id : members) c.join(int(id), request_of(id, {}, 1, first), 2);
    CHECK(words(c.take_orders()) == std::vector(ranks - dying, begins[0]));
    const std::vector<std::uint64_t> second = members;
    lose_some();
    for (const std::uint64_t id : members) {
        join_request r = request_of(id, {}, 1, first);
        r.recorded = {2, 0, second};
        c.join(int(id), r, 3);
    }
    CHECK(words(c.take_orders()) == std::vector(ranks - 2 * dying, begins[0]));
    CHECK(c.head().size == ranks - 2 * dying);
}

TEST_CASE("the first epoch does not wait for ranks that are known to be dead") {
    const auto rank = [](std::uint64_t number) {
        join_request r = request_of(10 + number);
        r.said.self.started_as = std::int64_t(number);
        return r;
    };
    coordinator c(rules_of(4, 2, 0, true));
    SUBCASE("that have come before") {
        for (int n = 0; n < 3; ++n) c.join(n, rank(std::uint64_t(n)), 0);
        c.lose(1, false, 1);
        CHECK(words(c.take_orders()) == none);  // rank 3 may come
        c.join(3, rank(3), 2);
        CHECK(words(c.take_orders()) == std::vector(3, begins[0]));
    }
    SUBCASE("that the launcher has seen die") {
        c.has_died(1, 0);
        for (const int n : {0, 2, 3}) {
            CHECK(words(c.take_orders()) == none);
            c.join(n, rank(std::uint64_t(n)), 1);
        }
        CHECK(words(c.take_orders()) == std::vector(3, begins[0]));
    }
    SUBCASE("and those that come again do not take the place of others") {
        c.join(1, rank(1), 0);
        c.lose(1, false, 1);
        for (const int n : {0, 1, 2}) c.join(10 + n, rank(std::uint64_t(n)), 2);
        CHECK(words(c.take_orders()) == none);  // rank 3 may come
        c.has_died(3, 3);
        CHECK(words(c.take_orders()) == std::vector(3, begins[0]));
    }
    SUBCASE("and waits for those that are silent, and for the least number") {
        for (int n = 0; n < 4; ++n) c.has_died(n == 3 ? 7 : n, 0);  // a newcomer is not awaited
        c.join(0, rank(0), 1);
        CHECK(words(c.take_orders()) == none);
        c.join(1, rank(1), 2);
        CHECK(words(c.take_orders()) == none);  // rank 3 may come
        c.join(3, rank(3), 3);
        CHECK(words(c.take_orders()) == std::vector(3, begins[0]));

        coordinator silent(rules_of(2, 1, 0, true));
        silent.join(0, rank(0), 0);
        silent.lose(0, true, 1);
        silent.join(1, rank(1), 2);
        CHECK(words(silent.take_orders()) == none);
    }
}

TEST_CASE("an epoch has at most as many members as the job may have, and the others wait") {
    for (std::size_t most = 1; most <= 8; ++most) {
        CAPTURE(most);
        coordinator_rules rules = rules_of(1, 1, 0, true);
        rules.most = most;
        coordinator c(rules);
        c.join(1, request_of(11), 0);
        c.take_orders();
        for (int id = 2; id <= int(most) + 1; ++id)
            c.join(id, request_of(10 + std::uint64_t(id)), 1);
        c.take_orders();
        c.join(1, request_of(11, {7, 1}, 1, {11}), 2);
        std::vector<int> begun;
        for (const coordinator::order& o : c.take_orders())
            if (o.what == coordinator_message::epoch_begins) begun.push_back(o.link);
        CHECK(begun.size() == most);
        CHECK(begun.front() == 1);  // who has the state comes before all newcomers
        CHECK(c.head().size == most);
        CHECK(c.table().size() == most);
    }
}

TEST_CASE("members of a job that is full do not hear of others, and the last place is free") {
    for (const std::size_t most : {2, 3}) {
        coordinator_rules rules = rules_of(2, 1, 0, true);
        rules.most = most;
        coordinator c(rules);
        for (const int id : {11, 12}) c.join(id, request_of(std::uint64_t(id)), 0);
        CHECK(words(c.take_orders()) == twice(begins));
        c.join(13, request_of(13), 1);
        CHECK(words(c.take_orders()) == (most == 2 ? none : twice(waits)));
    }
}

TEST_CASE("members hear of newcomers in each epoch") {
    coordinator c(rules_of(2, 1, 0, true));
    for (const int id : {11, 12}) c.join(id, request_of(std::uint64_t(id)), 0);
    CHECK(words(c.take_orders()) == twice(begins));
    c.join(13, request_of(13), 1);
    CHECK(words(c.take_orders()) == twice(waits));
    for (const int id : {11, 12}) c.join(id, request_of(std::uint64_t(id), {1, 1}, 1, {11, 12}), 2);
    c.take_orders();
    REQUIRE(c.table().size() == 3);
    c.join(14, request_of(14), 3);
    CHECK(words(c.take_orders()).size() == 3);
    c.join(15, request_of(15), 4);  // they know it
    CHECK(words(c.take_orders()) == none);
}

TEST_CASE("a process that comes over a second connection is one, and the first one ends") {
    coordinator c(rules_of(2, 1, 0, true));
    c.join(1, request_of(11), 0);
    c.join(2, request_of(11), 1);
    const auto orders = c.take_orders();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].link == 1);
    CHECK(orders[0].what == coordinator_message::try_another);
    c.join(3, request_of(12), 2);
    CHECK(words(c.take_orders()) == twice(begins));
    CHECK(c.table().size() == 2);
}

TEST_CASE("members keep their order, the highest step is the source, and newcomers follow") {
    coordinator c(rules_of(3, 1, 0, true));
    for (const int id : {11, 12, 13}) c.join(id, request_of(std::uint64_t(id)), 0);
    c.take_orders();
    c.join(20, request_of(20), 1);
    CHECK(words(c.take_orders()) == std::vector<word>(3, coordinator_message::others_wait));
    c.advance(2);
    CHECK(words(c.take_orders()) == none);  // they are told once
    c.join(13, request_of(13, {7, 1}, 1, {11, 12, 13}), 3);
    c.lose(12, true, 4);
    CHECK(c.take_orders().empty());
    CHECK(c.awaits_time());
    c.advance(501 * ms);
    const auto news = c.take_orders();
    REQUIRE(news.size() == 1);  // the others know
    CHECK(news[0].what == coordinator_message::epoch_ends);
    CHECK(news[0].link == 11);
    c.join(11, request_of(11, {6, 1}, 1, {11, 12, 13}), 502 * ms);
    const auto orders = c.take_orders();
    REQUIRE(orders.size() == 3);
    CHECK(orders[0].link == 11);
    CHECK(orders[1].link == 13);
    CHECK(orders[2].link == 20);
    CHECK(c.head().source == 1);
    CHECK(c.head().stamp == state_stamp{7, 1});
    CHECK(c.head().equal == 0);
    CHECK(c.epoch() == 2);
}

TEST_CASE("states of an earlier job count by their steps, and less than those of this one") {
    coordinator c(rules_of(2, 1, 0, true));
    c.join(1, request_of(11, {9, 0}), 0);
    c.join(2, request_of(12, {12, 0}), 0);
    c.take_orders();
    CHECK(c.head().source == 1);
    CHECK(c.head().equal == 0);
    c.join(3, request_of(13, {1000, 0}), 1);
    c.join(1, request_of(11, {13, 1}, 1, {11, 12}), 1);
    c.join(2, request_of(12, {14, 1}, 1, {11, 12}), 1);
    CHECK(c.head().size == 3);
    CHECK(c.head().stamp == state_stamp{14, 1});
}

TEST_CASE("states of one step of earlier jobs may differ") {
    coordinator c(rules_of(2, 1, 0, true));
    c.join(1, request_of(11, {9, 0}), 0);
    c.join(2, request_of(12, {9, 0}), 0);
    CHECK(c.head().size == 2);
    CHECK(c.head().equal == 0);
}

TEST_CASE("members hear at once that one is dead") {
    coordinator c(rules_of(3, 1, 0, true));
    for (const int link : {1, 2, 3}) c.join(link, request_of(std::uint64_t(10 + link)), 0);
    c.take_orders();
    c.lose(2, false, 1);
    const auto news = c.take_orders();
    REQUIRE(news.size() == 2);
    CHECK(news[0].what == coordinator_message::epoch_ends);
    CHECK(news[1].what == coordinator_message::epoch_ends);
}

TEST_CASE("members have the grace in each epoch") {
    auto rules = rules_of(3, 1, 0, true);
    rules.grace = 100 * ms;
    coordinator c(rules);
    for (const int link : {1, 2, 3}) c.join(link, request_of(std::uint64_t(10 + link)), 0);
    c.take_orders();
    const auto news = [&] {
        const auto orders = c.take_orders();
        return std::ranges::count(orders, coordinator_message::epoch_ends,
                                  &coordinator::order::what);
    };
    const std::vector<std::uint64_t> first{11, 12, 13}, second{11, 13};
    c.lose(2, true, 1);  // silent
    CHECK(news() == 0);
    c.advance(102 * ms);
    CHECK(news() == 2);
    c.join(1, request_of(11, {1, 1}, 1, first), 103 * ms);
    c.join(3, request_of(13, {1, 1}, 1, first), 103 * ms);
    REQUIRE(c.epoch() == 2);
    c.take_orders();
    c.join(1, request_of(11, {2, 2}, 2, second), 1000 * ms);
    c.advance(1050 * ms);
    CHECK(news() == 0);
    c.advance(1101 * ms);
    CHECK(news() == 1);
}

TEST_CASE("ranks with one state need not send it") {
    coordinator c(rules_of(2, 1, 0, true));
    c.join(1, request_of(11), 0);
    c.join(2, request_of(12), 0);
    c.take_orders();
    c.join(1, request_of(11, {5, 1}, 1, {11, 12}), 1);
    c.join(2, request_of(12, {5, 1}, 1, {11, 12}), 1);
    CHECK(c.head().equal == 1);
    CHECK(c.epoch() == 2);
    // A step of another epoch is another state, though its number is the same.
    c.join(1, request_of(11, {6, 1}, 2, {11, 12}), 1);
    c.join(2, request_of(12, {6, 2}, 2, {11, 12}), 1);
    CHECK(c.head().equal == 0);
    CHECK(c.head().source == 1);
}

TEST_CASE("a job ends when all have finished, and goes on while one has not") {
    coordinator c(rules_of(2, 2, 0, true));
    c.join(1, request_of(11), 0);
    c.join(2, request_of(12), 0);
    c.take_orders();
    join_request done = request_of(11, {9, 1}, 1, {11, 12});
    done.said.finished = 1;
    c.join(1, done, 1);
    CHECK(words(c.take_orders()) == none);
    c.join(2, request_of(12, {8, 1}, 1, {11, 12}), 2);
    CHECK(words(c.take_orders()) == twice(begins));
    CHECK(c.head().source == 0);
    done.worked.number = done.recorded.number = 2;
    c.join(1, done, 3);
    c.lose(2, false, 4);  // fewer than the least, and nothing is left to do
    CHECK(words(c.take_orders()) == ends);
    c.join(5, request_of(15), 5);
    CHECK(words(c.take_orders()) == ends);
}

TEST_CASE("nobody waits for processes that do not come any more") {
    for (int size = 2; size <= 4; ++size) {
        CAPTURE(size);
        const std::size_t others = std::size_t(size - 1);
        std::vector<std::uint64_t> members;
        for (int id = 1; id <= size; ++id) members.push_back(std::uint64_t(id));

        // One ends before the first epoch. Enough are there, or too few.
        for (const std::size_t least : {others, others + 1}) {
            coordinator c(rules_of(std::size_t(size), least, 0, true));
            for (int id = 1; id < size; ++id) c.join(id, request_of(std::uint64_t(id)), 0);
            CHECK(words(c.take_orders()) == none);
            c.expect(others, 0);
            CHECK(words(c.take_orders()) ==
                  std::vector(others, least == others ? begins[0] : refuses[0]));
        }

        // One ends inside of an epoch. All others must have come before they are too few.
        for (const bool have_finished : {false, true}) {
            coordinator c(rules_of(std::size_t(size), std::size_t(size), 0, true));
            for (int id = 1; id <= size; ++id) c.join(id, request_of(std::uint64_t(id)), 0);
            c.take_orders();
            c.expect(others, 1);
            c.lose(size, false, 1);
            for (int id = 1; id < size; ++id) {
                CHECK(words(c.take_orders()) == none);
                join_request again = request_of(std::uint64_t(id), {3, 1}, 1, members);
                again.said.finished = have_finished;
                c.join(id, again, 2);
            }
            const std::vector<coordinator::order> orders = c.take_orders();
            CHECK(words(orders) == std::vector(others, have_finished ? ends[0] : refuses[0]));
            const std::string reason = std::string(std::string_view(orders.back().reason));
            CHECK(have_finished == (reason.find("nothing is started any more") == reason.npos));
        }
    }
}

TEST_CASE("those who have finished wait for one that is late") {
    coordinator c(rules_of(3, 1, 0, true));
    const std::vector<std::uint64_t> three{11, 12, 13};
    for (const std::uint64_t id : three) c.join(int(id), request_of(id), 0);
    c.take_orders();
    join_request done = request_of(11, {9, 1}, 1, three);
    done.said.finished = 1;
    c.join(11, done, 1);
    done.said.self.id = 12;
    c.join(12, done, 2);
    c.advance(100'000 * ms);
    CHECK(words(c.take_orders()) == none);
    SUBCASE("until it comes") {
        done.said.self.id = 13;
        c.join(13, done, 100'001 * ms);
        CHECK(words(c.take_orders()) == std::vector<word>(3, ends[0]));
    }
    SUBCASE("until it is lost") {
        c.lose(13, false, 100'001 * ms);
        CHECK(words(c.take_orders()) == twice(ends));
    }
    SUBCASE("for the time of a join at most") {
        c.advance(600'002 * ms);
        CHECK(words(c.take_orders()) == twice(ends));
    }
}

TEST_CASE("who is late has the whole time after a majority that was lost and is there again") {
    coordinator c(rules_of(4, 1, 99, true));
    for (const int id : {11, 12, 13, 14}) c.join(id, request_of(std::uint64_t(id)), 0);
    c.take_orders();
    const auto comes = [&](int id, time_point at) {
        c.join(id, request_of(std::uint64_t(id), {4, 1}, 1, {11, 12, 13, 14}, 99), at);
    };
    comes(11, 0);
    comes(12, 0);
    comes(13, 1000 * ms);
    c.lose(13, true, 3000 * ms);
    comes(13, 4500 * ms);
    for (const time_point at : {6100, 9400}) {
        CAPTURE(at);
        c.advance(at * ms);
        CHECK(words(c.take_orders()) == none);
    }
    c.advance(9600 * ms);
    CHECK(words(c.take_orders()) == std::vector<word>{begins[0], begins[0], begins[0], another[0]});
}

TEST_CASE("a member that does not come is left out, and may come again") {
    coordinator c(rules_of(3, 1, 0, true));
    for (const int id : {11, 12, 13}) c.join(id, request_of(std::uint64_t(id)), 0);
    c.take_orders();
    c.join(11, request_of(11, {4, 1}, 1, {11, 12, 13}), 0);
    c.join(12, request_of(12, {4, 1}, 1, {11, 12, 13}), 0);
    c.advance(4000 * ms);
    CHECK(words(c.take_orders()) == none);
    c.advance(5001 * ms);
    const auto orders = c.take_orders();
    REQUIRE(orders.size() == 3);
    CHECK(orders[2].link == 13);
    CHECK(orders[2].what == coordinator_message::try_another);
    CHECK(c.head().size == 2);
    c.join(30, request_of(13, {4, 1}, 1, {11, 12, 13}), 6000 * ms);
    CHECK(words(c.take_orders()) == twice(waits));
}

TEST_CASE("newcomers do not begin anew when all who had done steps have died") {
    const std::vector<std::uint64_t> both{11, 12};
    coordinator c(rules_of(1, 1, 0, true));
    c.join(11, request_of(11), 0);
    const auto take_newcomer = [&](state_stamp done) {
        c.join(12, request_of(12), 1);
        c.join(11, request_of(11, done, 1, {11}), 2);
        c.take_orders();
        REQUIRE(c.head().size == 2);
    };
    SUBCASE("and the job ends") {
        take_newcomer({50, 1});
        c.lose(11, false, 3);
        c.join(13, request_of(13), 3);
        c.join(12, request_of(12, {}, 2, both), 4);
        const std::vector<coordinator::order> orders = c.take_orders();
        CHECK(words(orders) == twice(refuses));
        CHECK(std::string_view(orders.back().reason) ==
              "no process is left that has the job's state, of step 50");
    }
    SUBCASE("but wait for one that may live") {
        take_newcomer({50, 1});
        c.lose(11, true, 3);
        c.join(12, request_of(12, {}, 2, both), 4);
        c.advance(10'000 * ms);
        CHECK(words(c.take_orders()) == none);
        c.join(21, request_of(11, {50, 1}, 2, both), 10'001 * ms);
        CHECK(words(c.take_orders()) == twice(begins));
        CHECK(c.head().stamp == state_stamp{50, 1});
    }
    SUBCASE("unless an earlier job has kept some") {
        take_newcomer({50, 1});
        c.lose(11, false, 3);
        c.join(12, request_of(12, {40, 0}, 2, both), 4);
        CHECK(words(c.take_orders()) == begins);
    }
    SUBCASE("and begin where no step was done") {
        take_newcomer({0, 1});
        c.lose(11, false, 3);
        c.join(12, request_of(12, {}, 2, both), 4);
        CHECK(words(c.take_orders()) == begins);
    }
    SUBCASE("at a newcomer that takes the place of the coordinator") {
        coordinator next(rules_of(1, 1, 12, false));
        elastic_member first, second;
        first.id = 11;
        second.id = 12;
        next.follow(2, {50, 1}, {first, second}, 3);
        join_request again = request_of(12, {}, 2, both, 11);
        SUBCASE("whose end it has seen") {
            again.said.ended = 11;
            again.said.saw_end = 1;
            next.join(12, again, 4);
        }
        SUBCASE("that it finds gone") {
            next.join(12, again, 4);
            CHECK(words(next.take_orders()) == none);
            next.find_gone(std::vector<std::uint64_t>{11}, 5);
        }
        CHECK(words(next.take_orders()) == refuses);
    }
}

TEST_CASE("newcomers wait for a former member with steps that may live, too") {
    const std::vector<std::uint64_t> first{11, 12}, second{11, 12, 13}, last{11, 13}, lost{12};
    bool by_another = false;
    const auto lose_all_with_steps = [&] {
        coordinator c(rules_of(2, 1, 0, true));
        for (const std::uint64_t id : first) c.join(int(id), request_of(id), 0);
        if (by_another) {  // epoch 3 is without 12, and so is epoch 4, which begins here
            c.join(11, request_of(11, {50, 3}, 3, last, 11), 3);
            c.join(13, request_of(13, {}, 3, last, 11), 3);
            c.join(12, request_of(12, {50, 2}, 2, second, 11), 3);
            c.lose(12, true, 3);
        } else {
            c.join(13, request_of(13), 1);
            c.lose(12, true, 2);  // silent
            c.join(11, request_of(11, {50, 1}, 1, first), 3);
        }
        REQUIRE(c.head().size == 2);
        c.lose(11, false, 4);
        c.take_orders();
        c.join(13, request_of(13, {}, c.epoch(), last), 5);  // it has not got the state
        c.advance(20'000 * ms);
        CHECK(words(c.take_orders()) == none);
        return c;
    };
    SUBCASE("in an epoch that was begun here") {}
    SUBCASE("in one of another coordinator") { by_another = true; }
    CAPTURE(by_another);
    coordinator until_it_comes = lose_all_with_steps();
    until_it_comes.join(22, request_of(12, {50, 1}, 2, second), 20'001 * ms);
    CHECK(words(until_it_comes.take_orders()) == twice(begins));
    CHECK(until_it_comes.head().stamp == state_stamp{50, 1});
    coordinator until_it_is_gone = lose_all_with_steps();
    until_it_is_gone.find_gone(lost, 20'001 * ms);
    CHECK(words(until_it_is_gone.take_orders()) == refuses);
    coordinator at_the_limit = lose_all_with_steps();
    at_the_limit.advance(600'006 * ms);
    CHECK(words(at_the_limit.take_orders()) == refuses);
}

TEST_CASE("a part of a torn job goes on only with the votes of the majority") {
    const std::vector<std::uint64_t> four{11, 12, 13, 14};
    const auto made = [&](coordinator& c) {
        for (const std::uint64_t id : four) c.join(int(id), request_of(id), 0);
        c.take_orders();
    };
    SUBCASE("silent members count, dead ones do not") {
        coordinator c(rules_of(4, 1, 11, true));
        made(c);
        c.join(11, request_of(11, {1, 1}, 1, four, 11), 1);
        c.join(12, request_of(12, {1, 1}, 1, four, 11), 1);
        c.lose(13, true, 2);
        c.lose(14, true, 2);
        c.advance(4000 * ms);
        CHECK(words(c.take_orders()) == none);  // two of four
        c.advance(5001 * ms);
        CHECK(words(c.take_orders()) == twice(another));
        coordinator d(rules_of(4, 1, 11, true));
        made(d);
        d.join(11, request_of(11, {1, 1}, 1, four, 11), 1);
        d.lose(13, false, 2);
        d.lose(14, false, 2);
        d.lose(12, false, 2);
        CHECK(words(d.take_orders()) == begins);
    }
    SUBCASE("one that is dead for certain stays so, whatever others find") {
        const std::vector<std::uint64_t> five{11, 12, 13, 14, 15}, found{13};
        coordinator c(rules_of(5, 1, 11, true));
        for (const std::uint64_t id : five) c.join(int(id), request_of(id), 0);
        c.take_orders();
        c.join(11, request_of(11, {1, 1}, 1, five, 11), 1);
        c.join(12, request_of(12, {1, 1}, 1, five, 11), 1);
        c.lose(13, false, 2);
        c.lose(14, false, 2);
        c.find_gone(found, 2);
        CHECK(words(c.take_orders()) == none);
        c.lose(15, true, 2);
        CHECK(words(c.take_orders()) == twice(begins));  // two of the three that may live
    }
    SUBCASE("a launcher decides if half of the votes are there") {
        coordinator c(rules_of(4, 1, 0, true));
        made(c);
        c.join(11, request_of(11, {1, 1}, 1, four, 0), 1);
        for (const int lost : {12, 13, 14}) c.lose(lost, true, 2);
        CHECK(words(c.take_orders()) == none);  // 2 votes of 5
        c.join(12, request_of(12, {1, 1}, 1, four, 0), 3);
        CHECK(words(c.take_orders()) == twice(begins));  // 3 of 5
    }
    SUBCASE("a successor needs more, and waits for the others a while") {
        coordinator c(rules_of(4, 1, 12, false));
        c.join(1, request_of(12, {1, 1}, 1, four, 11), 0);
        c.join(2, request_of(13, {1, 1}, 1, four, 11), 0);
        c.advance(4000 * ms);
        CHECK(words(c.take_orders()) == none);  // two of four
        join_request saw = request_of(13, {1, 1}, 1, four, 11);
        saw.said.saw_end = 1;
        saw.said.ended = 11;  // the coordinator is dead, so that there are three
        c.join(2, saw, 4000 * ms);
        CHECK(words(c.take_orders()) == none);
        c.advance(4301 * ms);
        CHECK(words(c.take_orders()) == twice(begins));
        CHECK(c.epoch() == 2);
    }
    SUBCASE("those who are gone may have begun an epoch with newcomers, unless they were too few") {
        const std::vector<std::uint64_t> one{13}, two{13, 14}, others{11, 12, 13, 14};
        coordinator c(rules_of(4, 1, 12, false));
        c.join(1, request_of(12, {1, 1}, 1, four, 11), 0);
        c.find_gone(others, 1);  // it knows better of itself
        c.advance(1000 * ms);
        CHECK(words(c.take_orders()) == none);  // one of four
        coordinator d(rules_of(4, 1, 12, false));
        d.join(1, request_of(12, {1, 1}, 1, four, 11), 0);
        d.join(2, request_of(11, {1, 1}, 1, four, 11), 0);
        d.find_gone(one, 1);
        d.advance(1000 * ms);
        CHECK(words(d.take_orders()) == none);
        d.find_gone(two, 1001 * ms);
        CHECK(words(d.take_orders()) == twice(begins));  // two of four
    }
    SUBCASE("a successor without a majority sends the members on") {
        coordinator c(rules_of(4, 1, 12, false));
        c.join(1, request_of(12, {1, 1}, 1, four, 0), 0);
        c.advance(5001 * ms);
        const auto orders = c.take_orders();
        CHECK(words(orders) == another);
        REQUIRE(orders.size() == 1);
        CHECK(std::string(orders[0].reason.c_str()) ==
              "here are 1 of the 4 ranks of epoch 1, and more than half of those that may live "
              "are needed");
    }
    SUBCASE("a coordinator that others have followed in gives way") {
        coordinator c(rules_of(4, 1, 0, true));
        made(c);
        c.join(11, request_of(11, {1, 1}, 3, {11, 12, 13}, 12), 1);
        c.advance(100);
        CHECK(words(c.take_orders()) == none);  // its own vote is none in that epoch
        c.join(12, request_of(12, {1, 1}, 3, {11, 12, 13}, 12), 2);
        c.advance(400 * ms);
        CHECK(words(c.take_orders()) ==
              std::vector<word>{begins[0], begins[0], another[0], another[0]});
        CHECK(c.epoch() == 4);
    }
}

// ---- random runs --------------------------------------------------------------------------------

namespace {

// A process: its coordinator, and what `membership` and `elastic::run` would do.
struct process {
    std::uint64_t id = 0;
    bool lives = true;
    coordinator server;
    int side = 0;                            // of a torn network
    int asks = -1;                           // the process whose coordinator it is connected to
    int link = 0;                            // the number of that connection
    std::size_t first = 0, next = 0;         // candidates: who was asked first, and who was last
    bool sent_on = false, is_brief = false;  // it only looks in
    // It has received an epoch, is connected to all others of it, and works since all are. It has
    // recorded its first epoch when it has received that.
    bool waits = false, has_received = false, has_recorded = false, works = false;
    bool others_wait = false, epoch_ends = false, saw_end = false, serves_epoch = false;
    std::vector<std::uint64_t> gone;  // whom it knows to be gone
    state_stamp stamp;
    told_epoch received, recorded, worked;
    std::uint64_t known_epoch = 0;
    std::vector<std::uint64_t> candidates;  // whom it asks after the first process of the job
    state_stamp of_source;                  // of the epoch that was received
    bool is_equal = false;

    process(std::uint64_t number, const coordinator_rules& r) : id(number), server(r) {}
};

class simulation {
public:
    simulation(unsigned seed, std::size_t start, bool has_launcher)
        : random_(seed), start_(start), has_hosts_(seed % 3 != 0) {
        if (has_launcher) all_.emplace_back(0, rules_of(start, 1, 0, true));
        while (living() < start) add();
    }

    int below(std::size_t n) { return int(random_() % n); }

    void add() {
        const std::uint64_t id = 100 + all_.size();
        all_.emplace_back(id, rules_of(start_, 1, id, all_.empty()));
    }

    enum class faults { none, torn, all };

    // Something happens, and now and then a fault.
    void step(faults wanted) {
        time_ += below(3) * ms;
        const int p = below(all_.size());
        process& one = all_[std::size_t(p)];
        if (wanted == faults::all && below(4000) == 0 && living() > 1) return die(one);
        if (wanted != faults::none && below(3000) == 0 && living() < 8) return add();
        if (wanted != faults::none && below(3000) == 0)
            for (process& q : all_) q.side = below(2);
        else if (wanted != faults::none && below(200) == 0) mend();
        if (!one.lives) return;
        one.server.advance(time_);
        deliver(one);
        notice_silence(one);
        if (one.id != 0) act(one);
    }
    void mend() {
        for (process& q : all_) q.side = 0;
    }

    std::size_t living() const {
        std::size_t n = 0;
        for (const process& q : all_) n += q.lives && q.id != 0 ? 1 : 0;
        return n;
    }
    // True if all living processes work in one epoch.
    bool is_whole() const {
        std::uint64_t epoch = 0;
        for (const process& q : all_) {
            if (!q.lives || q.id == 0) continue;
            if (!q.works || (epoch != 0 && q.received.number != epoch)) return false;
            epoch = q.received.number;
        }
        return true;
    }
    std::uint64_t epochs() const { return epochs_; }

private:
    void die(process& one) {
        one.lives = false;
        leave_epoch(one);
        for (process& q : all_) {  // what it asked sees the end, unless the network is torn
            if (index(q) == one.asks && q.lives)
                q.server.lose(one.link, !sees_death(one, q), time_);
            if (q.asks == index(one) && q.lives) {
                if (q.serves_epoch) q.saw_end = sees_death(one, q);
                cut(q);
            }
        }
    }
    // The system of a process that dies resets the connections on which it has not read everything.
    bool sees_death(const process& dead, const process& q) {
        if (q.side != dead.side) return false;
        return was_closed_by_peer(below(8) == 0 ? ECONNRESET : 0, 0, are_on_one_host(dead, q));
    }
    bool are_on_one_host(const process& a, const process& b) const {
        return has_hosts_ && a.id % 3 == b.id % 3;
    }
    // A connection to a host from which nothing comes ends by a time that is over. The host at its
    // other end, which may hear this one, resets it then, and so does a system that goes on after a
    // pause. A send takes the error before a read sees it.
    bool sees_death_in_silence() {
        switch (below(3)) {
            case 0: return was_closed_by_peer(ETIMEDOUT, 0, false);
            case 1: return was_closed_by_peer(ECONNRESET, 0, false);
            default: return was_closed_by_peer(0, ETIMEDOUT, false);
        }
    }
    int index(const process& q) const {
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (&all_[i] == &q) return int(i);
        return -1;
    }
    // A connection has ended for the one that asked.
    static void cut(process& q) {
        q.asks = -1;
        q.waits = q.serves_epoch = false;
        q.others_wait = q.epoch_ends = true;
    }
    // A torn network is noticed on both sides, sooner or later.
    void notice_silence(process& one) {
        if (one.asks < 0) return;
        process& other = all_[std::size_t(one.asks)];
        if (other.side != one.side && below(4) == 0) lose_connection(one);
    }
    void lose_connection(process& one) {
        process& other = all_[std::size_t(one.asks)];
        if (other.lives) other.server.lose(one.link, !sees_death_in_silence(), time_);
        if (one.serves_epoch) one.saw_end = sees_death_in_silence();
        cut(one);
    }

    void act(process& one) {
        if (one.has_received) return work(one);
        if (one.waits) return look_around(one);
        if (one.asks < 0) return dial(one);
        say(one);
    }

    // A process sees, though the network is torn, who of its own host is dead.
    bool sees_gone(process& one, const process& q) {
        if (q.lives || !are_on_one_host(one, q)) return false;
        if (std::ranges::find(one.gone, q.id) == one.gone.end()) one.gone.push_back(q.id);
        return true;
    }
    void look_around(process& one) {
        if (one.candidates.empty() || below(20) != 0) return;
        const std::uint64_t id = one.candidates[std::size_t(below(one.candidates.size()))];
        if (sees_gone(one, of(id))) tell_of_gone(one);
    }
    void tell_of_gone(const process& one) {
        all_[std::size_t(one.asks)].server.find_gone(one.gone, time_);
    }

    static void leave_epoch(process& one) {
        one.has_received = one.has_recorded = one.works = false;
    }
    // True if f is true for all members of the epoch that one has received, who are in it, too.
    template <class F>
    bool all_of(const process& one, F f) {
        for (const std::uint64_t id : one.received.members) {
            const process& q = of(id);
            if (!q.lives || q.side != one.side || q.received != one.received || !f(q)) return false;
        }
        return true;
    }

    // Members of one epoch connect, record it, and do steps together while all of them are there.
    // Each commits by itself, so that some may be a step behind. One that is lost, or has left,
    // ends it for all.
    void work(process& one) {
        const bool all_are_in = all_of(one, [](const process& q) { return q.has_received; });
        if (!one.has_recorded) {
            if (all_are_in) record(one);
            else if (one.epoch_ends) leave_epoch(one);
        } else if (!all_are_in) {
            leave_epoch(one);
        } else if (!one.works) {
            if (all_of(one, [](const process& q) { return q.has_recorded; })) begin_work(one);
        } else {
            do_step(one);
        }
    }
    void record(process& one) {
        one.has_recorded = true;
        one.recorded = one.received;
    }
    void begin_work(process& one) {
        one.works = true;
        one.worked = one.recorded;
        if (!one.is_equal)
            one.stamp =
                one.of_source.step < 0 ? state_stamp{0, one.received.number} : one.of_source;
        if (working_.number == one.received.number) {
            REQUIRE(working_ == one.received);
            return;
        }
        REQUIRE(one.received.number > working_.number);
        working_ = one.received;
        ++epochs_;
    }
    void do_step(process& one) {
        std::int64_t least = one.stamp.step, most = least;
        bool any_news = false;
        for (const std::uint64_t id : one.received.members) {
            const process& q = of(id);
            if (!q.works) return;
            least = std::min(least, q.stamp.step);
            most = std::max(most, q.stamp.step);
            any_news = any_news || q.others_wait;
        }
        if (any_news && one.stamp.step == most && below(3) == 0) return leave_epoch(one);
        if (one.stamp.step > least) return;  // it waits for the others
        REQUIRE(working_ == one.received);   // no other part of the job works
        one.stamp = {one.stamp.step + 1, one.received.number};
    }
    process& of(std::uint64_t id) {
        for (process& q : all_)
            if (q.id == id) return q;
        FAIL("no such process");
        return all_[0];
    }

    void dial(process& one) {
        one.is_brief = one.sent_on && !one.is_brief && reach_another(one);
        one.sent_on = false;
        if (one.is_brief) return;
        for (one.first = 0; one.first <= one.candidates.size(); ++one.first)
            if (reach(one, one.first)) return;
    }
    bool reach_another(process& one) {
        for (std::size_t i = 0; i < one.candidates.size(); ++i) {
            const std::size_t candidate = ++one.next % (1 + one.candidates.size());
            if (candidate != one.first && reach(one, candidate)) return true;
        }
        return false;
    }
    bool reach(process& one, std::size_t candidate) {
        process& to = candidate == 0 ? all_[0] : of(one.candidates[candidate - 1]);
        if (candidate > 0 && sees_gone(one, to)) return false;
        if (!to.lives || to.side != one.side) return false;
        one.asks = index(to);
        one.link = ++links_;
        one.serves_epoch = false;
        return true;
    }
    void say(process& one) {
        join_request r = request_of(one.id, one.stamp);
        r.worked = one.worked;
        r.recorded = one.recorded;
        r.said.ended = one.received.served_by;
        r.said.saw_end = one.saw_end ? 1 : 0;
        r.said.is_brief = one.is_brief ? 1 : 0;
        one.waits = true;
        one.others_wait = one.epoch_ends = false;
        all_[std::size_t(one.asks)].server.join(one.link, std::move(r), time_);
        tell_of_gone(one);
    }

    void deliver(process& server) {
        for (const coordinator::order& o : server.server.take_orders())
            for (process& q : all_) {
                if (q.link != o.link || q.asks != index(server) || !q.lives) continue;
                if (q.side == server.side) hear(q, server, o);
                else lose_connection(q);  // with what was said
            }
    }
    void hear(process& q, process& server, const coordinator::order& o) {
        const bool ends = o.what == coordinator_message::epoch_ends;
        if (ends || o.what == coordinator_message::others_wait) {
            q.others_wait = q.others_wait || !q.waits;
            q.epoch_ends = q.epoch_ends || (ends && !q.waits);
        } else if (o.what == coordinator_message::refused) {
            for (const process& other : all_)
                REQUIRE((!other.lives || other.stamp.step <= 0));  // nobody has the state
            die(q);
        } else if (o.what != coordinator_message::epoch_begins) {
            REQUIRE(o.what == coordinator_message::try_another);
            ask_next(q, server.server);
            cut(q);
            q.sent_on = true;
        } else {
            begin(q, server.server, o.rank);
        }
    }
    static std::vector<std::uint64_t> ids_of(const coordinator& server) {
        std::vector<std::uint64_t> ids;
        for (const elastic_member& m : server.table()) ids.push_back(m.id);
        return ids;
    }
    static void ask_next(process& q, const coordinator& server) {
        if (server.epoch() < q.known_epoch || server.table().empty()) return;
        std::vector<std::uint64_t> others = ids_of(server);
        if (server.epoch() > q.known_epoch) std::swap(others, q.candidates);
        q.known_epoch = server.epoch();
        for (const std::uint64_t id : others)
            if (std::ranges::find(q.candidates, id) == q.candidates.end())
                q.candidates.push_back(id);
    }
    void begin(process& q, const coordinator& server, std::size_t rank) {
        const coordinator_message& head = server.head();
        const std::vector<std::uint64_t> ids = ids_of(server);
        REQUIRE(ids[rank] == q.id);
        REQUIRE(head.epoch > q.recorded.number);
        REQUIRE(q.stamp <= head.stamp);  // nobody is thrown back
        q.waits = q.saw_end = false;
        q.gone.clear();
        q.has_received = q.serves_epoch = true;
        q.received = {head.epoch, head.served_by, ids};
        if (q.recorded.number == 0) q.recorded = q.received;
        ask_next(q, server);
        q.server.follow(head.epoch, head.stamp, server.table(), time_);
        q.of_source = head.stamp;
        q.is_equal = head.equal != 0;
    }

    std::mt19937 random_;
    std::size_t start_;
    bool has_hosts_;  // of several processes, which see that others of the host are dead
    std::deque<process> all_;
    std::int64_t time_ = 0;
    int links_ = 0;
    told_epoch working_;  // the newest epoch in which anybody has worked
    std::uint64_t epochs_ = 0;
};

// A sanitizer plays a part of them.
constexpr unsigned networks = hvd_test::under_asan || hvd_test::under_tsan ? 40 : 200;

}  // namespace

TEST_CASE("whatever dies, comes or is torn, there is one epoch at a time, and no step is lost") {
    std::uint64_t epochs = 0;
    unsigned whole = 0;
    for (unsigned seed = 1; seed <= 2 * networks; ++seed) {
        CAPTURE(seed);
        simulation s(seed, 2 + seed % 4, seed % 2 == 0);
        for (int i = 0; i < 6000; ++i) s.step(simulation::faults::all);
        s.mend();
        for (int i = 0; i < 60000 && !s.is_whole(); ++i) s.step(simulation::faults::none);
        epochs += s.epochs();
        whole += s.is_whole() ? 1 : 0;
    }
    CHECK(epochs > 5 * networks);
    CHECK(whole > networks);  // the others have lost a majority for good
}

TEST_CASE("a network that is mended brings all together again") {
    for (unsigned seed = 1; seed <= networks; ++seed) {
        CAPTURE(seed);
        simulation s(seed, 2 + seed % 4, seed % 2 == 0);
        for (int i = 0; i < 6000; ++i) s.step(simulation::faults::torn);
        s.mend();
        for (int i = 0; i < 200000 && !s.is_whole(); ++i) s.step(simulation::faults::none);
        CHECK(s.is_whole());
    }
}

}  // namespace coordination_tests
