// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <hvd/threads.hpp>

namespace waiting_tests {

using namespace hvd::detail;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> lines;
void collect(std::string_view line) { lines.emplace_back(line); }

struct collects_lines {
    hvd::message_sink before = hvd::set_message_sink(&collect);
    ~collects_lines() {
        hvd::set_message_sink(before);
        lines.clear();
    }
};

// A transport that waits for the given ranks.
struct waiting_transport : transport {
    std::vector<int> ranks;

    waiting_transport() : transport(0, 4) {}
    void exchange_headers(const call_header&) override {}
    void exchange_header(const call_header&, int) override {}
    void alltoallv(const block*, const block*) override {}
    void reduce_scatter(const block*, const reduction&) override {}
    bool ready() override { return false; }
    bool advance() override { return false; }
    std::vector<int> missing() override { return ranks; }
    void fail(verdict) override {}
};

std::int64_t seconds_of(const char* variable, hvd::communicator_options options = {}) {
    if (variable != nullptr) setenv("HVD_WAITING_NOTICE", variable, 1);
    else unsetenv("HVD_WAITING_NOTICE");
    const std::int64_t time = waiting_notice_of(options);
    unsetenv("HVD_WAITING_NOTICE");
    return time / tuning::second;
}

}  // namespace

TEST_CASE("a wait is told once in a call, when a round has taken so long") {
    const collects_lines guard;
    waiting_transport t;
    t.ranks = {1, 3};
    operation op;
    op.entry.kind = collective::barrier;
    long_wait wait({.waiting_notice = 5s});

    wait.said = false;
    wait.begin_round();
    wait.look(t, op, 1 * tuning::second);
    wait.look(t, op, 5 * tuning::second);
    CHECK(lines.empty());
    wait.begin_round();  // it goes on
    wait.look(t, op, 6 * tuning::second);
    wait.look(t, op, 10 * tuning::second);
    CHECK(lines.empty());
    t.ranks.clear();  // they come while it looks
    wait.look(t, op, 11 * tuning::second);
    CHECK(lines.empty());
    t.ranks = {1, 3};
    wait.look(t, op, 12 * tuning::second);
    CHECK(lines ==
          std::vector<std::string>{"hvd: rank 0 has waited 5 s in barrier for ranks 1, 3"});
    wait.begin_round();
    wait.look(t, op, 13 * tuning::second);
    wait.look(t, op, 30 * tuning::second);
    CHECK(lines.size() == 1);
    wait.said = false;
    wait.begin_round();
    wait.look(t, op, 31 * tuning::second);
    wait.look(t, op, 36 * tuning::second);
    CHECK(lines.size() == 2);
}

TEST_CASE("a wait is never told where the option is 0") {
    const collects_lines guard;
    waiting_transport t;
    t.ranks = {1};
    long_wait wait({.waiting_notice = hvd::forever});
    wait.said = false;
    wait.begin_round();
    wait.look(t, {}, 1);
    wait.look(t, {}, 1000 * tuning::second);
    CHECK(lines.empty());
}

TEST_CASE("the time until a wait is told comes from the option, the environment, or is 10 s") {
    const collects_lines guard;
    CHECK(seconds_of(nullptr) == 10);
    CHECK(seconds_of("") == 10);
    CHECK(seconds_of("3") == 3);
    CHECK(seconds_of("forever") == 0);
    CHECK(seconds_of("3000ms") == 3);
    CHECK(seconds_of("3", {.waiting_notice = 7s}) == 7);
    CHECK(seconds_of("3", {.waiting_notice = hvd::forever}) == 0);
    CHECK(lines.empty());
}

TEST_CASE("a wrong HVD_WAITING_NOTICE is told once in a process, and counts as none") {
    const collects_lines guard;
    CHECK(seconds_of("1.5") == 10);
    CHECK(seconds_of("soon") == 10);
    CHECK(seconds_of("-1") == 10);
    CHECK(seconds_of("0") == 10);
    CHECK(lines == std::vector<std::string>{"hvd: HVD_WAITING_NOTICE is '1.5'; it takes a "
                                            "time, as 30, 30s or 500ms, or forever. hvd goes on "
                                            "with 10 s"});
}

TEST_CASE("a null sink is standard error") {
    hvd::message_sink before = hvd::set_message_sink(&collect);
    const bool was_collect = hvd::set_message_sink(nullptr) == &collect;
    const bool was_standard_error = hvd::set_message_sink(before) == &write_to_stderr;
    CHECK(was_collect);
    CHECK(was_standard_error);
}

}  // namespace waiting_tests
