// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <hvd/engine/negotiation/negotiator.hpp>
#include <hvd/engine/prediction.hpp>

#include "sanitizers.hpp"

namespace negotiation_tests {

// The negotiation of an engine without threads and without a network: a random scheduler delivers
// the messages of up to 512 ranks in any order that links allow, and plays the engines.

using namespace hvd::detail;

namespace {

signature tensor(std::uint64_t count, int priority = 0) {
    signature s;
    s.call.kind = collective::allreduce;
    s.call.id = hvd::dtype::float32;
    s.call.count = count;
    s.call.dimensions = 1;
    s.call.extents[0] = count;
    s.bytes = count * 4;
    s.fuses = true;
    s.priority = priority;
    return s;
}

std::string names_of(const agreed_unit& unit) {
    std::string all;
    for (const agreed_tensor& t : unit) all += t.name + "/" + std::to_string(t.contributors) + " ";
    return all;
}

// One rank: its negotiator, and what its engine would do.
struct simulated_rank {
    negotiator talks;
    std::vector<std::pair<std::string, signature>> to_submit;  // of the present step, in its order
    std::map<std::string, signature> pending;
    std::vector<std::string> log;   // what all ranks must see alike
    std::vector<int> blamed;        // by the last report or the end
    std::vector<agreed_unit> step;  // predicted
    std::size_t at = 0;
    std::uint64_t units = 0;
    bool predicts = false, entered = false, declined = false, must_restart = false;
    bool has_joined = false, is_back = false;
    int steps_done = 0;

    simulated_rank(int rank, int size, const negotiation_options& o) : talks(rank, size, o) {}
};

class simulation {
public:
    simulation(int size, unsigned seed, const negotiation_options& options = {})
        : random_(seed), size_(size) {
        for (int r = 0; r < size; ++r) ranks_.emplace_back(r, size, options);
    }

    std::mt19937& random() { return random_; }
    int below(int n) { return int(random_() % unsigned(n)); }
    simulated_rank& rank(int r) { return ranks_[std::size_t(r)]; }
    std::uint64_t events() const { return events_; }

    // Gives every rank the same tensors, each in an order of its own.
    void begin_step(const std::vector<std::pair<std::string, signature>>& tensors) {
        for (simulated_rank& r : ranks_) {
            r.to_submit = tensors;
            std::shuffle(r.to_submit.begin(), r.to_submit.end(), random_);
        }
    }

    // Lets things happen in a random order until nothing can any more.
    void run() {
        do
            for (int i = 0; i < 4 * size_; ++i) happen(below(size_));
        while (everything_once() || decline_where_stuck());
    }

    bool all_done() const {
        for (const simulated_rank& r : ranks_)
            if (!r.pending.empty() || !r.to_submit.empty()) return false;
        return true;
    }
    void check_logs() {
        for (const simulated_rank& r : ranks_) REQUIRE(r.log == ranks_.front().log);
    }
    void join(int r) {
        rank(r).has_joined = true;
        if (rank(r).predicts) rank(r).declined = true;
        else rank(r).talks.join();
    }

private:
    void happen(int r) {
        ++events_;
        switch (below(4)) {
            case 0: submit(r); break;
            case 1: deliver(r, below(2) == 0); break;
            case 2: decide(r); break;
            default: predict(r);
        }
    }
    // False if nothing is left to happen.
    bool everything_once() {
        bool moved = false;
        for (int r = 0; r < size_; ++r) {
            moved = submit(r) || moved;
            moved = deliver(r, true) || moved;
            moved = decide(r) || moved;
            moved = predict(r) || moved;
        }
        return moved;
    }

    bool submit(int r) {
        simulated_rank& me = rank(r);
        if (me.to_submit.empty() || me.has_joined) return false;
        const auto [name, mine] = me.to_submit.back();
        me.to_submit.pop_back();
        me.pending[name] = mine;
        if (me.predicts) {
            bool expected = false;
            for (const agreed_unit& unit : me.step)
                for (const agreed_tensor& t : unit)
                    expected =
                        expected || (t.name == name && t.signature.difference(mine) == field::none);
            if (!expected && !me.entered) me.declined = true;
            if (!expected) surprises_.insert(r);
        } else if (!me.must_restart) {
            me.talks.submit(name, mine);
        }
        return true;
    }

