// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include <poll.h>
#include <unistd.h>

#include "connection.hpp"
#include "discovery.hpp"
#include "epochs.hpp"
#include "progress.hpp"
#include "rank.hpp"
#include "slots.hpp"
#include "temporary_directory.hpp"
#include "times.hpp"

// The decisions of hvdrun's jobs: times and random numbers come from the tests.

using namespace hvdrun;
using namespace std::string_literals;

namespace {

using numbers = std::vector<int>;

// As in hvdrun: a process may end before it has read all that it is sent.
[[maybe_unused]] const bool is_ready = std::signal(SIGPIPE, SIG_IGN) != SIG_ERR;

std::function<double()> always(double number) {
    return [number] { return number; };
}

slot_rules elastic(int least, int most) {
    slot_rules rules;
    rules.least = least;
    rules.most = most;
    rules.is_elastic = true;
    return rules;
}

numbers started(slots& all, double now) {
    numbers result;
    for (const placement& one : all.take_starts(now)) result.push_back(one.rank);
    return result;
}

// Ends a process at its start.
void fail(slots& all, int slot, double now) {
    all.end_process(slot, process_end::by_failure, 0, now);
}

job_event epoch(int number, std::vector<job_event::member> members, double at,
                std::int64_t step = 0) {
    job_event result{.what = job_event::kind::epoch_begins, .at = at};
    result.epoch = number;
    result.step = step;
    result.members = std::move(members);
    return result;
}

}  // namespace

TEST_CASE("a cooldown doubles with each failure in a row, has jitter, and ends at its bound") {
    cooldowns exact({2, 15}, always(0));
    double expected[] = {2, 4, 8, 15};
    for (const double length : expected) {
        exact.note_failure(7, "a", 0, 100);
        CHECK(exact.free_at(7, "a") == 100 + length);
    }
    cooldowns jittered({2, 15}, always(0.5));
    jittered.note_failure(7, "a", 0, 100);
    CHECK(jittered.free_at(7, "a") == 103);
    CHECK(jittered.free_at(8, "a") < 0);
    CHECK(jittered.free_at(7, "b") == 103);
}

TEST_CASE("a process that has lived long begins a new row of failures") {
    cooldowns all({1, 10}, always(0));
    for (int i = 0; i < 20; ++i) {
        all.note_failure(0, "a", 10, 100 * i);
        CHECK(all.free_at(0, "a") == 100 * i + 1);
    }
}

TEST_CASE("a slot is given up after five failures in a row, until its host shows it anew") {
    cooldowns all({1, 10}, always(0));
    for (int i = 0; i < cooldowns::most_in_a_row; ++i) {
        CHECK(all.free_at(0, "a") < never);
        all.note_failure(0, "a", 1, i);
    }
    CHECK(all.free_at(0, "a") == never);
    CHECK(all.free_at(1, "a") < never);
    all.forget(0);
    CHECK(all.free_at(0, "a") < never);
}

TEST_CASE("a host rests when three of its slots have failed in a row, and not before") {
    cooldowns all({1, 30}, always(0));
    for (int i = 0; i < 4; ++i) all.note_failure(0, "a", 0, 0);
    all.note_failure(1, "a", 0, 0);
    CHECK(all.free_at(2, "a") < 0);
    all.note_failure(2, "a", 0, 5);
    for (int slot = 1; slot < 4; ++slot) CHECK(all.free_at(slot, "a") == 35);
    CHECK(all.free_at(3, "b") < 0);
    SUBCASE("and once more when as many have failed again") {
        for (int slot = 0; slot < 2; ++slot) all.note_failure(slot, "a", 0, 100);
        CHECK(all.free_at(3, "a") == 35);
        all.note_failure(2, "a", 0, 110);
        CHECK(all.free_at(3, "a") == 140);
    }
    SUBCASE("a process that has lived long ends the row") {
        all.note_failure(5, "b", 0, 0);
        all.note_failure(6, "b", 0, 0);
        all.note_failure(7, "b", 30, 0);
        CHECK(all.free_at(8, "b") < 0);
    }
}

