// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <hvd/timeline.hpp>

#include "engine_test.hpp"
#include "temporary_directory.hpp"

namespace timeline_tests {

// Timelines: each rank reads the file that it has written.

using namespace hvd_test;
using json = nlohmann::json;

namespace {

using timed = hvd::observed<backend, hvd::timeline>;

struct span {
    std::string name, category;
    std::int64_t begin, end;  // nanoseconds
    json args;
};

std::int64_t nanoseconds(const json& microseconds) {
    return std::llround(microseconds.get<double>() * 1000);
}

// A file that was read. A strict parser reads it, and spans lie inside each other or side by side.
class trace {
public:
    explicit trace(const std::string& file) {
        std::ifstream stream(file);
        events = json::parse(stream);  // throws for a file that is no JSON
        std::map<int, std::vector<span>> open;
        for (const json& e : events) {
            const int track = e.at("tid");
            const std::string kind = e.at("ph");
            if (kind == "M" && e.at("name") == "thread_name") names[track] = e["args"]["name"];
            if (kind == "i") marks.insert(e.at("name").get<std::string>());
            if (kind == "B") open[track].push_back(span_of(e, nanoseconds(e.at("ts"))));
            if (kind == "X")
                add(track, span_of(e, nanoseconds(e.at("ts")) + nanoseconds(e.at("dur"))));
            if (kind == "E") {
                REQUIRE(!open[track].empty());
                span s = open[track].back();
                open[track].pop_back();
                s.end = nanoseconds(e.at("ts"));
                if (e.contains("args")) s.args.update(e["args"]);
                add(track, s);
            }
        }
        for (const auto& [track, spans] : open) CHECK(spans.empty());
        for (auto& [track, spans] : tracks) check_nesting(spans);
    }

    const std::vector<span>& on(const std::string& track_name) const {
        static const std::vector<span> none;
        for (const auto& [track, name] : names)
            if (name == track_name && tracks.count(track) != 0) return tracks.at(track);
        return none;
    }
    // The names of the spans inside those of a name, on any track, in their order.
    std::vector<std::string> inside(const std::string& name) const {
        std::vector<std::string> found;
        for (const auto& [track, spans] : tracks)
            for (std::size_t i = 0; i < spans.size(); ++i)
                if (spans[i].name == name)
                    for (std::size_t k = i + 1; k < spans.size() && spans[k].end <= spans[i].end;
                         ++k)
                        found.push_back(spans[k].name);
        return found;
    }
    const json& args_of(const std::string& event) const {
        for (const json& e : events)
            if (e.value("name", "") == event) return e.at("args");
        FAIL("no such event");
        return events;
    }
    // A span that was written in two parts has what both say.
    const json& args_of_span(const std::string& name) const {
        for (const auto& [track, spans] : tracks)
            for (const span& s : spans)
                if (s.name == name) return s.args;
        FAIL("no such span");
        return events;
    }

    json events;
    std::map<int, std::vector<span>> tracks;
    std::map<int, std::string> names;
    std::multiset<std::string> marks;

private:
    static span span_of(const json& e, std::int64_t end) {
        return {e.at("name"), e.value("cat", ""), nanoseconds(e.at("ts")), end,
                e.value("args", json::object())};
    }
    void add(int track, span s) {
        CHECK(s.end >= s.begin);
        CHECK(names.count(track) == 1);
        tracks[track].push_back(std::move(s));
    }
    static void check_nesting(std::vector<span>& spans) {
        std::stable_sort(spans.begin(), spans.end(), [](const span& a, const span& b) {
            return a.begin != b.begin ? a.begin < b.begin
                   : a.end != b.end   ? a.end > b.end
                                      : a.category != "phase" && b.category == "phase";
        });
        std::vector<std::int64_t> ends;
        std::size_t overlapping = 0, alone = 0;
        for (const span& s : spans) {
            while (!ends.empty() && ends.back() <= s.begin && s.end > ends.back()) ends.pop_back();
            if (!ends.empty() && s.end > ends.back()) ++overlapping;
            if (ends.empty() && s.category == "phase") ++alone;  // each is inside something
            ends.push_back(s.end);
        }
        CHECK(overlapping == 0);
        CHECK(alone == 0);
    }
};

using words = std::vector<std::string>;

std::string file_of(const hvd::timeline_summary& s) { return s.file; }

}  // namespace

TEST_CASE("a timeline has the calls of a communicator with their phases, and plans, and names") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        hvd::start_timeline(comm, {.file = (folder / "run.json").string()});
        std::vector<float> a(1000, 1), strided(40, 1);
        const auto column = hvd::view(strided.data(), hvd::shape(20), hvd::strides(2));
        comm.allreduce(a, hvd::sum);
        comm.allreduce(a, hvd::sum, {.name = "quote \" slash \\ line \n bad \xff."});
        comm.allreduce(column, hvd::sum, {.name = "packed"});
        auto x = comm.allreduce_async(a, hvd::sum, {.name = "first in the queue"});
        auto y = comm.allreduce_async(a, hvd::sum, {.name = "second in the queue"});
        x.wait();
        y.wait();
        auto plan = comm.plan_allreduce(a, hvd::sum, {.name = "planned"});
        plan.run();
        plan.run_async().wait();
        CHECK_THROWS(comm.broadcast(a, hvd::root{-1}, {.name = "wrong"}));
        auto half = comm.split(0);
        half.allreduce(a, hvd::sum, {.name = "of the split"});
        const auto summary = hvd::stop_timeline(comm);
        CHECK(summary.dropped == 0);
        CHECK(summary.bytes == std::filesystem::file_size(summary.file));
        const std::string end = "." + std::to_string(comm.rank()) + ".json";
        CHECK(file_of(summary).find(end) == summary.file.size() - end.size());