    // Takes a message from one of the links to rank r, and sends what r has to say.
    bool deliver(int r, bool decides) {
        bool moved = false;
        std::vector<int> full;
        for (auto& [from, queue] : links_[r])
            if (!queue.empty()) full.push_back(from);
        if (!full.empty()) {
            const int from = full[std::size_t(below(int(full.size())))];
            rank(r).talks.receive(from, links_[r][from].front());
            links_[r][from].pop_front();
            moved = true;
        }
        if (decides) rank(r).talks.decide();
        for (negotiator::outgoing out; rank(r).talks.next_message(out); moved = true)
            links_[out.to][r].push_back(out.bytes);
        return moved;
    }

    bool decide(int r) {
        simulated_rank& me = rank(r);
        if (me.must_restart) {
            me.must_restart = false;
            me.talks.restart(std::exchange(me.units, 0));
            for (const auto& [name, mine] : me.pending) me.talks.submit(name, mine);
            if (me.has_joined) me.talks.join();
            return true;
        }
        decision d;
        if (me.predicts || !me.talks.next_decision(d)) return false;
        switch (d.kind) {
            case decision::what::run:
                me.log.push_back("run " + names_of(d.units.front()));
                for (const agreed_tensor& t : d.units.front()) take(me, t);
                break;
            case decision::what::predict:
                me.log.push_back("predict");
                me.predicts = true;
                me.step = d.units;
                me.at = 0;
                me.entered = me.declined = false;
                if (me.has_joined) me.declined = true;
                for (const auto& [name, mine] : me.pending) {
                    bool expected = false;
                    for (const agreed_unit& unit : me.step)
                        for (const agreed_tensor& t : unit) expected = expected || t.name == name;
                    if (!expected) me.declined = true;
                }
                break;
            case decision::what::refuse:
                me.log.push_back("refuse " + d.name + ": " + std::to_string(d.values.size()) +
                                 " values, " + d.text);
                me.pending.erase(d.name);
                break;
            case decision::what::joined:
                me.log.push_back("joined " + std::to_string(d.rank));
                me.has_joined = false;
                me.is_back = true;
                break;
            case decision::what::reset:
                for (const auto& [name, mine] : me.pending) me.talks.submit(name, mine);
                if (me.has_joined) me.talks.join();
                break;
            case decision::what::missing:
                me.log.push_back(d.text);
                me.blamed = d.ranks.list();
                break;
            case decision::what::ended:
                me.log.push_back("ended " + d.text);
                me.blamed = d.ranks.empty() ? std::vector{d.rank} : d.ranks.list();
                break;
        }
        return true;
    }
    void take(simulated_rank& me, const agreed_tensor& t) {
        REQUIRE((me.pending.count(t.name) == 1 || me.has_joined));
        me.pending.erase(t.name);
    }

    // The predicted unit runs when all ranks have entered it. It does not if one declines.
    bool predict(int r) {
        simulated_rank& me = rank(r);
        if (!me.predicts) return false;
        bool moved = false;
        if (!me.entered && !me.declined) {
            bool all = true;
            for (const agreed_tensor& t : me.step[me.at])
                all = all && me.pending.count(t.name) == 1;
            me.entered = moved = all;
        }
        bool meets = true, declines = false;
        for (const simulated_rank& o : ranks_) {
            meets = meets && o.predicts && (o.entered || o.declined);
            declines = declines || o.declined;
        }
        if (!meets) return moved;
        for (simulated_rank& o : ranks_)
            if (declines) leave_prediction(o);
            else run_predicted(o);
        return true;
    }
    void leave_prediction(simulated_rank& o) {
        o.log.push_back("declined");
        o.predicts = false;
        o.must_restart = true;
        surprises_.clear();
    }
    void run_predicted(simulated_rank& o) {
        o.log.push_back("predicted " + names_of(o.step[o.at]));
        for (const agreed_tensor& t : o.step[o.at]) take(o, t);
        o.at = (o.at + 1) % o.step.size();
        ++o.units;
        o.entered = false;
        o.declined = surprises_.count(int(&o - ranks_.data())) != 0;
    }