TEST_CASE("a static job starts its slots once, and one failure is the end") {
    slots all({.least = 3, .most = 3}, always(0));
    all.set_hosts({{"a", 2}, {"b", 5}});
    const std::vector<placement> places = all.take_starts(0);
    REQUIRE(places.size() == 3);
    CHECK(places[1].local_rank == 1);
    CHECK(places[1].local_size == 2);
    CHECK(places[2].host == "b");
    CHECK(places[2].local_size == 1);
    all.end_process(0, process_end::well, 5, 5);
    CHECK(!all.obstacle(5));
    CHECK(started(all, 1e6).empty());
    fail(all, 2, 6);
    REQUIRE(all.obstacle(6));
    CHECK(all.obstacle(6)->empty());
}

TEST_CASE("a process that fails is replaced in its slot after the cooldown, or in a free one") {
    slots all(elastic(1, 2), always(0));
    SUBCASE("its own") {
        all.set_hosts({{"a", 2}});
        CHECK(started(all, 0) == numbers{0, 1});
        fail(all, 1, 10);
        CHECK(!all.obstacle(10));
        CHECK(started(all, 10.9).empty());
        CHECK(all.awaits_time(10.9));
        CHECK(started(all, 11) == numbers{1});
        CHECK(!all.awaits_time(11));
    }
    SUBCASE("a free one") {
        all.set_hosts({{"a", 2}, {"b", 1}});
        CHECK(started(all, 0) == numbers{0, 1});
        fail(all, 0, 10);
        CHECK(started(all, 10) == numbers{2});
        CHECK(started(all, 100).empty());
    }
}

TEST_CASE("a job grows with its slots up to the bound, and loses those that vanish") {
    slots all(elastic(1, 4), always(0));
    all.set_hosts({{"a", 2}});
    CHECK(started(all, 0) == numbers{0, 1});
    all.set_hosts({{"a", 2}, {"b", 7}});
    CHECK(started(all, 1) == numbers{2, 3});
    all.set_hosts({{"b", 7}});
    CHECK(!all.is_there(0));
    CHECK(all.is_there(2));
    CHECK(started(all, 2).empty());  // its processes have not ended yet
    all.end_process(0, process_end::by_hvdrun, 1, 3);
    CHECK(started(all, 3) == numbers{4});
    all.set_hosts({{"a", 2}, {"b", 7}});
    CHECK(all.is_there(0));
}

TEST_CASE("a process that ends well ends an elastic job: nothing is started any more") {
    slots all(elastic(2, 2), always(0));
    all.set_hosts({{"a", 2}});
    started(all, 0);
    all.end_process(0, process_end::well, 5, 5);
    CHECK(all.living() == 1);
    fail(all, 1, 5);
    CHECK(all.living() == 0);
    CHECK(all.is_closed());
    CHECK(!all.obstacle(5));
    CHECK(started(all, 100).empty());
}

TEST_CASE("a job is finished when as many processes as it needs have ended well") {
    for (int least = 1; least <= 4; ++least) {
        CAPTURE(least);
        slots all(elastic(least, 4), always(0));
        all.set_hosts({{"a", 4}});
        started(all, 0);
        fail(all, 3, 1);
        for (int slot = 0; slot < 3; ++slot) {
            CHECK(bool(all.shortfall()) == (slot < least));
            all.end_process(slot, process_end::well, 5, 5);
        }
        if (least < 4) CHECK(!all.shortfall());
        else CHECK(all.shortfall() == "only 3 of at least 4 ranks (--min-np) ended with 0");
    }
}