        const trace read(summary.file);
        CHECK(read.args_of("hvd_timeline").at("rank") == comm.rank());
        CHECK(read.args_of("hvd_timeline").at("size") == comm.size());
        CHECK(read.inside("allreduce") == words{"communicate"});
        CHECK(read.args_of_span("allreduce").at("bytes") == 4000);
        CHECK(read.args_of_span("allreduce").at("type") == "float32");
        CHECK(read.inside("quote \" slash \\ line \n bad \xef\xbf\xbd.") == words{"communicate"});
        const words packed = read.inside("packed");
        CHECK(std::count(packed.begin(), packed.end(), "pack") == 1);
        CHECK(std::count(packed.begin(), packed.end(), "communicate") >= 1);
        CHECK(packed.back() == "unpack");
        CHECK(read.inside("first in the queue") == words{"queue", "communicate"});
        CHECK(read.inside("second in the queue") == words{"queue", "communicate"});
        const words planned = read.inside("planned");  // its making, and two runs
        CHECK(std::count(planned.begin(), planned.end(), "communicate") == 3);
        CHECK(std::count(planned.begin(), planned.end(), "queue") == 1);
        CHECK(read.args_of_span("wrong").value("failed", false));
        CHECK(read.on("calls of communicator 1").front().name == "of the split");
    });
}

TEST_CASE("a run without a failure has a timeline without one") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        hvd::start_timeline(comm, {.file = (folder / "run.json").string()});
        {
            hvd::engine e{comm};
            std::vector<float> a(10, 1), b(20000, 1);
            for (int step = 0; step < 8; ++step) {
                auto x = e.allreduce("a", a, hvd::average);
                e.allreduce("b", b, hvd::average).wait();
                x.wait();
            }
            while (comm.size() > 1 &&
                   e.statistics().declined == 0) {  // another step than predicted
                auto x = e.allreduce("a", a, hvd::average);
                e.allreduce("b", b, hvd::average).wait();
                x.wait();
                e.allreduce("odd", b, hvd::average).wait();
                e.allgather("rows", a).wait();
            }
            for (int step = 0; step < 8; ++step) e.allreduce("a", a, hvd::average).wait();
            e.join().wait();
        }
        const trace read(hvd::stop_timeline(comm).file);
        for (const auto& [track, spans] : read.tracks)
            for (const span& s : spans) {
                INFO(read.names.at(track), ": ", s.name);
                CHECK(!s.args.value("failed", false));
            }
    });
}

TEST_CASE("a timeline has the tensors of an engine, each on a track of its own") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        hvd::start_timeline(comm, {.file = (folder / "run.json").string(), .mark_units = true});
        constexpr int steps = 8;
        {
            hvd::engine e{comm};
            for (int step = 0; step < steps; ++step) {
                std::vector<float> a(10, 1), b(20, 1);
                auto x = e.allreduce("conv1/\"kernel\"", a, hvd::sum);
                auto y = e.allreduce("conv1/bias", b, hvd::sum);
                x.wait();
                y.wait();
            }
            if (comm.size() > 1) {
                std::vector<float> odd(comm.rank() == 0 ? 3 : 4);
                CHECK_THROWS(e.allreduce("odd", odd, hvd::sum).wait());
            }
        }
        const trace read(comm.observer().stop().file);
        for (const char* name : {"conv1/\"kernel\"", "conv1/bias"}) {
            std::size_t tensors = 0, communicated = 0, negotiated = 0, queued = 0;
            for (const span& s : read.on(name)) {
                tensors += s.category == "tensor" ? 1 : 0;
                communicated += s.name == "communicate" ? 1 : 0;
                negotiated += s.name == "negotiate" ? 1 : 0;
                queued += s.name == "queue" ? 1 : 0;
            }
            CHECK(tensors == steps);
            CHECK(communicated >= steps);
            CHECK(negotiated >= 1);
            CHECK(negotiated < steps);  // later steps are predicted
            CHECK(queued >= 1);
        }
        CHECK(read.marks.count("unit") >= steps);
        for (int r = 1; comm.rank() == 0 && r < comm.size(); ++r)
            CHECK(read.marks.count("rank " + std::to_string(r) + " is ready") >= 2);
        if (comm.size() == 1) return;
        bool odd_failed = false;
        for (const span& s : read.on("odd")) {
            if (s.category == "tensor") odd_failed = s.args.value("failed", false);
            else CHECK(s.name == "negotiate");
        }
        CHECK(odd_failed);
    });
}

