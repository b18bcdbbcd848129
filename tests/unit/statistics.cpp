// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include <hvd/core/error.hpp>
#include <hvd/observe/bucket_times.hpp>
#include <hvd/observe/observers.hpp>
#include <hvd/prometheus.hpp>
#include <hvd/protocol/call_header.hpp>
#include <hvd/statistics.hpp>

#include "temporary_directory.hpp"

namespace statistics_tests {

using namespace hvd::detail;
using hvd::data_path;

namespace {

std::string json_of(std::string_view text) {
    std::string out;
    append_json_text(out, text);
    return out;
}

// The calls of rank 1 of 4: 10 allreduces of 1 MiB in 1 ms each, an allgather, and a failure.
hvd::statistics some_calls() {
    hvd::statistics s;
    const auto call = [&](const char* kind, std::size_t bytes, std::size_t total, std::int64_t time,
                          data_path path, bool succeeded) {
        hvd::event e{kind, "name", hvd::dtype::float32, bytes, 1, 4, 1000};
        s.on_begin(e);
        e.time += time;
        e.total_bytes = total;
        e.path = path;
        s.on_end(e, succeeded);
    };
    // The longest is neither the first nor the last.
    for (int i = 0; i < 10; ++i)
        call("allreduce", 1 << 20, 1 << 20, i == 4 ? 3'000'000 : 1'000'000, data_path::in_place,
             true);
    call("allreduce", 64, 64, 1'000, data_path::windows, true);
    call("allgather", 100, 400, 2'000, data_path::windows, true);
    call("allgather", 100, 0, 5'000'000, data_path::none, false);
    return s;
}

hvd::engine_statistics some_tensors() {
    hvd::engine_statistics s;
    s.rank = 1;
    s.size = 4;
    s.submitted = 100;
    s.completed = 90;
    s.failed = 3;
    s.units = 31;
    s.unit_tensors = 93;
    s.cache_hits = 5;
    s.cache_misses = 7;
    s.waiting_seconds = 0.25;
    return s;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
        lines.push_back(text.substr(begin, end - begin));
    CHECK(begin == text.size());  // it ends with a newline
    return lines;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string contents(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("the rank that is in a call for the shortest time came last, and others waited for it") {
    lateness late;
    const std::int64_t first[] = {500, 100, 300}, second[] = {10, 30, 20};
    late.add("a", first, 3);
    late.add("b", second, 3);
    late.add("a", first, 3);
    REQUIRE(late.by_rank().size() == 3);
    CHECK(late.by_rank()[0].calls == 1);
    CHECK(late.by_rank()[0].nanoseconds == 15);
    CHECK(late.by_rank()[1].calls == 2);
    CHECK(late.by_rank()[1].nanoseconds == 600);
    CHECK(late.by_rank()[2].calls == 0);
    CHECK(late.by_rank_of("a")[1].calls == 2);
    CHECK(late.by_rank_of("b")[0].calls == 1);
    CHECK(late.by_rank_of("c").empty());
    CHECK(late.slowest().rank == 1);
    CHECK(std::string(std::string_view(late.remark())) ==
          "; rank 1 was the slowest in 2 of the last 3 steps");
    CHECK(lateness().slowest().rank == -1);
    CHECK(lateness().remark().empty());
}

TEST_CASE("late ranks are counted by name up to a number of names, and long ones by their begin") {
    lateness late;
    const std::int64_t took[] = {5, 10};
    const std::string name(60, 'a');
    for (int i = 0; i < 3; ++i) late.add(name, took, 2);
    REQUIRE(late.by_name().size() == 1);
    CHECK(late.by_name()[0].by_rank[0].calls == 3);
    REQUIRE(late.by_rank_of(name).size() == 2);
    CHECK(late.by_rank_of(name)[0].calls == 3);
    for (std::size_t i = 1; i < lateness::most_names + 5; ++i) late.add(std::to_string(i), took, 2);
    CHECK(late.by_name().size() == lateness::most_names);
    CHECK(late.by_rank_of(std::to_string(lateness::most_names - 1))[0].calls == 1);
    CHECK(late.by_rank_of(std::to_string(lateness::most_names)).empty());
    CHECK(late.by_rank()[0].calls == lateness::most_names + 7);  // without their names
}

TEST_CASE("the slowest rank is that of most of the last 100 steps, whose ends a program may say") {
    lateness late;
    const std::int64_t long_ago[] = {1, 1'000'000}, now_and_then[] = {10, 9}, step[] = {20, 10};
    for (int i = 0; i < 100; ++i) late.add("", long_ago, 2);
    CHECK(late.slowest().rank == 0);
    late.end_step();
    for (int i = 0; i < 99; ++i) {
        late.add("", long_ago, 2);
        late.add("", step, 2);
        late.end_step();
    }
    CHECK(late.slowest().rank == 0);  // the sum of a step counts
    for (int i = 0; i < 60; ++i) {
        late.add("", now_and_then, 2);
        late.end_step();
    }
    CHECK(late.slowest().rank == 1);
    CHECK(late.slowest().steps == 60);
    CHECK(late.slowest().of == 100);
}

TEST_CASE("a time in two bytes is right to a thousandth") {
    for (const std::int64_t ns :
         {1LL, 2047LL, 2048LL, 123'456LL, 9'876'543'210LL, 3'600'000'000'000LL})
        CHECK(std::abs(short_span::of(ns).nanoseconds() - ns) * 1000 <= ns);
    CHECK(short_span::of(0).nanoseconds() == 1);
    CHECK(short_span::of(INT64_MAX).nanoseconds() > 4'000'000'000'000);
    CHECK(short_span().nanoseconds() == 0);
}

TEST_CASE("reports have the ranks that came last") {
    hvd::statistics s = some_calls();
    const std::int64_t took[] = {3'000'000, 1'000'000, 2'000'000, 3'000'000};
    hvd::event e{"allreduce", "name", hvd::dtype::float32, 4, 1, 4, 1000};
    e.took = took;
    s.on_arrivals(e);
    CHECK(has(to_text(s), "\n        1      1    0.001667    1666.67\n"));
    CHECK(has(to_text(s), "\nslowest in most of the last steps: rank 1, in 1\n"));
    const auto read = nlohmann::json::parse(to_json(s));
    CHECK(read["slowest_rank"] == 1);
    CHECK(read["late_ranks"][1]["calls"] == 1);
    CHECK(read["late_ranks"][1]["seconds"] == 0.001666666);
    hvd::prometheus_metrics metrics;
    metrics.add(s);
    CHECK(has(metrics.text(), "\nhvd_late_calls_total{rank=\"1\",late_rank=\"1\"} 1\n"));
    CHECK(
        has(metrics.text(), "\nhvd_late_seconds_total{rank=\"1\",late_rank=\"1\"} 0.001666666\n"));
}

TEST_CASE("a text in JSON is escaped, and is UTF-8 whatever it was before") {
    CHECK(json_of("") == R"("")");
    CHECK(json_of(R"(a "name" \ it)") == R"("a \"name\" \\ it")");
    CHECK(json_of(std::string_view("\n\t\0\x1f\x7f", 5)) == "\"\\u000a\\u0009\\u0000\\u001f\x7f\"");
    CHECK(json_of("größe €𝄞") == "\"größe €𝄞\"");
    const std::string bad = "\xEF\xBF\xBD";
    CHECK(json_of("a\xff"
                  "b") == "\"a" + bad + "b\"");
    CHECK(json_of("\xc3") == "\"" + bad + "\"");                      // it ends too early
    CHECK(json_of("\xc0\xaf") == "\"" + bad + bad + "\"");            // overlong
    CHECK(json_of("\xed\xa0\x80") == "\"" + bad + bad + bad + "\"");  // a surrogate
    CHECK(json_of("\xf4\x90\x80\x80") == "\"" + bad + bad + bad + bad + "\"");
    CHECK(json_of("\xe0\x9f\x80") == "\"" + bad + bad + bad + "\"");
    CHECK(json_of("\xf0\x8f\x80\x80") == "\"" + bad + bad + bad + bad + "\"");
}

TEST_CASE("numbers in JSON are exact, and never infinite") {
    const auto number = [](auto n) {
        std::string out;
        append_json_number(out, n);
        return out;
    };
    CHECK(number(0.1) == "0.1");
    CHECK(number(UINT64_MAX) == "18446744073709551615");
    CHECK(number(-3) == "-3");
    CHECK(number(std::numeric_limits<double>::infinity()) == "null");
    CHECK(number(std::nan("")) == "null");
}

TEST_CASE("calls are counted for each collective and path, with the bandwidths of nccl-tests") {
    const hvd::statistics s = some_calls();
    CHECK(s.calls() == 13);
    CHECK(s.failed() == 1);
    CHECK(s.rank() == 1);
    CHECK(s.size() == 4);
    REQUIRE(s.by_path().size() == 4);
    const hvd::call_statistics& large = s.by_path()[0];
    CHECK(large.collective == "allreduce");
    CHECK(large.path == data_path::in_place);
    CHECK(large.calls == 10);
    CHECK(large.bytes == 10 << 20);
    CHECK(large.longest == 3'000'000);
    CHECK(large.seconds() == doctest::Approx(0.012));
    CHECK(large.algbw() == doctest::Approx(10.0 * 1048576 / 0.012));
    CHECK(large.busbw() == doctest::Approx(large.algbw() * 1.5));
    const hvd::call_statistics& gathered = s.by_path()[2];
    CHECK(gathered.bytes == 100);
    CHECK(gathered.algbw() == doctest::Approx(400 / 2e-6));
    CHECK(gathered.busbw() == doctest::Approx(400 / 2e-6 * 0.75));
    const hvd::call_statistics& failed = s.by_path()[3];
    CHECK(failed.failed == 1);
    CHECK(failed.calls == 0);
    CHECK(failed.nanoseconds == 0);
    CHECK(failed.algbw() == 0);
    hvd::statistics other = s;
    other.clear();
    CHECK(other.by_path().empty());
    CHECK(other.calls() == 0);
}

TEST_CASE("the factors of busbw are those of nccl-tests") {
    const auto factor = &hvd::call_statistics::bus_factor;
    CHECK(factor("send", 4) == 1);
    CHECK(factor("recv", 4) == 1);
    CHECK(factor("allreduce", 8) == 1.75);
    CHECK(factor("allreduce", 1) == 0);
    for (const char* kind : {"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})
        CHECK(factor(kind, 8) == 0.875);
    for (const char* kind : {"broadcast", "reduce"}) CHECK(factor(kind, 8) == 1);
}

TEST_CASE("the text is a table whose columns stand below each other") {
    const auto lines = lines_of(to_text(some_calls()));
    REQUIRE(lines.size() == 6);
    CHECK(lines[0] == "rank 1 of 4");
    CHECK(lines[1].substr(0, 20) == "collective  path    ");
    CHECK(lines[2].substr(0, 20) == "allreduce   in place");
    for (std::size_t i = 2; i < lines.size(); ++i) CHECK(lines[i].size() == lines[1].size());
    CHECK(has(lines[2], " 10485760 "));
    CHECK(has(lines[2], " 1200.00 "));  // the mean
    CHECK(has(lines[5], "none"));
    CHECK(has(lines[5], " 0.000000 "));  // nothing has succeeded: no mean is infinite or undefined
    CHECK(has(lines[5], " 0.00 "));
    CHECK_FALSE(has(lines[5], "nan"));
    CHECK_FALSE(has(lines[5], "inf"));
    const auto engine = lines_of(to_text(some_tensors()));
    for (std::size_t i = 2; i < engine.size(); ++i) CHECK(engine[i].size() == engine[1].size());
    CHECK(has(engine[4], "tensors_in_flight"));
    CHECK(has(engine[4], " 7"));
}

TEST_CASE("the JSON has all numbers") {
    CHECK(to_json(hvd::statistics()) ==
          R"({"rank":-1,"size":0,"calls":0,"failed":0,"bytes":0,"seconds":0,"collectives":[],)"
          R"("slowest_rank":-1,"steps_of_slowest":0,"late_ranks":[]})");
    const std::string calls = to_json(some_calls());
    const auto read = nlohmann::json::parse(calls);
    CHECK(read["collectives"].size() == 4);
    CHECK(read["collectives"][0]["seconds"] == 0.012);
    CHECK(nlohmann::json::parse(to_json(some_tensors()))["size"] == 4);
    CHECK(nlohmann::json::parse(json_of("\n\t\"\\\xff\x01 €")) == "\n\t\"\\\xEF\xBF\xBD\x01 €");
    CHECK(has(calls, R"({"rank":1,"size":4,"calls":13,"failed":1,)"));
    CHECK(has(calls, R"([{"collective":"allreduce","path":"in place","calls":10,"failed":0,)"));
    CHECK(has(calls, R"(},{"collective":"allgather","path":"none","calls":0,"failed":1,)"));
    CHECK(calls.substr(calls.size() - 3) == "[]}");
    const std::string engine = to_json(some_tensors());
    CHECK(has(engine, R"("tensors_in_flight":7)"));
    CHECK(has(engine, R"("tensors_per_unit":3,)"));
    CHECK(has(engine, R"("waiting_seconds":0.25,)"));
    hvd::engine_statistics ran;
    ran.running_seconds = 0.5;
    ran.waiting_seconds = 2;
    CHECK(ran.seconds() == 0.5);
}

TEST_CASE("a file for Prometheus has each metric once, with help, type and labels") {
    hvd::prometheus_metrics metrics;
    metrics.add(some_calls(), {{"communicator", "a \"b\" \\ \n c"}}).add(some_tensors());
    metrics.add(some_tensors(), {{"engine", "second"}});
    std::set<std::string> described, named, lines;
    std::string family;
    for (const std::string& line : lines_of(metrics.text())) {
        INFO(line);
        CHECK(lines.insert(line).second);
        if (line.rfind("# HELP ", 0) == 0) {
            family = line.substr(7, line.find(' ', 7) - 7);
            CHECK(described.insert(family).second);
            continue;
        }
        if (line.rfind("# TYPE ", 0) == 0) {
            const bool counts = line == "# TYPE " + family + " counter";
            CHECK((counts || line == "# TYPE " + family + " gauge"));
            CHECK(counts == (family.substr(family.size() - 6) == "_total"));
            continue;
        }
        const std::size_t labels = line.find('{'), end = line.rfind("} ");
        REQUIRE(labels != line.npos);
        REQUIRE(end != line.npos);
        CHECK(line.substr(0, labels) == family);
        CHECK(line.substr(labels, 10) ==
              "{rank=\"1\"" + std::string(line[labels + 9] == ',' ? "," : "}"));
        CHECK(named.insert(line.substr(0, end)).second);
    }
    const std::string text = metrics.text();
    CHECK(has(text,
              "\nhvd_collective_calls_total{rank=\"1\",collective=\"allreduce\",path=\"in place\","
              "communicator=\"a \\\"b\\\" \\\\ \\n c\"} 10\n"));
    CHECK(has(text, "\nhvd_engine_tensors_submitted_total{rank=\"1\",engine=\"second\"} 100\n"));
    CHECK(has(text, "\nhvd_engine_tensors_in_flight{rank=\"1\"} 7\n"));
}

TEST_CASE("the writer for Prometheus keeps families together, and refuses a sample twice") {
    using hvd::detail::count_kind;
    prometheus_text all;
    const std::string first = prometheus_text::labels_text({{"rank", "0"}, {"a", "\"\\\n\xff"}});
    CHECK(first == "{rank=\"0\",a=\"\\\"\\\\\\n\xEF\xBF\xBD\"}");
    CHECK(all.add("x_calls", "Calls.", count_kind::counter, first, 3));
    CHECK(all.add("x_open", "Open ones.", count_kind::gauge, first, 0.5));
    CHECK(all.add("x_calls", "Calls.", count_kind::counter, "{rank=\"1\"}", UINT64_MAX));
    CHECK(!all.add("x_calls", "Calls.", count_kind::counter, "{rank=\"1\"}", 4));
    CHECK(all.text() == "# HELP x_calls_total Calls.\n# TYPE x_calls_total counter\nx_calls_total" +
                            first +
                            " 3\nx_calls_total{rank=\"1\"} 18446744073709551615\n"
                            "# HELP x_open Open ones.\n# TYPE x_open gauge\nx_open" +
                            first + " 0.5\n");
}

TEST_CASE("labels that Prometheus would not take are refused, and so are equal ones") {
    hvd::prometheus_metrics metrics;
    const hvd::engine_statistics s = some_tensors();
    for (const char* name : {"", "1st", "a-b", "__name", "rank", "größe"}) {
        CAPTURE(name);
        CHECK_THROWS_AS(metrics.add(s, {{name, "x"}}), hvd::usage_error);
    }
    CHECK_THROWS_AS(metrics.add(s, {{"a", "x"}, {"a", "y"}}), hvd::usage_error);
    CHECK_THROWS_AS(metrics.add(some_calls(), {{"path", "x"}}), hvd::usage_error);
    metrics.add(s, {{"a", "x"}});
    CHECK_THROWS_AS(metrics.add(s, {{"a", "x"}}), hvd::usage_error);
}

TEST_CASE("a reader never finds half a file") {
    const hvd_test::temporary_directory folder;
    const std::string file = (folder / "hvd_rank1.prom").string();
    hvd::prometheus_metrics small, large;
    small.add(some_tensors());
    large.add(some_tensors()).add(some_calls());
    const std::string one = small.text(), other = large.text();
    small.write(file);
    std::thread writer([&] {
        for (int i = 0; i < 200; ++i) (i % 2 == 0 ? large : small).write(file);
    });
    int wrong = 0;
    for (int i = 0; i < 200; ++i) {
        const std::string found = contents(file);
        wrong += found != one && found != other ? 1 : 0;
    }
    writer.join();
    CHECK(wrong == 0);
    struct stat status{};
    REQUIRE(stat(file.c_str(), &status) == 0);
    const mode_t mask = umask(0);
    umask(mask);
    CHECK((status.st_mode & 0777) == (0666 & ~mask));  // the collector may be another user
}

TEST_CASE("a file that can't be written is named, and nothing is left of it") {
    const hvd_test::temporary_directory folder;
    hvd::prometheus_metrics metrics;
    metrics.add(some_tensors());
    const auto error_of = [&](const std::string& file) -> std::string {
        try {
            metrics.write(file);
        } catch (const hvd::usage_error& e) {
            return e.what();
        }
        return {};
    };
    const std::string nowhere = (folder / "no/such/hvd.prom").string();
    CHECK(has(error_of(nowhere), nowhere));
    REQUIRE(mkdir((folder / "folder.prom").string().c_str(), 0777) == 0);
    CHECK(has(error_of((folder / "folder.prom").string()), "folder.prom"));
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
        CHECK(entry.path().filename() == "folder.prom");
        ++files;
    }
    CHECK(files == 1);
}

namespace {

template <int Number>
struct refusing {
    int* told = nullptr;
    void on_begin(const hvd::event&) {
        if (told != nullptr) ++*told;
        throw std::runtime_error("observer " + std::to_string(Number));
    }
    void on_end(const hvd::event&, bool) {}
};

}  // namespace

TEST_CASE("of several observers that throw the first counts, and all are told") {
    hvd::observers<refusing<1>, refusing<2>> both;
    int told = 0;
    both.get<refusing<1>>().told = both.get<refusing<2>>().told = &told;
    CHECK_THROWS_WITH_AS(both.on_begin({}), "observer 1", std::runtime_error);
    CHECK(told == 2);
}

TEST_CASE("the buckets of a step begin with the first again") {
    hvd::bucket_times times;
    for (int step = 0; step < 3; ++step) {
        for (const std::size_t bytes : {100u, 200u}) {
            hvd::event e{};
            e.name = "gradients";
            e.bytes = bytes;
            e.time = 1000;
            times.on_begin(e);
            e.time += std::int64_t(bytes);
            times.on_end(e, true);
        }
        times.end_step();
    }
    REQUIRE(times.buckets().size() == 2);
    for (const std::size_t b : {0u, 1u}) {
        CHECK(times.buckets()[b].bytes == 100 * (b + 1));
        CHECK(times.buckets()[b].nanoseconds == std::int64_t(3 * 100 * (b + 1)));
        CHECK(times.buckets()[b].calls == 3);
        CHECK(times.buckets()[b].seconds() == doctest::Approx(3e-7 * double(b + 1)));
    }
}

}  // namespace statistics_tests