TEST_CASE("a job cannot go on without slots, and says why") {
    SUBCASE("all have failed") {
        slots all(elastic(1, 2), always(0));
        all.set_hosts({{"a", 2}});
        started(all, 0);
        fail(all, 0, 1);
        CHECK(!all.obstacle(1));
        fail(all, 1, 1);
        CHECK(all.obstacle(1) == "no process is left");
    }
    SUBCASE("a slot is given up") {
        slots all(elastic(2, 2), always(0));
        all.set_hosts({{"a", 2}});
        started(all, 0);
        for (int i = 0; i < cooldowns::most_in_a_row; ++i) {
            CHECK(!all.obstacle(100 * i));
            if (i > 0) REQUIRE(started(all, 100 * i) == numbers{1});
            fail(all, 1, 100 * i);
        }
        CHECK(all.obstacle(1000) == "only 1 of at least 2 slots (--min-np) can be used");
    }
    SUBCASE("a slot that was given up gets a process again when its host goes and comes back") {
        slot_rules rules = elastic(1, 2);
        rules.has_discovery = true;
        slots all(rules, always(0));
        all.set_hosts({{"a", 1}, {"b", 1}});
        started(all, 0);
        for (int i = 0; i < cooldowns::most_in_a_row; ++i) {
            if (i > 0) REQUIRE(started(all, 100 * i) == numbers{1});
            fail(all, 1, 100 * i);
        }
        CHECK(started(all, 1000).empty());
        all.set_hosts({{"a", 1}, {"b", 1}});  // it has not gone
        CHECK(started(all, 1000).empty());
        all.set_hosts({{"a", 1}});
        CHECK(started(all, 1001).empty());
        all.set_hosts({{"a", 1}, {"b", 1}});
        CHECK(started(all, 1002) == numbers{1});
    }
    SUBCASE("too few are shown for too long") {
        slot_rules rules = elastic(2, 2);
        rules.has_discovery = true;
        rules.patience = 60;
        slots all(rules, always(0));
        all.set_hosts({{"a", 2}});
        started(all, 0);
        all.set_hosts({{"a", 1}});
        all.end_process(1, process_end::by_hvdrun, 1, 10);
        CHECK(!all.obstacle(10));
        CHECK(!all.obstacle(69));
        SUBCASE("they come back") {
            all.set_hosts({{"a", 2}});
            CHECK(!all.obstacle(71));
            CHECK(started(all, 71) == numbers{1});
            CHECK(!all.awaits_time(71));
            SUBCASE("and go again: the time begins anew") {
                all.set_hosts({{"a", 1}});
                all.end_process(1, process_end::by_hvdrun, 1, 80);
                CHECK(!all.obstacle(80));
                CHECK(all.awaits_time(80));
                CHECK(!all.obstacle(139));
                CHECK(all.obstacle(141));
            }
        }
        SUBCASE("they do not") {
            REQUIRE(all.obstacle(71));
            CHECK(all.obstacle(71)->find("--elastic-timeout") != std::string::npos);
        }
    }
}

TEST_CASE("a change of epochs tells who joined, left and was lost, why, and how long it took") {
    epochs all;
    epoch_change change = all.begin(epoch(1, {{0, 10}, {1, 11}, {2, 12}}, 5)).value();
    CHECK(change.joined == numbers{0, 1, 2});
    CHECK(change.why.empty());
    all.note_lost_connection(1, 7);
    all.note_end(1, 7.5, "signal 9", false);
    all.note_end(2, 8, "its slot is gone", true);
    all.note_lost_connection(9, 1);  // no member
    change = all.begin(epoch(2, {{0, 10}, {1, 21}}, 9, 100)).value();
    CHECK(change.members == numbers{0, 1});
    CHECK(change.joined == numbers{1});
    CHECK(change.lost == numbers{1});
    CHECK(change.left == numbers{2});
    CHECK(change.why == "rank 1: signal 9; rank 2: its slot is gone");
    CHECK(change.recovery == 2);
    CHECK(all.step() == 100);
    change = all.begin(epoch(3, {{0, 10}, {1, 21}, {3, 13}}, 20)).value();
    CHECK(change.joined == numbers{3});
    CHECK(change.recovery == 0);
}

TEST_CASE("each loss has its own recovery, which counts from the first rank that was lost in it") {
    epochs all;
    all.begin(epoch(1, {{0, 10}, {1, 11}, {2, 12}, {3, 13}}, 5));
    all.note_end(3, 7, "signal 9", false);
    CHECK(all.begin(epoch(2, {{0, 10}, {1, 11}, {2, 12}}, 9))->recovery == 2);
    all.note_end(2, 21, "signal 9", false);
    all.note_lost_connection(1, 20);
    CHECK(all.begin(epoch(3, {{0, 10}}, 23))->recovery == 3);
}

