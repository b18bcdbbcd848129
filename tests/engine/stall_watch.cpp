// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <hvd/engine/negotiation/stall_watch.hpp>
#include <hvd/engine/pending_table.hpp>

namespace stall_watch_tests {

// The watch over tensors that some ranks have not submitted, played by hand.

using namespace hvd::detail;
using verdict = stall_watch::verdict;

namespace {

constexpr std::int64_t s = tuning::second;
const stall_watch::tensor none;

stall_watch::finding look(stall_watch& w, const stall_watch::tensor& oldest, time_point time,
                          bool may_ask = true) {
    return w.look(oldest, none, time, may_ask);
}

}  // namespace

TEST_CASE("a tensor is asked for once, told once, and asked for again before the end") {
    stall_watch w(10 * s, 30 * s);
    const stall_watch::tensor x{"x", 100 * s};
    CHECK(look(w, none, 100 * s).again == never);
    auto f = look(w, x, 101 * s);
    CHECK(f.what == verdict::rest);
    CHECK(f.again == 110 * s);
    CHECK(look(w, x, 110 * s).what == verdict::ask);
    CHECK(look(w, x, 110 * s + 1).again == 111 * s);  // rank 0 has a second for its answer
    CHECK(!w.note_answer("another", "rank 1", {}));
    CHECK(w.note_answer("x", "rank 1 has not submitted it", {}));
    CHECK(!w.note_answer("x", "rank 2 has not submitted it",
                         {}));  // the answer to another rank's question
    CHECK(w.answer() == "rank 1 has not submitted it");
    CHECK(w.since() == 100 * s);
    f = look(w, x, 120 * s);
    CHECK(f.what == verdict::rest);
    CHECK(f.again == 130 * s);
    CHECK(look(w, x, 130 * s).what == verdict::ask);
    CHECK(look(w, x, 130 * s).what == verdict::rest);
    CHECK(!w.note_answer("x", "rank 2 has not submitted it", rank_set(2, 2)));  // it is no warning
    CHECK(look(w, x, 130 * s).what == verdict::give_up);
    CHECK(w.missing().list() == std::vector{2});
    CHECK(w.answer() == "rank 2 has not submitted it");
}

TEST_CASE("a limit that comes before the warning holds") {
    stall_watch w(60 * s, 2 * s);
    const stall_watch::tensor x{"x", 0};
    CHECK(look(w, x, 1 * s).again == 2 * s);
    CHECK(look(w, x, 2 * s).what == verdict::ask);
    CHECK(!w.note_answer("x", "rank 1", {}));
    CHECK(look(w, x, 2 * s).what == verdict::give_up);
}

TEST_CASE("a rank 0 that does not answer is named after a second") {
    SUBCASE("in a warning") {
        stall_watch w(10 * s, 0);
        CHECK(look(w, {"x", 0}, 10 * s).what == verdict::ask);
        CHECK(look(w, {"x", 0}, 11 * s).what == verdict::tell);
        CHECK(w.answer() == "rank 0 does not answer");
        CHECK(look(w, {"x", 0}, 12 * s).what == verdict::rest);  // it is told once
    }
    SUBCASE("at the end") {
        stall_watch w(0, 10 * s);
        CHECK(look(w, {"x", 0}, 10 * s).what == verdict::ask);
        CHECK(look(w, {"x", 0}, 11 * s).what == verdict::give_up);
        CHECK(w.answer() == "rank 0 does not answer");
        CHECK(w.missing().list() == std::vector{0});
    }
}

TEST_CASE("a name that stalls again later is asked for again") {
    stall_watch w(10 * s, 0);
    CHECK(look(w, {"x", 0}, 10 * s).what == verdict::ask);
    CHECK(w.note_answer("x", "rank 1", {}));
    CHECK(look(w, {"x", 0}, 20 * s).again == never);
    CHECK(look(w, {"x", 21 * s}, 30 * s).again == 31 * s);
    CHECK(look(w, {"x", 21 * s}, 31 * s).what == verdict::ask);
}

TEST_CASE("nothing is asked during a prediction") {
    stall_watch w(1 * s, 2 * s);
    const auto f = look(w, {"x", 0}, 5 * s, false);
    CHECK(f.what == verdict::rest);
    CHECK(f.again <= 5 * s);
    CHECK(look(w, {"x", 0}, 5 * s, true).what == verdict::ask);
}

TEST_CASE("the timeout of a tensor comes before the wait of an older one") {
    stall_watch w(1 * s, 0);
    const stall_watch::tensor old{"old", 0}, urgent{"urgent", 5 * s};
    CHECK(w.look(old, urgent, 4 * s, true).what == verdict::ask);
    CHECK(w.note_answer("old", "rank 1", {}));
    CHECK(w.look(old, urgent, 4 * s, true).again == 5 * s);
    const auto f = w.look(old, urgent, 5 * s, true);
    CHECK(f.what == verdict::ask);
    CHECK(f.name == "urgent");
    CHECK(w.look(old, urgent, 5 * s, true).what == verdict::rest);  // the older one waits meanwhile
    CHECK(!w.note_answer("urgent", "rank 3", {}));
    CHECK(w.look(old, urgent, 5 * s, true).what == verdict::give_up);
}

TEST_CASE("a tensor that runs is neither stalled nor late, unless its unit is given back") {
    pending_table all{record_head{}};
    const auto add = [&](const char* name, time_point since, time_point limit) {
        pending_tensor tensor;
        tensor.since = since;
        tensor.limit = limit;
        REQUIRE(all.add(name, std::move(tensor)) != nullptr);
    };
    CHECK(all.oldest().at == none.at);
    add("old", 10, 50);
    add("young", 20, 100);
    CHECK(all.oldest().name == "old");
    CHECK(all.most_urgent().name == "old");
    agreed_unit unit(1);
    unit[0].name = "old";
    std::vector<queued*> calls;
    CHECK(all.claim(unit, calls) == 10);
    CHECK(all.oldest().name == "young");
    CHECK(all.oldest().at == 20);
    CHECK(all.most_urgent().name == "young");
    all.unclaim(unit);
    CHECK(all.oldest().name == "old");
    CHECK(all.most_urgent().at == 50);
}

TEST_CASE("tensors that are submitted once more come in the order in which they were submitted") {
    pending_table all{record_head{}};
    std::vector<std::string> submitted, again;
    for (std::uint64_t i = 1; i <= 20; ++i) {  // a table of names has no order
        pending_tensor tensor;
        tensor.number = i;
        submitted.push_back("t" + std::to_string(i * 7919 % 23));
        REQUIRE(all.add(submitted.back(), std::move(tensor)) != nullptr);
    }
    for (const auto& [name, mine] : all.in_order()) again.push_back(name);
    CHECK(again == submitted);
}

TEST_CASE("of many tensors a few are named, and the others counted, but for one that asks") {
    pending_table all{record_head{}};
    const queued* asks = nullptr;
    for (int n = 1; n <= 9; ++n) {
        CAPTURE(n);
        pending_tensor tensor;
        const auto call = shared<queued>::make();
        if (n == 1) asks = call.get();
        tensor.call = call;
        REQUIRE(all.add("t" + std::to_string(n), std::move(tensor)) != nullptr);
        for (const bool leaves_one_out : {false, true}) {
            const message names = all.names(leaves_one_out ? asks : nullptr);
            const std::string text(std::string_view{names});
            CAPTURE(text);
            const int expected = leaves_one_out ? n - 1 : n;
            CHECK(std::count(text.begin(), text.end(), '\'') == 2 * std::min(expected, 5));
            CHECK((text.find("'t1'") == text.npos || !leaves_one_out));
            const std::string more = " and " + std::to_string(expected - 5) + " more";
            CHECK(text.ends_with(more) == (expected > 5));
        }
    }
}

TEST_CASE(
    "of several timeouts the first one ends a unit, and of those that wait the first is urgent") {
    pending_table table{record_head{}};
    const auto add = [&](const char* name, time_point limit) {
        pending_tensor t;
        t.limit = limit;
        REQUIRE(table.add(name, std::move(t)) != nullptr);
    };
    CHECK(table.first_limit() == never);
    add("none", never);
    CHECK(table.first_limit() == never);
    add("first", 1000 * s);
    for (int i = 1; i < 20; ++i) {  // a table of names has no order
        add(std::to_string(i).c_str(), (1000 + i) * s);
        CHECK(table.first_limit() == 1000 * s);
        CHECK(table.most_urgent().name == "first");
    }
    (void)table.take("first");
    CHECK(table.first_limit() == 1001 * s);
    CHECK(table.most_urgent().name == "1");
}

}  // namespace stall_watch_tests