    // Engines lose their patience.
    bool decline_where_stuck() {
        bool changed = false;
        for (simulated_rank& r : ranks_)
            if (r.predicts && !r.entered && !r.declined && (!r.pending.empty() || r.has_joined))
                r.declined = changed = true;
        return changed;
    }

    std::mt19937 random_;
    int size_;
    std::vector<simulated_rank> ranks_;
    std::map<int, std::map<int, std::deque<std::vector<std::byte>>>> links_;  // to, from
    std::set<int> surprises_;  // ranks with tensors that are not part of the predicted step
    std::uint64_t events_ = 0;
};

std::vector<std::pair<std::string, signature>> tensors(int n, std::mt19937& random) {
    std::vector<std::pair<std::string, signature>> all;
    for (int i = 0; i < n; ++i)
        all.emplace_back("layer" + std::to_string(i), tensor(1 + random() % 1000));
    return all;
}

int events_wanted() {
    const char* const given = std::getenv("HVD_TEST_EVENTS");
    return given != nullptr ? std::atoi(given) : 100000;
}

}  // namespace

TEST_CASE("tensors that all ranks submit run on all ranks in one order") {
    for (const int size : {1, 2, 3, 4, 10, 73}) {
        INFO(size, " ranks");
        simulation all(size, unsigned(size));
        const auto list = tensors(20, all.random());
        for (int step = 0; step < 6; ++step) {
            all.begin_step(list);
            all.run();
            REQUIRE(all.all_done());
            all.check_logs();
        }
    }
}

TEST_CASE("a step that repeats is predicted, and one that changes is negotiated again") {
    for (const int size : {1, 2, 3, 4, 20}) {
        INFO(size, " ranks");
        simulation all(size, 5);
        const auto list = tensors(8, all.random());
        for (int step = 0; step < 5; ++step) {
            all.begin_step(list);
            all.run();
            REQUIRE(all.all_done());
        }
        const auto& log = all.rank(0).log;
        CHECK(std::count(log.begin(), log.end(), "predict") == 1);
        CHECK(log.back().starts_with("predicted"));
        auto more = list;
        more.emplace_back("new", tensor(3));
        more[2].second = tensor(77);
        for (int step = 0; step < 3; ++step) {
            all.begin_step(more);
            all.run();
            REQUIRE(all.all_done());
            all.check_logs();
        }
        CHECK(std::count(log.begin(), log.end(), "declined") == 1);
    }
}

TEST_CASE("ranks that disagree are all told every rank's value, and other tensors go on") {
    for (const int size : {2, 3, 4, 30}) {
        INFO(size, " ranks");
        simulation all(size, 9);
        const auto list = tensors(5, all.random());
        for (int step = 0; step < 5; ++step) {
            const bool differs = step == 1 || step == 4;  // seen for the first time, and predicted
            all.begin_step(list);
            if (differs)
                for (auto& [name, mine] : all.rank(size - 1).to_submit)
                    if (name == "layer3") mine = tensor(5000);
            all.run();
            REQUIRE(all.all_done());
            all.check_logs();
            const auto& log = all.rank(0).log;
            const auto told = std::count(log.begin(), log.end(),
                                         "refuse layer3: " + std::to_string(size) + " values, ");
            CHECK(told == (step >= 4 ? 2 : step >= 1 ? 1 : 0));
        }
    }
}

TEST_CASE("a rank that has joined is not waited for") {
    for (const int size : {1, 2, 3, 4, 25}) {
        INFO(size, " ranks");
        simulation all(size, 3);
        const auto list = tensors(4, all.random());
        for (int step = 0; step < 5; ++step) {
            all.begin_step(list);
            all.run();
        }
        all.begin_step(list);
        for (int r = 0; r < size - 1; r += 2) {
            all.rank(r).to_submit.clear();
            all.join(r);
        }
        all.run();
        REQUIRE(all.all_done());
        for (int r = 0; r < size; ++r)
            if (!all.rank(r).has_joined) all.join(r);
        all.run();
        all.check_logs();
        for (int r = 0; r < size; ++r) CHECK(all.rank(r).is_back);
        all.begin_step(list);
        all.run();
        CHECK(all.all_done());
    }
}

TEST_CASE("who has not submitted a tensor is found") {
    simulation all(11, 2, {.fanout = 2});
    all.begin_step({{"x", tensor(5)}});
    for (const int late : {3, 7, 8}) all.rank(late).to_submit.clear();
    all.run();
    all.rank(10).talks.ask_missing("x");
    all.run();
    for (int r = 0; r < 11; ++r) {
        CHECK(all.rank(r).log.back() == "ranks 3, 7, 8 have not submitted it");
        CHECK(all.rank(r).blamed == std::vector{3, 7, 8});
    }
}

TEST_CASE("a rank that has joined is not among those that have not submitted a tensor") {
    simulation all(7, 3, {.fanout = 2});
    all.begin_step({{"x", tensor(5)}});
    for (const int absent : {1, 3, 5}) all.rank(absent).to_submit.clear();
    for (const int joined : {1, 5}) all.join(joined);
    all.run();
    all.rank(6).talks.ask_missing("x");
    all.run();
    for (int r = 0; r < 7; ++r) {
        CAPTURE(r);
        CHECK(all.rank(r).log.back() == "rank 3 has not submitted it");
        CHECK(all.rank(r).blamed == std::vector{3});
    }
}

TEST_CASE("ranks have their time for each question, also for one that comes after another") {
    negotiator root(0, 3, {});
    CHECK(root.look_at_questions(100, 50) == never);
    root.ask_missing("x");
    CHECK(root.look_at_questions(100, 50) == 150);
    root.ask_missing("y");
    CHECK(root.look_at_questions(140, 50) == 150);
    CHECK(root.look_at_questions(150, 50) == 190);
    decision d;
    REQUIRE(root.next_decision(d));
    CHECK(d.name == "x");
    CHECK(d.text == "rank 0 has not submitted it; ranks 1, 2 do not answer");
    CHECK(!root.next_decision(d));
    CHECK(root.look_at_questions(190, 50) == never);
    REQUIRE(root.next_decision(d));
    CHECK(d.name == "y");
}

TEST_CASE("a silent rank is named from two levels below, beside one that has not submitted it") {
    const negotiation_options options{.fanout = 1};
    std::vector<negotiator> ranks;
    for (int r = 0; r < 4; ++r) ranks.emplace_back(r, 4, options);
    const auto send = [&](int from) {
        for (negotiator::outgoing out; ranks[std::size_t(from)].next_message(out);)
            ranks[std::size_t(out.to)].receive(from, out.bytes);
    };
    for (const int r : {0, 1}) ranks[std::size_t(r)].submit("x", tensor(5));
    ranks[0].ask_missing("x");
    for (const int r : {0, 1, 2}) send(r);  // rank 3 does not answer
    CHECK(ranks[2].look_at_questions(100, 50) == 150);
    CHECK(ranks[2].look_at_questions(150, 50) == never);
    for (const int r : {2, 1}) send(r);
    decision d;
    REQUIRE(ranks[0].next_decision(d));
    CHECK(d.text == "rank 2 has not submitted it; rank 3 does not answer");
    CHECK(d.ranks.list() == std::vector{2, 3});
}

TEST_CASE("the first reason for an end reaches all ranks") {
    simulation all(40, 2, {.fanout = 3});
    all.rank(17).talks.leave("rank 17 failed: no space left");
    all.run();
    for (int r = 0; r < 40; ++r) {
        CHECK(all.rank(r).log == std::vector<std::string>{"ended rank 17 failed: no space left"});
        CHECK(all.rank(r).blamed == std::vector{17});
    }
    simulation late(13, 3, {.fanout = 2});
    late.rank(4).talks.leave("rank 4 gives up", rank_set(8, 9));
    late.run();
    for (int r = 0; r < 13; ++r) CHECK(late.rank(r).blamed == std::vector{8, 9});
}

TEST_CASE("a tensor that waits for a rank which is done ends the engine on all ranks") {
    for (const bool said_before : {false, true}) {
        INFO("the rank is done before the tensor comes: ", said_before);
        simulation all(12, 5, {.fanout = 3});
        const auto list = tensors(4, all.random());
        all.begin_step(list);
        all.run();
        REQUIRE(all.all_done());
        if (said_before) all.rank(7).talks.bye();
        if (said_before) all.run();
        all.begin_step({{"x", tensor(5)}});
        all.rank(7).to_submit.clear();
        all.run();
        if (!said_before) all.rank(7).talks.bye();
        all.run();
        for (int r = 0; r < 12; ++r)
            CHECK(all.rank(r).log.back() ==
                  "ended rank 7 has destroyed its engine, and other ranks have submitted 'x'");
    }
    simulation quiet(12, 6, {.fanout = 3});
    for (int r = 0; r < 12; ++r) quiet.rank(r).talks.bye();
    quiet.run();
    for (int r = 0; r < 12; ++r) CHECK(quiet.rank(r).log == std::vector<std::string>{"ended "});
}

TEST_CASE("more tensors than numbers, and none") {
    for (const std::size_t capacity : {std::size_t(0), std::size_t(1), std::size_t(7)}) {
        INFO("capacity ", capacity);
        simulation all(5, 8, {.cache_capacity = capacity});
        const auto list = tensors(20, all.random());
        for (int step = 0; step < 5; ++step) {
            all.begin_step(list);
            all.run();
            REQUIRE(all.all_done());
        }
    }
}

TEST_CASE("a coordinator's work does not grow with the number of ranks") {
    // Sanitizers need a quarter of a minute for 512.
    constexpr int size = hvd_test::under_asan || hvd_test::under_tsan ? 100 : 512, names = 30;
    simulation all(size, 4, {.predict = false});
    const auto list = tensors(names, all.random());
    for (int step = 0; step < 3; ++step) {
        all.begin_step(list);
        all.run();
        REQUIRE(all.all_done());
    }
    std::vector<negotiator::work> before;
    for (int r = 0; r < size; ++r) before.push_back(all.rank(r).talks.counted());
    all.begin_step(list);
    all.run();
    REQUIRE(all.all_done());
    for (int r = 0; r < size; ++r) {
        const negotiator::work now = all.rank(r).talks.counted();
        // Each tensor comes once from each of 8 children, and goes once to each of them.
        REQUIRE(now.words - before[std::size_t(r)].words <= names * 9 + names);
        REQUIRE(now.bytes_sent - before[std::size_t(r)].bytes_sent <=
                names * 9 * 16 + (now.messages_sent - before[std::size_t(r)].messages_sent) * 8);
    }
}

TEST_CASE("units hold the largest tensors first if they are asked to, and priorities still count") {
    for (const bool largest_first : {false, true}) {
        negotiator alone(0, 1, {.fusion_threshold = 4000, .largest_first = largest_first});
        // Submits tensors of so many bytes, and returns the units.
        const auto units = [&](bool predicted) {
            std::string said;
            while (said.empty()) {
                for (const auto& [name, count] : std::map<std::string, int>{
                         {"a", 300}, {"b", 300}, {"c", 600}, {"d", 700}, {"e", 100}, {"late", 900}})
                    alone.submit(name, tensor(std::uint64_t(count), name == "late" ? -1 : 0));
                alone.decide();
                for (decision d; alone.next_decision(d);)
                    if ((d.kind == decision::what::predict) == predicted)
                        for (const agreed_unit& u : d.units) {
                            for (const agreed_tensor& t : u) said += t.name + " ";
                            said += "| ";
                        }
            }
            return said;
        };
        const char* const expected =
            largest_first ? "d a | c b e | late | " : "a b e | c | d | late | ";
        CHECK(units(false) == expected);
        CHECK(units(true) == expected);
    }
}

TEST_CASE("whatever happens in whatever order, all ranks see the same") {
    std::uint64_t events = 0;
    const auto wanted = std::uint64_t(events_wanted());
    for (unsigned seed = 1; events < wanted; ++seed) {
        std::mt19937 random(seed);
        const int sizes[] = {1, 2, 3, 4, 9, 64, 512};
        const int size = sizes[seed % (seed % 40 == 0 ? 7 : 6)];
        INFO("seed ", seed, ", ", size, " ranks");
        simulation all(size, seed,
                       {.fanout = 1 + int(random() % 9),
                        .fusion_threshold = random() % 4000,
                        .largest_first = random() % 2 == 0,
                        .cache_capacity = random() % 3 == 0 ? random() % 10 : 1024});
        auto list = tensors(1 + int(random() % 12), all.random());
        for (int step = 0; step < 10; ++step) {
            if (random() % 4 == 0) list = tensors(1 + int(random() % 12), all.random());
            all.begin_step(list);
            const bool differs = size > 1 && random() % 5 == 0;
            if (differs)
                all.rank(int(random() % unsigned(size))).to_submit[0].second = tensor(9999);
            all.run();
            REQUIRE(all.all_done());
            all.check_logs();
        }
        events += all.events();
    }
}

TEST_CASE("bytes that no rank writes are refused") {
    std::mt19937 random(1);
    simulation all(3, 1);
    negotiator root(0, 3, {}), below(1, 3, {});
    below.submit("x", tensor(10));
    negotiator::outgoing good;
    REQUIRE(below.next_message(good));
    for (int i = 0; i < 20000; ++i) {
        std::vector<std::byte> bytes = good.bytes;
        if (i % 2 == 0) {
            bytes.resize(random() % 40);
            for (std::byte& b : bytes) b = std::byte(random());
        } else {
            for (unsigned n = 1 + random() % 4; n > 0; --n)
                bytes[random() % bytes.size()] = std::byte(random());
            bytes.resize(random() % (bytes.size() + 1));
        }
        negotiator victim(i % 4 < 2 ? 0 : 1, 3, {});
        try {
            victim.receive(i % 4 < 2 ? 1 : 0, bytes);
            victim.decide();
        } catch (const hvd::usage_error&) {
        }
    }
    root.receive(1, good.bytes);
    CHECK_THROWS_AS(root.receive(2, std::span(good.bytes).first(good.bytes.size() - 1)),
                    hvd::usage_error);
}

TEST_CASE(
    "a prediction that was left early comes later the next time, and one that held does not") {
    constexpr int needed = 2;
    step_learner learner(needed);
    // The steps of two tensors that are seen until one is predicted.
    const auto steps = [&] {
        for (int step = 1;; ++step) {
            REQUIRE(step < 5000);
            CHECK_FALSE(learner.note({1, 3}));
            if (learner.note({2, 3})) return step;
        }
    };
    const int first = steps();
    int waited = needed;
    for (const std::uint64_t held : {0, 1, 7}) {
        learner.left_prediction(held);
        waited *= 2;
        CHECK(steps() == first - needed + waited);
    }
    learner.left_prediction(8);
    CHECK(steps() == first);
    for (int i = 0; i < 20; ++i) learner.left_prediction(0);
    CHECK(steps() == first - needed + 1024);  // the bound
    learner.begin_anew();
    CHECK(steps() == first);
}

TEST_CASE("numbers of tensors are given back when there are more than the cache holds") {
    for (const std::size_t capacity : {std::size_t(1), std::size_t(4), std::size_t(1024)}) {
        CAPTURE(capacity);
        negotiator alone(0, 1, {.cache_capacity = capacity, .predict = false});
        std::size_t defined = 0;
        for (int step = 0; step < 20; ++step) {
            const std::uint64_t misses = alone.counted().cache_misses;
            alone.submit("t" + std::to_string(step), tensor(5));
            CHECK(alone.counted().cache_misses == misses + 1);
            alone.decide();
            ++defined;
            bool is_reset = false;
            for (decision d; alone.next_decision(d);)
                is_reset = is_reset || d.kind == decision::what::reset;
            CHECK(is_reset == (defined > capacity));
            if (is_reset) defined = 0;
        }
    }
}

TEST_CASE("words of two generations are two messages, also when nobody has sent the first") {
    // A chain of three. The root's cache holds one tensor, so that two make a reset.
    const negotiation_options options{.fanout = 1, .cache_capacity = 1, .predict = false};
    std::vector<negotiator> ranks;
    for (int r = 0; r < 3; ++r) ranks.emplace_back(r, 3, options);
    std::vector<std::string> log[3];
    std::vector<std::pair<std::string, signature>> pending[3];
    const auto submit = [&](int r, const char* name) {
        pending[r].emplace_back(name, tensor(5));
        ranks[std::size_t(r)].submit(name, tensor(5));
    };
    const auto take_decisions = [&](int r) {
        for (decision d; ranks[std::size_t(r)].next_decision(d);) {
            if (d.kind == decision::what::reset) {
                log[r].push_back("reset");
                for (const auto& [name, mine] : pending[r])
                    ranks[std::size_t(r)].submit(name, mine);
            }
            if (d.kind == decision::what::run)
                for (const agreed_tensor& t : d.units.front()) {
                    log[r].push_back(t.name);
                    std::erase_if(pending[r], [&](const auto& p) { return p.first == t.name; });
                }
        }
    };
    // A neighbour takes all that a rank has to say, and says nothing itself yet.
    const auto send = [&](int r) {
        for (negotiator::outgoing out; ranks[std::size_t(r)].next_message(out);) {
            ranks[std::size_t(out.to)].receive(r, out.bytes);
            take_decisions(out.to);
        }
    };
    for (int r = 0; r < 3; ++r) submit(r, "a");
    for (int r = 0; r < 3; ++r) submit(r, "b");
    for (const int r : {2, 1}) send(r);
    ranks[0].decide();
    take_decisions(0);
    for (int r = 0; r < 2; ++r) submit(r, "c");
    submit(2, "c");  // a word of the old generation, which nobody has sent when the reset comes
    for (const int r : {0, 1, 2, 1}) send(r);
    ranks[0].decide();
    take_decisions(0);
    for (const int r : {0, 1}) send(r);
    for (int r = 0; r < 3; ++r) CHECK(log[r] == std::vector<std::string>{"a", "b", "reset", "c"});
}

TEST_CASE("ranges of ranks and lengths that no rank writes are refused") {
    const auto reader_of = [](const std::vector<std::uint8_t>& numbers) {
        message_writer written(7);
        for (const std::uint8_t n : numbers) written.add(n);
        return written.take();
    };
    const auto ranks = [&](const std::vector<std::uint8_t>& numbers) {
        const std::vector<std::byte> bytes = reader_of(numbers);
        return message_reader(bytes).ranks(8);
    };
    CHECK(ranks({1, 3, 5}).list() == std::vector{3, 4, 5});
    CHECK(ranks({1, 5, 5}).list() == std::vector{5});
    CHECK(ranks({2, 0, 0, 7, 7}).list() == std::vector{0, 7});
    CHECK_THROWS_AS(ranks({1, 5, 3}), hvd::usage_error);
    CHECK_THROWS_AS(ranks({1, 5, 8}), hvd::usage_error);
    CHECK_THROWS_AS(ranks({3, 0, 0}), hvd::usage_error);
    CHECK_THROWS_AS(ranks({1, 5}), hvd::usage_error);
    for (const std::uint8_t length : {0, 2, 3, 127}) {
        const std::vector<std::byte> bytes = reader_of({length, 'h', 'i'});
        message_reader reader(bytes);
        if (length <= 2) CHECK(reader.text() == std::string_view("hi", length));
        else CHECK_THROWS_AS(reader.text(), hvd::usage_error);
    }
}

TEST_CASE("a number that has more than 64 bits, and a root that is no rank, are refused") {
    const auto number = [](unsigned last) {
        std::vector<std::byte> bytes = message_writer(7).take();
        for (int i = 0; i < 9; ++i) bytes.push_back(std::byte(0xff));
        bytes.push_back(std::byte(last));
        return message_reader(bytes).number();
    };
    CHECK(number(1) == UINT64_MAX);
    CHECK_THROWS_AS(number(2), hvd::usage_error);
    CHECK_THROWS_AS(number(0x81), hvd::usage_error);
    constexpr int size = 4;
    for (int root = -1; root <= size; ++root) {
        CAPTURE(root);
        signature written = tensor(5);
        written.call.root = root;
        message_writer out(7);
        const std::vector<std::byte> bytes = out.add(written).take();
        message_reader in(bytes);
        if (root < size) CHECK(in.signature(size).call.root == root);
        else CHECK_THROWS_AS(in.signature(size), hvd::usage_error);
    }
}

TEST_CASE("a tensor whose priority has risen is announced anew, so that all ranks know it") {
    tensor_numbers known;
    const auto with_priority = [](int priority) {
        signature s = tensor(5);
        s.priority = priority;
        return s;
    };
    known.define(3, "x", with_priority(2));
    CHECK(known.number_of("x", with_priority(2)) == 3);
    CHECK(known.number_of("x", with_priority(1)) == 3);
    CHECK(known.number_of("x", with_priority(3)) == 0);
}

TEST_CASE("the highest priority that a rank gives a tensor counts, whichever rank it is") {
    for (const int urgent : {0, 1, 2}) {
        CAPTURE(urgent);
        std::vector<negotiator> ranks;
        for (int r = 0; r < 3; ++r) ranks.emplace_back(r, 3, negotiation_options{.fanout = 1});
        for (int r = 0; r < 3; ++r)
            for (const char* name : {"a", "b"})
                ranks[std::size_t(r)].submit(name, tensor(5, *name == 'b' && r == urgent ? 7 : 0));
        for (const int r : {2, 1})
            for (negotiator::outgoing out; ranks[std::size_t(r)].next_message(out);)
                ranks[std::size_t(out.to)].receive(r, out.bytes);
        ranks[0].decide();
        std::string order;
        for (decision d; ranks[0].next_decision(d);)
            if (d.kind == decision::what::run) order += d.units.front().front().name;
        CHECK(order == "ba");
    }
}

TEST_CASE("a rank that has joined before a reset has joined only when it says so again") {
    const negotiation_options options{.cache_capacity = 1, .predict = false};
    negotiator root(0, 2, options), below(1, 2, options);
    const auto say_to_root = [&] {
        for (negotiator::outgoing out; below.next_message(out);) root.receive(1, out.bytes);
    };
    const auto runs = [&] {
        root.decide();
        bool any = false;
        for (decision d; root.next_decision(d);) any = any || d.kind == decision::what::run;
        return any;
    };
    for (const char* name : {"a", "b"})
        for (negotiator* rank : {&root, &below}) rank->submit(name, tensor(5));
    say_to_root();
    below.join();
    CHECK(runs());  // and is reset, for there are two tensors
    root.submit("c", tensor(5));
    say_to_root();
    CHECK_FALSE(runs());
    for (negotiator::outgoing out; root.next_message(out);) below.receive(0, out.bytes);
    for (decision d; below.next_decision(d);) {
    }
    below.join();
    say_to_root();
    CHECK(runs());
}

TEST_CASE("a predicted tensor that no longer fuses, or fuses now, is another one") {
    for (const bool fuses : {true, false}) {
        signature agreed = tensor(5);
        agreed.fuses = fuses;
        prediction step({{{"x", agreed, 1}}});
        signature mine = agreed;
        mine.fuses = !fuses;
        CHECK_FALSE(step.arrive("x", mine));
        CHECK_FALSE(step.ready());
        CHECK_FALSE(step.arrive("y", agreed));
        CHECK(step.arrive("x", agreed));
        CHECK(step.ready());
    }
}

}  // namespace negotiation_tests