TEST_CASE("an epoch knows when all who have its state are gone") {
    epochs all;
    CHECK(!all.all_have_ended());
    CHECK(all.takes_part(5));
    all.begin(epoch(1, {{0, 10}, {1, 11}}, 5));
    CHECK(!all.takes_part(5));
    all.note_end(1, 6, "signal 9", false);
    all.note_end(5, 6, "signal 9", false);
    CHECK(!all.all_have_ended());
    all.note_end(0, 7, "signal 9", false);
    CHECK(all.all_have_ended());
    CHECK(all.takes_part(0));
    all.note_lost_connection(0, 7);
    CHECK(!all.takes_part(0));
}

TEST_CASE("an epoch of newcomers alone does not go on with the job") {
    for (int size = 1; size <= 4; ++size) {
        CAPTURE(size);
        epochs all;
        std::vector<job_event::member> members;
        for (int slot = 0; slot < size; ++slot) members.push_back({slot, std::uint64_t(10 + slot)});
        all.begin(epoch(1, members, 5));
        for (int slot = 1; slot < size; ++slot) all.note_end(slot, 6, "signal 9", false);
        CHECK(!all.begin(epoch(2, {{7, 27}}, 8)));
        CHECK(!all.begin(epoch(3, {{7, 27}, {8, 28}}, 9)));
        CHECK(all.number() == 1);
        CHECK(all.missed_since(0) == 8);  // its connection alone has ended
        CHECK(!all.all_have_ended());
        all.note_end(0, 10, "signal 9", false);
        CHECK(all.all_have_ended());
    }
}

TEST_CASE("a slot is missed from the epoch without its process until the process has ended") {
    for (int size = 2; size <= 4; ++size) {
        CAPTURE(size);
        epochs all;
        std::vector<job_event::member> members;
        for (int slot = 0; slot < size; ++slot) members.push_back({slot, std::uint64_t(10 + slot)});
        all.begin(epoch(1, members, 5));
        members.pop_back();
        all.begin(epoch(2, members, 8));
        CHECK(all.missed_since(size - 1) == 8);
        CHECK(all.missed_since(0) == never);
        all.note_end(size - 1, 9, "signal 9", false);
        CHECK(all.missed_since(size - 1) == never);  // the next process has not been missed
    }
}

TEST_CASE("a slot is missed no longer when its process has come back") {
    epochs all;
    all.begin(epoch(1, {{0, 10}, {1, 11}}, 5));
    all.begin(epoch(2, {{0, 10}}, 8));
    CHECK(all.missed_since(1) == 8);
    all.begin(epoch(3, {{0, 10}, {1, 11}}, 9));
    CHECK(all.missed_since(1) == never);
}

TEST_CASE("a rank that was lost and came back takes part in the end of the job, too") {
    epochs all;
    all.begin(epoch(1, {{0, 10}, {1, 11}, {2, 12}}, 5));
    all.note_lost_connection(1, 6);
    CHECK(!all.takes_part(1));
    all.begin(epoch(2, {{0, 10}, {1, 11}}, 7));
    CHECK(all.takes_part(1));
    CHECK(!all.takes_part(2));
}

TEST_CASE("a discovery script that hangs is killed, and asked again") {
    discovery asked("echo a:2; sleep 1000; echo", 1);
    double now = 100;
    for (int run = 0; run < 2; ++run) {
        CAPTURE(run);
        CHECK(!asked.look(now));
        REQUIRE(asked.is_running());
        const pid_t shell = asked.id();
        CHECK(!asked.look(now + 29));
        CHECK(asked.is_running());
        CHECK(asked.look(now + 31));
        CHECK(!asked.is_running());
        CHECK(asked.why() == "it has not ended within 30 s");
        CHECK(asked.hosts().empty());
        CHECK(::kill(shell, 0) != 0);
        now += 31;
    }
}

TEST_CASE("a discovery script is empty since the first answer without hosts after one with some") {
    const hvd_test::temporary_directory folder;
    const std::string runs = (folder / "runs").string();
    discovery asked("echo >> " + runs + "; [ $(wc -l < " + runs + ") = 2 ] && echo a; true", 1);
    const auto run = [&](double now) {
        CHECK_FALSE(asked.look(now));
        while (!asked.look(now)) ::poll(nullptr, 0, 2);
        return asked.empty_for();
    };
    CHECK(run(0) == 0);
    CHECK(run(10) == 0);
    REQUIRE(asked.why().empty());
    CHECK(run(20) == 0);
    CHECK(run(25) == 5);
}

