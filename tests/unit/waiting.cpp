// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <hvd/threads.hpp>

#include "temporary_directory.hpp"
#include "variables.hpp"

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
    call_record calls{};
    long_wait wait({.waiting_notice = 5s}, calls);

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
    call_record calls{};
    long_wait wait({.waiting_notice = hvd::forever}, calls);
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

TEST_CASE("a record has the last calls with their names, sizes and states") {
    call_record r{};
    call_header h;
    h.kind = collective::allreduce;
    for (int i = 1; i <= 100; ++i) {
        store(h.name, text("g", i));
        h.count = std::uint64_t(i);
        r.begin(h, 4);
        if (i == 99) r.fail();
        else if (i < 100) ++r.moments;
    }
    CHECK(r.is_inside());
    record_line line;
    add_last_calls(line, r, 3);
    CHECK(line.text() ==
          "#98 allreduce 'g98' of 392 bytes; #99 allreduce 'g99' of 396 bytes, which failed; "
          "#100 allreduce 'g100' of 400 bytes, which has not ended");
    call_record none{};
    record_line empty;
    add_last_calls(empty, none, 3);
    CHECK(empty.text() == "none");
}

TEST_CASE("large calls, and one in 64 of all, have a time of entry and one of exit") {
    call_record r{};
    call_header h;
    for (int i = 1; i <= 70; ++i) {
        h.count = i == 50 ? call_record::timed_from : 1;
        r.begin(h, 1);
        ++r.moments;
        if (r.open_stamp != nullptr) std::exchange(r.open_stamp, nullptr)->left = now();
    }
    REQUIRE(r.stamps_written == 3);
    CHECK(r.stamps[0].number == 1);
    CHECK(r.stamps[1].number == 50);
    CHECK(r.stamps[2].number == 65);
    CHECK(r.stamps[1].left >= r.stamps[1].entered);
}

TEST_CASE("HVD_CALL_RECORD has the number of the rank, or it stands before the ending") {
    CHECK(record_file_of("/a.b/calls", 7).text() == "/a.b/calls.7");
    CHECK(record_file_of("/a.b/calls.hvd", 7).text() == "/a.b/calls.7.hvd");
    CHECK(record_file_of("calls-{rank}.hvd", 7).text() == "calls-7.hvd");
    CHECK(record_file_of("", 7).text().empty());
    CHECK(record_file_of(nullptr, 7).text().empty());
}

namespace {

// Rank 1 comes after the deadline of rank 0.
void miss_a_deadline() {
    hvd::thread_group group(2, {.timeout = 50ms});
    auto waiting = group.communicator(0), late = group.communicator(1);
    float x = 1;
    CHECK_THROWS_AS(waiting.allreduce(x, hvd::sum, {.name = "late"}), hvd::timeout_error);
}

std::string content_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("the last calls are told when a deadline passes, or written to a file") {
    const collects_lines guard;
    miss_a_deadline();
    CHECK(lines == std::vector<std::string>{
                       "hvd: rank 0: its last calls are #1 allreduce 'late' of 4 bytes, which has "
                       "not ended"});
    lines.clear();
    const hvd_test::temporary_directory folder;
    const std::string file = (folder / "calls.hvd").string();
    const hvd_test::variables set{{{"HVD_CALL_RECORD", file}}};
    miss_a_deadline();
    CHECK(lines == std::vector<std::string>{"hvd: rank 0: its last calls are in " +
                                            (folder / "calls.0.hvd").string()});
    const std::string content = content_of(folder / "calls.0.hvd");
    CHECK(content.starts_with("hvdcalls"));
    CHECK(content.find("late") != content.npos);
}

TEST_CASE("a signal writes the records where the program asks for it") {
    const hvd_test::temporary_directory folder;
    const hvd_test::variables set{{{"HVD_CALL_RECORD", (folder / "calls.hvd").string()}}};
    auto self = hvd::communicator<hvd::threads>::self();
    self.barrier({.name = "before the signal"});
    hvd::dump_on_signal(SIGUSR2);
    std::raise(SIGUSR2);
    std::signal(SIGUSR2, SIG_DFL);
    CHECK(content_of(folder / "calls.0.hvd").find("before the signal") != std::string::npos);
    CHECK_THROWS_AS(hvd::dump_on_signal(SIGKILL), hvd::usage_error);
}

TEST_CASE("a null sink is standard error") {
    hvd::message_sink before = hvd::set_message_sink(&collect);
    const bool was_collect = hvd::set_message_sink(nullptr) == &collect;
    const bool was_standard_error = hvd::set_message_sink(before) == &write_to_stderr;
    CHECK(was_collect);
    CHECK(was_standard_error);
}

}  // namespace waiting_tests
