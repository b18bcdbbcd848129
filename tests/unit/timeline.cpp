// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The parts of a timeline: texts, clocks, names of files, records that are lost.

#include <sys/wait.h>
#include <unistd.h>

#include <hvd/observe/clock_offset.hpp>
#include <hvd/observe/timeline.hpp>
#include <hvd/observe/trace_recorder.hpp>
#include <hvd/platform/clock.hpp>
#include <hvd/settings.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

namespace timeline_tests {

using namespace hvd::detail;

namespace {

std::string quoted(std::string_view text) {
    std::string out;
    append_json_text(out, text);
    return out;
}

// A clock that is ahead of that of rank 0, and messages that take a random time.
struct simulated_ranks {
    std::int64_t ahead, shortest, longest;
    std::mt19937 random{1};

    std::int64_t delay() {
        return std::uniform_int_distribution<std::int64_t>(shortest, longest)(random);
    }
    clock_offset measure(int rounds) {
        clock_offset offset;
        std::int64_t time = 1'000'000'000;  // of rank 0's clock
        for (int i = 0; i < rounds; ++i) {
            const std::int64_t there = time + delay(), back = there + delay();
            offset.arrived_from_root(time, there + ahead);
            offset.arrived_at_root(there + ahead, back);
            time = back;
        }
        return offset;
    }
};

// The events that tracks make of records, without a file.
struct collected {
    std::vector<std::string>* lines;
    bool operator()(const std::string& line, bool = false) const {
        lines->push_back(line);
        return true;
    }
};

taken_record record(trace_kind kind, std::int64_t time, std::string_view name,
                    std::initializer_list<std::int64_t> times = {}) {
    taken_record r{};
    r.kind = kind;
    r.time = time;
    r.name = name;
    r.collective = "allreduce";
    r.times = std::uint8_t(times.size());
    std::copy(times.begin(), times.end(), r.at);
    return r;
}

std::size_t count(const std::vector<std::string>& lines, std::string_view what) {
    std::size_t n = 0;
    for (const std::string& l : lines) n += l.find(what) != l.npos ? 1 : 0;
    return n;
}

}  // namespace

TEST_CASE("a JSON text has no character that JSON does not allow") {
    CHECK(quoted("conv1") == "\"conv1\"");
    CHECK(quoted("a\"b\\c") == "\"a\\\"b\\\\c\"");
    CHECK(quoted(std::string_view("\n\t\x01\0", 4)) == "\"\\u000a\\u0009\\u0001\\u0000\"");
    CHECK(quoted("\x1f\x7f") == "\"\\u001f\x7f\"");
    CHECK(quoted("größe € 𝛼") == "\"größe € 𝛼\"");
    for (const char* bad : {"\xff", "\x80", "\xc0\x80", "\xc3", "\xe2\x82", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe0\x80\x80"})
        CHECK(quoted(bad).find("\"\xef\xbf\xbd") == 0);
    CHECK(quoted("a\xc3") == "\"a\xef\xbf\xbd\"");
    CHECK(quoted("\xc3(") == "\"\xef\xbf\xbd(\"");
}

TEST_CASE("the offset of a clock is known up to its error, which shrinks with more messages") {
    for (const std::int64_t ahead :
         {std::int64_t(0), std::int64_t(123'456'789), std::int64_t(-5'000'000'000'000)}) {
        simulated_ranks ranks{ahead, 5'000, 200'000};
        const clock_offset few = ranks.measure(1), many = ranks.measure(20);
        CHECK(std::abs(few.value() - ahead) <= few.error());
        CHECK(std::abs(many.value() - ahead) <= many.error());
        CHECK(many.error() < few.error());
        CHECK(many.error() < 60'000);
    }
}

TEST_CASE("the offset of a clock is the middle of its bounds, whichever message gives them") {
    clock_offset offset;
    offset.arrived_from_root(1000, 1120);  // 100 ahead, and 20 on the way
    offset.arrived_at_root(1200, 1104);    // 4 on the way back
    CHECK(offset.value() == 108);
    CHECK(offset.error() == 12);
    offset.arrived_from_root(2000, 2200);  // slower ones tell nothing
    offset.arrived_at_root(2300, 2250);
    CHECK(offset.value() == 108);
    offset.arrived_from_root(3000, 3104);
    CHECK(offset.value() == 100);
    CHECK(offset.error() == 4);
}

TEST_CASE("a clock of ticks follows the clock of the system, and never goes back") {
    std::mt19937 random(3);
    const auto draw = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    tick_clock clock;
    double system = 5e9, rate = 0.4;  // nanoseconds; of a tick
    std::uint64_t tick = 77'000'000'000;
    std::int64_t last = 0;
    std::uint64_t corrected = 0;
    int corrections = 0;
    for (int i = 0; i < 200'000; ++i) {
        const bool pauses = draw(0, 999) == 0;
        const auto ticks = draw(1, pauses ? 1'000'000'000 : 100'000);
        tick += std::uint64_t(ticks);
        system += double(ticks) * rate;
        if (i % 1000 == 0) rate = 0.4 * (1 + double(draw(-500, 500)) / 1e6);  // as NTP adjusts it
        std::int64_t time = clock.at(tick);
        if (time == 0) {
            ++corrections;
            last = std::max(last, clock.at(corrected + tick_clock::window - 1));
            corrected = tick;
            time = clock.correct(tick, std::int64_t(system) + draw(-200, 200));
        }
        REQUIRE(time >= last);
        REQUIRE(std::abs(double(time) - system) < 2'000);
        last = time;
    }
    CHECK(corrections < 50'000);
}

TEST_CASE("a clock of ticks that come to a halt or begin anew is corrected") {
    constexpr std::uint64_t window = tick_clock::window;
    for (const std::uint64_t again : {1 * window, 5 * window}) {
        tick_clock clock;
        for (std::uint64_t i = 1; i < 5; ++i) clock.correct(i * window, std::int64_t(i * window));
        CHECK(clock.at(4 * window + 1000) == std::int64_t(4 * window + 1000));
        CHECK(clock.at(5 * window) == 0);
        std::int64_t last = 0;
        for (std::uint64_t i = 0; i < 9; ++i) {  // an hour is gone
            const std::int64_t time = 3'600'000'000'000 + std::int64_t(i * window);
            const std::int64_t corrected = clock.correct(again + i * window, time);
            CHECK(corrected >= last);
            CHECK(clock.at(again + i * window + window - 1) >= corrected);
            last = corrected;
        }
        const std::int64_t after = clock.at(again + 8 * window + 1000) - 3'600'000'000'000;
        CHECK(std::abs(after - std::int64_t(8 * window + 1000)) < 10);
    }
}

TEST_CASE("the time of an observed event is that of the steady clock") {
    const std::int64_t begin = now();
    while (now() < begin + 20'000'000) {
        const std::int64_t before = now(), time = quick_now(), after = now();
        REQUIRE(time >= before - 10'000);
        REQUIRE(time <= after + 10'000);
    }
}

TEST_CASE("the number of a rank goes into the name of its file") {
    CHECK(file_of_rank("run.json", 3) == "run.3.json");
    CHECK(file_of_rank("run", 3) == "run.3");
    CHECK(file_of_rank("/tmp/a.b/run", 3) == "/tmp/a.b/run.3");
    CHECK(file_of_rank(".hidden", 3) == ".hidden.3");
    CHECK(file_of_rank("{rank}/run.json", 12) == "12/run.json");
    CHECK(file_of_rank("r{rank}/{rank}.json", 12) == "r12/12.json");
}

TEST_CASE("a ring gives records back in order, and refuses those for which it has no room") {
    trace_ring ring(1024);
    std::mt19937 random(7);
    int pushed = 0, popped = 0, refused = 0;
    for (int i = 0; i < 10000; ++i) {
        const std::string name(random() % 200, char('a' + pushed % 26));
        const std::int64_t times[3] = {pushed, 2, 3};
        trace_record head;
        head.time = pushed;
        if (random() % 2 == 0) {
            if (ring.push(head, {times, std::size_t(pushed % 4)}, "broadcast", name)) ++pushed;
            else ++refused;
            continue;
        }
        taken_record r;
        if (!ring.pop(r)) continue;
        REQUIRE(r.time == popped);
        REQUIRE(r.times == popped % 4);
        if (r.times > 0) REQUIRE(r.at[0] == popped);
        REQUIRE(r.collective == "broadcast");
        REQUIRE(r.name == std::string(r.name.size(), char('a' + popped % 26)));
        ++popped;
    }
    CHECK(popped > 1000);
    CHECK(refused > 0);
}

TEST_CASE("a ring is full when its last byte is taken, and not before") {
    constexpr std::size_t bytes = 256, of_record = sizeof(trace_record) + 16;
    trace_ring ring(bytes);
    for (int round = 0; round < 3; ++round) {
        CAPTURE(round);
        for (std::size_t n = 0; n < bytes / of_record; ++n)
            CHECK(ring.push({}, {}, "broadcast", "seventh"));
        CHECK_FALSE(ring.push({}, {}, "", ""));
        taken_record r;
        for (std::size_t n = 0; n < bytes / of_record; ++n) CHECK(ring.pop(r));
        CHECK(r.name == "seventh");
        CHECK(ring.empty());
    }
}

TEST_CASE("a ring cuts long names, and keeps what follows them") {
    trace_ring ring(1 << 18);
    const std::string longest(trace_ring::most_of_a_name, 'n');
    taken_record r;
    for (const std::size_t length : {trace_ring::most_of_a_name, std::size_t(70000)}) {
        REQUIRE(ring.push({}, {}, "broadcast", std::string(length, 'n')));
        REQUIRE(ring.push({}, {}, "allreduce", "next"));
        REQUIRE(ring.pop(r));
        CHECK(r.name == longest);
        REQUIRE(ring.pop(r));
        CHECK(r.name == "next");
    }
}

TEST_CASE("begins and ends that were lost leave a trace whose spans are complete") {
    std::vector<std::string> lines;
    trace_tracks<collected> tracks(0, {&lines});
    const auto call_begins = trace_kind::call_begins, call_ended = trace_kind::call_ended;
    tracks.take(record(call_begins, 1000, "a"));
    tracks.rest();
    CHECK(tracks.open_spans() == 1);
    tracks.take(record(call_begins, 2000, "b"));         // the end of a was lost
    tracks.take(record(call_ended, 3000, "b", {2000}));  // known in time: one event
    tracks.take(record(call_ended, 5000, "c", {4000}));  // its begin was lost
    tracks.take(record(trace_kind::submitted, 5100, "t"));
    tracks.rest();
    tracks.take(record(trace_kind::submitted, 5200, "t"));  // its end was lost
    tracks.finish(6000);
    CHECK(tracks.open_spans() == 0);
    CHECK(count(lines, "\"ph\":\"B\"") == 2);
    CHECK(count(lines, "\"ph\":\"E\"") == 2);
    CHECK(count(lines, "unfinished") == 2);
    CHECK(count(lines, "\"ts\":2.000,\"name\":\"b\",\"cat\":\"call\",\"dur\":1.000") == 1);
    CHECK(count(lines, "\"ts\":4.000,\"name\":\"c\",\"cat\":\"call\",\"dur\":1.000") == 1);
    CHECK(count(lines, "\"ts\":5.200,\"name\":\"allreduce\",\"cat\":\"tensor\",\"dur\":0.800") ==
          1);
}

TEST_CASE("the phases of a call are written in two parts if the call is") {
    std::vector<std::string> lines;
    trace_tracks<collected> tracks(0, {&lines});
    tracks.take(record(trace_kind::call_begins, 1000, "a"));
    tracks.rest();
    tracks.take(record(trace_kind::call_ended, 2000, "a", {1000}));
    tracks.take(record(trace_kind::call_ended, 4000, "b", {3000}));
    REQUIRE(lines.size() == 8);  // the first two name the track
    const auto kind = [&](std::size_t i) { return lines[i].substr(7, 1); };
    CHECK(kind(2) + kind(3) + kind(4) + kind(5) + kind(6) + kind(7) == "BBEEXX");
    CHECK(count(lines, "\"ph\":\"B\",\"pid\":0,\"tid\":1,\"ts\":1.000,\"name\":\"communicate\"") ==
          1);
    CHECK(count(lines, "\"ph\":\"E\",\"pid\":0,\"tid\":1,\"ts\":2.000") == 2);
    CHECK(tracks.open_spans() == 0);
}

TEST_CASE("of the calls that wait at a time as many have a track as there is room for") {
    std::vector<std::string> lines;
    trace_tracks<collected> tracks(0, {&lines});
    for (int i = 0; i < 300; ++i) {
        taken_record r = record(trace_kind::call_ended, 5000, "waited", {2000});
        r.made = 1000;
        tracks.take(r);
    }
    CHECK(count(lines, "queue 1\"") == 1);
    CHECK(count(lines, "queue 255\"") == 1);
    CHECK(count(lines, "queue 256\"") == 0);
    CHECK(count(lines, "\"cat\":\"call\"") == 300);
}

TEST_CASE("a tensor that comes again before its work is done begins when that has ended") {
    std::vector<std::string> lines;
    trace_tracks<collected> tracks(0, {&lines});
    const auto worked = [&](std::int64_t made, std::int64_t ended) {
        taken_record r =
            record(trace_kind::tensor_ended, ended, "t", {made + 100, made + 200, ended});
        r.made = made;
        r.succeeded = true;
        tracks.take(r);
    };
    worked(1000, 5000);
    worked(2000, 9000);
    CHECK(count(lines, "\"ts\":1.000,\"name\":\"allreduce\",\"cat\":\"tensor\",\"dur\":4.000") ==
          1);
    CHECK(count(lines, "\"ts\":5.000,\"name\":\"allreduce\",\"cat\":\"tensor\",\"dur\":4.000") ==
          1);
    CHECK(count(lines, "\"ts\":2.") == 0);  // nor do its phases begin before
    CHECK(count(lines, "\"ts\":5.000,\"name\":\"communicate\"") == 1);
}

TEST_CASE("a call that waited while another ran has a track of its own") {
    std::vector<std::string> lines;
    trace_tracks<collected> tracks(0, {&lines});
    const auto waited = [&](std::int64_t made, std::int64_t begin, std::int64_t end) {
        taken_record r = record(trace_kind::call_ended, end, "waited", {begin});
        r.made = made;
        tracks.take(r);
    };
    waited(1000, 2000, 5000);
    waited(6000, 6500, 7000);  // on the same track, which is free
    CHECK(count(lines, "queue 2") == 0);
    waited(6800, 7500, 8000);  // since before the end of the last one
    CHECK(count(lines, "queue 1") == 1);
    CHECK(count(lines, "queue 2") == 1);
}

TEST_CASE("the mark of the rank that came last stands at the end of its own call") {
    const hvd_test::temporary_directory folder;
    hvd::timeline observer;
    hvd::timeline_options options;
    options.file = (folder / "run.json").string();
    observer.start(options, {.rank = 0, .size = 2});
    const std::int64_t took[] = {100'000, 300'000};
    hvd::event e{"allreduce", "x", hvd::dtype::float32, 4, 0, 2, 0};
    e.took = took;
    for (int call = 0; call < 3; ++call) {
        e.time = 1'000'000 + 1'000'000 * call;
        if (call > 0) observer.on_arrivals(e);  // it is told with the next call
        observer.on_begin(e);
        e.time += 250'000;
        observer.on_end(e, true);
    }
    std::ifstream file(observer.stop().file);
    std::vector<std::string> marks;
    for (std::string line; std::getline(file, line);)
        if (line.find("came last") != line.npos) marks.push_back(line);
    REQUIRE(marks.size() == 2);
    for (std::size_t call = 0; call < 2; ++call) {
        CHECK(count({marks[call]}, "\"ts\":" + std::to_string(call + 1) + "250.000,") == 1);
        CHECK(count({marks[call]}, "rank 0 came last, after 200 us") == 1);
    }
}

TEST_CASE("a call with more phases than a record holds has the first ones") {
    const hvd_test::temporary_directory folder;
    hvd::timeline observer;
    hvd::timeline_options options;
    options.file = (folder / "run.json").string();
    observer.start(options, {.rank = 0, .size = 2});
    hvd::event e{"allreduce", "x", hvd::dtype::float32, 4, 0, 2, 1'000'000};
    for (int call = 0; call < 2; ++call) {
        observer.on_begin(e);
        for (int i = 0; i < 20; ++i) {
            e.time += 1000;
            observer.on_phase(e, i % 2 == 0 ? hvd::phase::pack : hvd::phase::communicate);
        }
        e.time += 1000;
        observer.on_end(e, true);
    }
    std::ifstream file(observer.stop().file);
    std::size_t phases = 0, calls = 0;
    for (std::string line; std::getline(file, line);) {
        phases += line.find("\"cat\":\"phase\"") != line.npos && !line.starts_with("{\"ph\":\"E");
        calls += line.find("\"cat\":\"call\"") != line.npos && !line.starts_with("{\"ph\":\"E");
    }
    CHECK(calls == 2);
    CHECK(phases == 2 * 9);
}

TEST_CASE("the environment says whether there is a timeline") {
    const hvd_test::variables guard({{"HVD_TIMELINE_FILE", "run.{rank}.json"},
                                     {"HVD_TIMELINE_MAX_BYTES", "1MiB"},
                                     {"HVD_TIMELINE_MARK_UNITS", "1"}});
    const auto o = hvd::options_from_environment<hvd::timeline_options>();
    CHECK(o.file == "run.{rank}.json");
    CHECK(o.max_bytes == 1 << 20);
    CHECK(o.mark_units);
    const hvd_test::variables wrong(hvd_test::values{{"HVD_TIMELINE_MAX_BYTES", "1KiB"}});
    CHECK_THROWS_WITH_AS(hvd::options_from_environment<hvd::timeline_options>(),
                         doctest::Contains("HVD_TIMELINE_MAX_BYTES is '1KiB'"), hvd::usage_error);
}

TEST_CASE("a forked child leaves the timeline to its parent") {
    const hvd_test::temporary_directory folder;
    trace_recorder recorder;
    hvd::timeline_options options;
    options.file = (folder / "run.json").string();
    recorder.start(options, {});
    recorder.push({}, {}, "barrier", "before");
    const pid_t child = fork();
    if (child == 0) _exit(recorder.stop().file.empty() ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    recorder.push({}, {}, "barrier", "after");
    const auto summary = recorder.stop();
    CHECK(summary.file == file_of_rank(options.file, 0));
    CHECK(summary.dropped == 0);
    CHECK(std::filesystem::file_size(summary.file) == summary.bytes);
}

TEST_CASE("a timeline that is full has the ends of all spans that were open") {
    const hvd_test::temporary_directory folder;
    trace_recorder recorder;
    hvd::timeline_options options;
    options.file = (folder / "run.json").string();
    options.max_bytes = 65536;
    recorder.start(options, {});
    const auto text_of = [&] {
        std::ifstream file(file_of_rank(options.file, 0));
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const auto events = [&](const char* kind) {
        const std::string all = text_of(), what = std::string("\"ph\":\"") + kind;
        int n = 0;
        for (std::size_t at = 0; (at = all.find(what, at)) != all.npos; ++at) ++n;
        return n;
    };
    constexpr int open = 60;
    const std::int64_t now = hvd::detail::now();
    trace_record submitted;
    submitted.kind = trace_kind::submitted;
    submitted.time = now;
    for (int i = 0; i < open; ++i)
        recorder.push(submitted, {}, "allreduce", "tensor " + std::to_string(i));
    while (events("B") < open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    trace_record call;
    call.kind = trace_kind::call_ended;
    for (int i = 0; i < 3000; ++i) {
        call.time = now + 1000 * (i + 2);
        const std::int64_t begin = now + 1000 * (i + 1);
        recorder.push(call, {&begin, 1}, "barrier", "fills the file");
        if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto summary = recorder.stop();
    CHECK(summary.dropped > 0);
    CHECK(summary.bytes <= options.max_bytes);
    CHECK(events("B") == open);
    CHECK(events("E") == open);
}

TEST_CASE("events for which the ring has no room are counted, and the rest is still a trace") {
    const hvd_test::temporary_directory folder;
    trace_recorder recorder;
    hvd::timeline_options options;
    options.file = (folder / "run.json").string();
    recorder.start(options, {}, 65536);
    const std::string name(4000, 'n');
    for (int i = 0; i < 20000; ++i)
        recorder.push({}, {}, "allreduce", name);  // faster than writers
    const auto summary = recorder.stop();
    CHECK(summary.dropped > 0);
    std::ifstream file(summary.file);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    const auto at = all.find("hvd_timeline_end");
    REQUIRE(at != all.npos);
    CHECK(all.find("\"dropped\":" + std::to_string(summary.dropped), at) != all.npos);
    CHECK(all.find("\"reason\":\"stopped\"", at) != all.npos);
    CHECK(all.ends_with("]\n"));
}

// A burst is half of the buffer and more, and the pause after it is shorter than the writer's nap.
TEST_CASE("a buffer that fills wakes the writer, so that bursts lose nothing") {
    const hvd_test::temporary_directory folder;
    const auto dropped_of_bursts = [&] {
        trace_recorder recorder;
        hvd::timeline_options options;
        options.file = (folder / "run.json").string();
        recorder.start(options, {}, 65536);
        constexpr std::size_t bytes_of_one = sizeof(trace_record) + 7 + 5;
        for (int burst = 0; burst < 8; ++burst) {
            for (std::size_t n = 0; n < 36000 / bytes_of_one; ++n)
                recorder.push({}, {}, "barrier", "burst");
            std::this_thread::sleep_for(std::chrono::milliseconds(12));
        }
        return recorder.stop().dropped;
    };
    std::uint64_t fewest = dropped_of_bursts();  // on a busy machine the writer may come too late
    for (int i = 0; i < 50 && fewest > 0; ++i) fewest = std::min(fewest, dropped_of_bursts());
    CHECK(fewest == 0);
}

}  // namespace timeline_tests