TEST_CASE("a timeline starts and stops while an engine works, any number of times") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        hvd::engine e{comm};
        std::atomic<bool> stop{false};
        std::thread worker([&] {
            std::vector<float> a(100, 1);
            for (int step = 0; step < 400; ++step) e.allreduce("a", a, hvd::max).wait();
            stop = true;
        });
        std::size_t files = 0;
        for (int i = 0; i < 3; ++i) {
            hvd::start_timeline(comm, {.file = (folder / ("run" + std::to_string(i))).string()});
            CHECK(comm.observer().records());
            comm.barrier({.name = "inside"});
            const auto summary = hvd::stop_timeline(comm);
            CHECK(!comm.observer().records());
            comm.barrier({.name = "outside"});
            const trace read(summary.file);
            CHECK(read.inside("inside") == words{"communicate"});
            CHECK(read.inside("outside").empty());
            CHECK(read.args_of("hvd_timeline_end").at("dropped") == summary.dropped);
            ++files;
        }
        worker.join();
        CHECK(hvd::stop_timeline(comm).file.empty());
        CHECK(files == 3);
    });
}

TEST_CASE("a timeline ends when its file is full, and says how many events were dropped") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        hvd::set_message_sink([](std::string_view) {});
        hvd::start_timeline(comm, {.file = (folder / "run.json").string(), .max_bytes = 65536});
        hvd::engine e{comm};
        for (int step = 0; step < 200; ++step) {
            float x = 1, y = 1;
            auto request = e.allreduce("tensor " + std::to_string(step), x, hvd::sum);
            comm.allreduce(y, hvd::sum);
            request.wait();
        }
        const auto summary = hvd::stop_timeline(comm);
        comm.barrier();  // the others may still write a line
        hvd::set_message_sink(nullptr);
        CHECK(summary.bytes <= 65536);
        CHECK(summary.bytes > 50000);
        CHECK(summary.bytes == std::filesystem::file_size(summary.file));
        CHECK(summary.dropped > 0);
        const trace read(summary.file);
        CHECK(read.args_of("hvd_timeline_end").at("dropped") == summary.dropped);
        CHECK(read.args_of("hvd_timeline_end").at("reason") == "the file is full");
    });
}

TEST_CASE("a timeline that a rank can't write is refused on all ranks") {
    on_ranks_of<timed>([](auto& comm) {
        const temporary_directory folder;
        const bool is_last = comm.rank() == comm.size() - 1;
        const std::string good = (folder / "run.json").string();
        const std::string bad = is_last ? (folder / "none" / "run.json").string() : good;
        const std::string last = std::to_string(comm.size() - 1);
        const auto start = [&] { hvd::start_timeline(comm, {.file = bad}); };
        const std::string said =
            is_last ? text_of<hvd::usage_error>(start) : text_of<hvd::peer_error>(start);
        CHECK(said.find("rank " + last + " can't write the timeline '") != std::string::npos);
        CHECK(!comm.observer().records());

        const std::string small = text_of<hvd::usage_error>(
            [&] { hvd::start_timeline(comm, {.file = good, .max_bytes = 1000}); });
        CHECK(small.find(".max_bytes of a timeline is 1000") != std::string::npos);
        if (comm.size() > 1)
            CHECK_THROWS_AS(hvd::start_timeline(comm, {.file = is_last ? "" : good}),
                            hvd::mismatch_error);
        hvd::start_timeline(comm, {.file = ""});
        CHECK(!comm.observer().records());

        hvd::start_timeline(comm, {.file = good});
        const std::string twice =
            text_of<hvd::usage_error>([&] { hvd::start_timeline(comm, {.file = good}); });
        CHECK(twice.find("already") != std::string::npos);
        CHECK(comm.observer().records());
        comm.barrier({.name = "after the errors"});
        const trace read(hvd::stop_timeline(comm).file);
        CHECK(!read.inside("after the errors").empty());
    });
}

}  // namespace timeline_tests