TEST_CASE("a discovery script that fails after an answer without hosts has not printed none") {
    const hvd_test::temporary_directory folder;
    const std::string been = (folder / "been").string();
    discovery asked("[ -e " + been + " ] && exit 4; touch " + been, 1);
    for (const bool is_empty : {true, false}) {
        while (!asked.look(is_empty ? 100 : 200)) ::usleep(1000);
        CHECK(asked.is_empty() == is_empty);
        CHECK(asked.why() == (is_empty ? "it has printed no host" : "it ended with exit code 4"));
    }
}

TEST_CASE("a discovery script that fails in silence has none of the words of an earlier run") {
    const hvd_test::temporary_directory folder;
    const std::string been = (folder / "been").string();
    discovery asked("[ -e " + been + " ] && exit 4; touch " + been + "; echo no hosts >&2; exit 3",
                    1);
    const auto why = [&](double now) {
        while (!asked.look(now)) ::usleep(1000);
        return asked.why();
    };
    CHECK(why(100) == "it ended with exit code 3: no hosts");
    CHECK(why(200) == "it ended with exit code 4");
}

TEST_CASE("a host is this one by its full name, and not by the first label of a name") {
    CHECK(is_own_name("a.x", "a.x"));
    CHECK(is_own_name("A.X.", "a.x"));
    for (const char* other : {"a.y", "a", "a.x.y", "b.x", "", "."})
        CHECK(!is_own_name(other, "a.x"));
    CHECK(!is_own_name("a.x", "a"));
}

TEST_CASE("two names of one host are one host, whose slots add up, and that is said once") {
    std::vector<std::string> said;
    const host_list one = with_one_name_each({{"localhost", 1},
                                              {"no.such.host", 2},
                                              {"127.0.0.1", 3},
                                              {"::1", 1},
                                              {"user@localhost", 1}},
                                             said);
    REQUIRE(one.size() == 3);
    CHECK(one[0].host == "localhost");
    CHECK(one[0].slots == 5);
    CHECK(one[1].slots == 2);
    CHECK(one[2].host == "user@localhost");
    REQUIRE(said.size() == 2);
    CHECK(said[0] == "localhost and 127.0.0.1 are names of one host, whose slots add up");
    const host_list again = with_one_name_each({{"127.0.0.1", 2}}, said);
    CHECK(again[0].host == "localhost");
    CHECK(said.size() == 2);
}

TEST_CASE("lines and their parts have the bytes of the output, and whole characters") {
    const std::string text = "a\r\nb\r10%\r20%\r\n\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 end\r";
    for (std::size_t step = 1; step <= text.size(); ++step) {
        CAPTURE(step);
        line_splitter lines;
        std::string all;
        bool was_end = true;
        const auto take = [&](const line_part& part) {
            CHECK(part.begins == was_end);
            CHECK(whole_characters(part.bytes) == part.bytes.size());
            was_end = part.ends;
            all += part.bytes;
        };
        for (std::size_t at = 0; at < text.size(); at += step) {
            lines.add(std::string_view(text).substr(at, step), take);
            if (step % 2 == 0) lines.show_part(take);
        }
        lines.finish(take);
        CHECK(all == text);
    }
}

TEST_CASE("a line that ends with a carriage return has ended, also where it is shown early") {
    line_splitter lines;
    std::vector<std::string> seen;
    const auto take = [&](const line_part& part) {
        seen.push_back((part.begins ? "" : "+") + std::string(part.bytes) + (part.ends ? "" : "+"));
    };
    for (const char* piece : {"10%\r", "20%\r", "a prompt: ", "yes\n"}) {
        lines.add(piece, take);
        lines.show_part(take);
    }
    CHECK(seen == std::vector<std::string>{"10%\r", "20%\r", "a prompt: +", "+yes\n"});
}

TEST_CASE("the folders of ranks have as many digits as the last one needs") {
    const hvd_test::temporary_directory folder;
    const auto name = [&](int rank, int ranks) {
        return make_rank_folder(folder.path(), rank, ranks).substr(folder.path().size());
    };
    CHECK(name(0, 1) == "/rank.0");
    CHECK(name(9, 10) == "/rank.9");
    CHECK(name(9, 11) == "/rank.09");
    CHECK(name(10, 11) == "/rank.10");
    CHECK(name(10, 101) == "/rank.010");
}

TEST_CASE("what a lost rank's children write stays beside the output of its slot's next rank") {
    const hvd_test::temporary_directory folder;
    const std::string path = (folder / "stdout").string();
    screen shown{false};
    rank_stream lost(1, 1), next(1, 1);
    lost.open_file(path, false, false);
    next.open_file(path, false, true);
    next.add("of the next one\n", shown);
    lost.add("of a child\n", shown);
    std::ifstream file(path);
    CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "of the next one\nof a child\n");
}

namespace {

constexpr double patience = 5;

// In the place of an agent: it tells that its rank has started, repeats what it hears, and does
// nothing.
struct deaf_agent {
    explicit deaf_agent(bool with_input = false) {
        line.open({"sh", "-c", "trap '' TERM; printf '%s\\n' \"$0\"; exec cat >&2", "KEYs 1 4711"},
                  "");
        one.start_there(line, {}, with_input);
        while (!one.has_started()) read();
        while (!heard().ends_with(with_input ? "start 1 in\n" : "start 1\n")) {
        }
    }
    ~deaf_agent() {
        one.finish();
        line.finish(shown);
    }
    void read() {
        await(line.output());
        line.read_output(shown);
    }
    std::string heard() {
        await(line.errors());
        char bytes[256];
        const ssize_t n = ::read(line.errors(), bytes, sizeof bytes);
        return std::string(bytes, n > 0 ? std::size_t(n) : 0);
    }
    static void await(int file) {
        pollfd ready{file, POLLIN, 0};
        REQUIRE(::poll(&ready, 1, 30'000) == 1);
    }

    screen shown{false};
    connection line{"a", 0, "KEY"};
    hvdrun::rank one{{.rank = 0, .host = "a"}};
};

}  // namespace

TEST_CASE("a rank of another host is told to end, then to die, and at last its connection is cut") {
    deaf_agent there;
    hvdrun::rank& one = there.one;
    CHECK(one.number_there() == 4711);
    one.insist(1e9, patience, there.shown);  // nobody has asked it to end
    const double before = seconds();
    one.ask_to_end("its job has ended");
    const double after = seconds();
    CHECK(there.heard() == "TERM 1\n");
    one.ask_to_end("it is asked again, as the end of the job goes on");
    CHECK(one.why_asked() == "its job has ended");
    one.insist(before + patience, patience, there.shown);
    one.terminate();
    CHECK(there.heard() == "TERM 1\n");
    one.insist(after + patience + 0.01, patience, there.shown);
    CHECK(there.heard() == "KILL 1\n");
    one.insist(before + patience + 2, patience, there.shown);
    one.terminate();
    CHECK(there.heard() == "TERM 1\n");  // it is there
    one.insist(after + patience + 2.01, patience, there.shown);
    CHECK(there.heard() == "");
    while (!one.look()) there.line.look(there.shown), ::usleep(1000);
    CHECK(one.how().signal == SIGKILL);
}

TEST_CASE("a rank that does not die leaves the others of its host their connection") {
    deaf_agent there;
    const double long_ago = seconds() - 100;
    there.one.give_up(long_ago);
    CHECK(there.heard() == "KILL 1\n");
    there.one.give_up(long_ago + 1);  // it is looked at again and again
    there.one.insist(long_ago + 1.9, patience, there.shown);
    CHECK(!there.one.look());
    there.one.insist(long_ago + 2.1, patience, there.shown);
    CHECK(there.one.look());
    CHECK(there.one.how().signal == SIGKILL);
    there.line.look(there.shown);
    CHECK(!there.line.has_ended());
}

TEST_CASE("a rank of another host gets more input when it has taken what it got, and not before") {
    deaf_agent there(true);
    for (int i = 0; i < 3; ++i) {
        CAPTURE(i);
        CHECK(there.one.takes_input());
        there.one.give_input("abc");
        CHECK(there.heard() == "in 3\nabc");
        CHECK(!there.one.takes_input());
        there.one.take({.what = frame::kind::took_input, .rank = 1}, there.shown);
    }
    there.one.take({.what = frame::kind::takes_no_input, .rank = 1}, there.shown);
    CHECK(!there.one.takes_input());
}

TEST_CASE("frames are taken apart wherever they are cut, and others are refused") {
    const std::string sent =
        "hello\nKEa\nKEYs 1 77\nKEYo 1\nK\0KEKEY.\nKEYe 2\noops\nKEY.\nKEYa\n"s + "KEYo 1\n" +
        std::string(100'000, 'x') + "KEY.\nKEYx 1 3\nKEYg 1\n";
    for (std::size_t step : {1, 2, 3, 7, 4096, 1'000'000}) {
        frame_reader reader("KEY");
        std::map<std::pair<frame::kind, int>, std::string> bytes;
        std::vector<std::pair<frame::kind, int>> events;
        for (std::size_t at = 0; at < sent.size(); at += step)
            REQUIRE(reader.add(std::string_view(sent).substr(at, step), [&](const frame& told) {
                if (told.bytes.empty()) events.push_back({told.what, told.value});
                else bytes[{told.what, told.rank}] += told.bytes;
            }));
        using enum frame::kind;
        CHECK(bytes[{said_by_host, 0}] == "hello\nKEa\n");
        CHECK(bytes[{output, 1}] == "K\0KE"s + std::string(100'000, 'x'));
        CHECK(bytes[{errors, 2}] == "oops\n");
        CHECK(events == std::vector<std::pair<frame::kind, int>>{
                            {has_started, 77}, {is_alive, 0}, {has_ended, 3}, {is_gone, 0}});
    }
    for (const char* wrong :
         {"KEY\n", "KEYo\n", "KEYx 1\n", "KEYx 1 -3\n", "KEYx 1 2 3\n", "KEYz 1\n",
          "KEYo 99999999999\n", "KEYa \n", "KEYo 1 but a line that is far too long to be one"}) {
        CAPTURE(wrong);
        CHECK(!frame_reader("KEY").add(wrong, [](const frame&) {}));
    }
}

TEST_CASE("a job's samples a second are the sum of what its processes report of the last seconds") {
    for (int size = 1; size <= 4; ++size) {
        CAPTURE(size);
        progress all;
        CHECK(!all.samples_per_second(0));
        // Each has begun with other samples before, and does other ones in each of its steps.
        for (int second = 0; second <= 20; ++second)
            for (int slot = 0; slot < size; ++slot)
                all.note(slot, second + 0.1 * slot, 5 * second, 1000 * slot + second * (slot + 1));
        const double sum = size * (size + 1) / 2;
        CHECK(all.samples_per_second(20.5) == doctest::Approx(sum));
        CHECK(all.step() == 100);
        all.forget(size - 1);
        if (size > 1) CHECK(all.samples_per_second(20.5) == doctest::Approx(sum - size));
        else CHECK(!all.samples_per_second(20.5));
        CHECK(all.step() == 100);
    }
}

TEST_CASE("the rate is that of the last seconds, or of the last step if it took longer") {
    progress all;
    double at = 0;
    std::int64_t samples = 0;
    for (int i = 0; i < 50; ++i) all.note(0, at += 1, i, samples += 100);
    CHECK(all.samples_per_second(at) == doctest::Approx(100));
    for (int i = 0; i < 6; ++i) all.note(0, at += 1, 50 + i, samples += 10);
    CHECK(all.samples_per_second(at) == doctest::Approx(10));
    for (int i = 0; i < 3; ++i) all.note(0, at += 30, 60 + i, samples += 60);
    CHECK(all.samples_per_second(at) == doctest::Approx(2));
    CHECK(all.samples_per_second(at + 29) == doctest::Approx(2));
    CHECK(all.samples_per_second(at + 120) == doctest::Approx(0.5));  // it hangs
}

TEST_CASE("a program that counts no samples has no rate, and steps") {
    progress all;
    for (int i = 0; i < 10; ++i) all.note(0, i, 7 * i, 0);
    CHECK(!all.samples_per_second(9));
    CHECK(all.step() == 63);
    all.note(1, 9, 70, 5);  // another one has begun to count
    CHECK(all.samples_per_second(9) == 0);
}
