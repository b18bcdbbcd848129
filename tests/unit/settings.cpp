// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Options from the environment. HVD_TEST_FUZZ is the number of random texts that are read.

#include <hvd/settings.hpp>
#include <hvd/threads.hpp>

#include <clocale>
#include <random>
#include <set>

#include "hvd_test.hpp"
#include "variables.hpp"

namespace settings_tests {

using hvd::detail::setting;
using hvd::detail::setting_kind;
using hvd_test::values;
using hvd_test::variables;

namespace {

template <class F>
void for_each_setting(F f) {
    hvd::communicator_options communicator;
    for (const setting& s : hvd::detail::settings_of<hvd::communicator_options>::table)
        f(s, static_cast<void*>(&communicator));
    hvd::engine_options engine;
    for (const setting& s : hvd::detail::settings_of<hvd::engine_options>::table)
        f(s, static_cast<void*>(&engine));
}

// The error of reading the environment, or "" without one.
template <class Options = hvd::communicator_options>
std::string refusal(const values& ours) {
    const variables guard(ours);
    try {
        hvd::options_from_environment<Options>();
    } catch (const hvd::usage_error& e) {
        return e.what();
    }
    return "";
}

hvd::communicator_options options_of(const values& ours) {
    const variables guard(ours);
    return hvd::options_from_environment();
}

const std::vector<std::string> garbage = {"abc",
                                          "1x",
                                          "1 KiB",
                                          " 1",
                                          "1 ",
                                          "+1",
                                          "0x10",
                                          "1e3",
                                          "1.5",
                                          "1,5",
                                          "--1",
                                          "KiB",
                                          "1kib",
                                          "1Kib",
                                          "1KB",
                                          "1T",
                                          "-1",
                                          "1\n",
                                          "1;2",
                                          "1.000",
                                          "NaN",
                                          "inf",
                                          "1K1",
                                          "1KiBKiB",
                                          "½",
                                          "١",
                                          "$1",
                                          "1/2",
                                          "(1)",
                                          "1_000",
                                          "1'000",
                                          "''",
                                          "\"1\"",
                                          "1.000,0",
                                          "1s1",
                                          "sec",
                                          "true1",
                                          "yes",
                                          "TRUE",
                                          "on",
                                          "9223372036854775808",
                                          "18446744073709551616",
                                          "99999999999999999999999999999999",
                                          "9223372036854775807G",
                                          "9223372036854775807min"};

}  // namespace

TEST_CASE("each variable is read into its member, and no two are alike") {
    std::set<std::string> names, keys;
    for_each_setting([&](const setting& s, void* options) {
        INFO(std::string(s.variable));
        CHECK(names.insert(s.variable).second);
        CHECK(keys.insert(s.key).second);
        // A variable is named as its member is.
        std::string named = s.key;
        if (named.starts_with("tuning.")) named = named.substr(7);
        if (named == "unstable") named = "tuning";
        for (char& c : named) c = c == '.' ? '_' : char(std::toupper(c));
        CHECK(s.variable == "HVD_" + named);
        const std::string before = hvd::detail::value_text(s, options);
        std::string written = "1,0";
        if (s.kind == setting_kind::text) written = "a file, with a comma";
        if (s.kind == setting_kind::flag) written = before == "true" ? "false" : "true";
        if (s.kind == setting_kind::span || s.kind == setting_kind::limit) written = "1234us";
        if (s.kind == setting_kind::integer || s.kind == setting_kind::count) written = "77";
        if (s.kind == setting_kind::bytes) written = "33KiB";
        if (s.kind == setting_kind::thresholds) written = "most_by_all=33KiB,fetched_ahead=0";
        CHECK(hvd::detail::read_setting(s, written, options));
        CHECK(hvd::detail::value_text(s, options) == written);
        const variables guard(values{{s.variable, written}});
        const hvd::configuration all = hvd::configuration::from_environment();
        REQUIRE(all.entries().size() == 1);
        CHECK(all.entries()[0].key == s.key);
        CHECK(all.entries()[0].value == written);
    });
    const auto o = options_of({{"HVD_TIMEOUT", "1500ms"},
                               {"HVD_CHUNK_BYTES", "3K"},
                               {"HVD_MPI_BETWEEN_NODES", "1"},
                               {"HVD_CPUS", "3,1,2"},
                               {"HVD_NODE_SIZE", "2"},
                               {"HVD_WAITING_NOTICE", "3"}});
    CHECK(o.timeout.time().nanoseconds == 1'500'000'000);
    CHECK(o.tuning.chunk_bytes == 3072);
    CHECK(o.mpi_between_nodes);
    CHECK(o.cpus == std::vector<int>{3, 1, 2});
    CHECK(o.node_size == 2);
    CHECK(o.waiting_notice.time().nanoseconds == 3'000'000'000);
}

TEST_CASE("sizes and times take suffixes") {
    const auto bytes = [](const char* text) {
        return options_of({{"HVD_CHUNK_BYTES", text}}).tuning.chunk_bytes;
    };
    CHECK(bytes("64") == 64);
    CHECK(bytes("2K") == 2048);
    CHECK(bytes("2KiB") == 2048);
    CHECK(bytes("2M") == 2 << 20);
    CHECK(bytes("2MiB") == 2 << 20);
    CHECK(bytes("1G") == 1 << 30);
    CHECK(bytes("1GiB") == 1 << 30);
    const auto time = [](const char* text) {
        return options_of({{"HVD_TIMEOUT", text}}).timeout.time().nanoseconds;
    };
    CHECK(time("7") == 7'000'000'000);
    CHECK(time("7ns") == 7);
    CHECK(time("7us") == 7000);
    CHECK(time("7ms") == 7'000'000);
    CHECK(time("7s") == 7'000'000'000);
    CHECK(time("2min") == 120'000'000'000);
    CHECK(options_of({{"HVD_TIMEOUT", "forever"}}).timeout == hvd::forever);
    CHECK(options_of({{"HVD_DESTRUCTOR_TIMEOUT", "0"}}).destructor_timeout.nanoseconds == 0);
}

TEST_CASE("what is no value of a setting is refused, and changes nothing") {
    for_each_setting([&](const setting& s, void* options) {
        if (s.kind == setting_kind::text) return;
        const std::string before = hvd::detail::value_text(s, options);
        for (const std::string& text : garbage) {
            if (s.kind == setting_kind::integers && text == "1,5") continue;  // a list
            INFO(std::string(s.variable), " = '", text, "'");
            CHECK(!hvd::detail::read_setting(s, text, options));
            CHECK(hvd::detail::value_text(s, options) == before);
        }
        const bool takes_nothing =
            s.kind == setting_kind::integers || s.kind == setting_kind::thresholds;
        INFO(std::string(s.variable));
        CHECK(hvd::detail::read_setting(s, "", options) == takes_nothing);
        CHECK(!hvd::detail::read_setting(s, std::string_view("1\0", 2), options));
    });
}

TEST_CASE("a number is taken at both ends of its range, and refused beyond them") {
    for_each_setting([&](const setting& s, void* options) {
        if (s.kind == setting_kind::text || s.kind == setting_kind::flag ||
            s.kind == setting_kind::thresholds)
            return;
        INFO(std::string(s.variable));
        const bool is_time = s.kind == setting_kind::span || s.kind == setting_kind::limit;
        const std::string unit = is_time ? "ns" : "";
        const auto reads = [&](std::int64_t value) {
            return hvd::detail::read_setting(s, std::to_string(value) + unit, options);
        };
        CHECK(reads(s.least));
        CHECK(!reads(s.least - s.multiple));
        CHECK(reads(s.most));
        if (s.most < INT64_MAX) CHECK(!reads(s.most + s.multiple));
        if (s.multiple > 1) CHECK(!reads(s.least + 1));
    });
}

TEST_CASE("lists are numbers with commas between them") {
    for (const char* const text :
         {",", "1,", ",1", "1,,2", "1, 2", "1 2", "1,-1", "1,a", "2147483648"})
        CHECK(refusal({{"HVD_CPUS", text}}) ==
              std::string("hvd: HVD_CPUS is '") + text +
                  "'; it takes numbers from 0 with commas between them");
    CHECK(options_of({{"HVD_CPUS", ""}}).cpus.empty());
}

TEST_CASE("the thresholds of HVD_TUNING are read as strictly as settings") {
    const auto thresholds = [](const char* text) {
        return options_of({{"HVD_TUNING", text}}).tuning.unstable;
    };
    CHECK(thresholds("most_by_two=0,streaming_from=1MiB") ==
          hvd::detail::unstable_thresholds{.most_by_two = 0, .streaming_from = 1 << 20});
    CHECK(thresholds("") == hvd::detail::unstable_thresholds{});
    // A later value replaces the whole of an earlier one.
    hvd::communicator_options start;
    start.tuning.unstable.most_carried = 0;
    const variables guard(values{{"HVD_TUNING", "most_by_two=0"}});
    CHECK(hvd::options_from_environment(start).tuning.unstable ==
          hvd::detail::unstable_thresholds{.most_by_two = 0});

    const auto why = [](const std::string& text) {
        const std::string all = refusal({{"HVD_TUNING", text}}),
                          begin = "hvd: HVD_TUNING is '" + text + "'; ";
        REQUIRE(all.starts_with(begin));
        return all.substr(begin.size());
    };
    CHECK(why("most_by_too=0") == "'most_by_too' is no threshold. Did you mean most_by_two?");
    CHECK(why("chunk_bytes=64") == "'chunk_bytes' is no threshold");
    CHECK(why("most_carried=2MiB") ==
          "most_carried takes bytes from 0 to 1MiB (K, KiB, M, MiB, G, GiB)");
    CHECK(why("most_carried=") ==
          "most_carried takes bytes from 0 to 1MiB (K, KiB, M, MiB, G, GiB)");
    CHECK(why("most_carried=1,most_carried=1") == "most_carried stands twice");
    for (const char* const text : {"most_carried", "most_carried=1,", ",most_carried=1", ",", "0"})
        CHECK(why(text) == "it takes name=bytes with commas between them");
    CHECK(why("most_carried=1, most_by_two=1").starts_with("' most_by_two' is no threshold"));
}

TEST_CASE("each threshold is taken by HVD_TUNING at both ends of its range") {
    for (const auto& r : hvd::detail::tuning_ranges) {
        const std::string_view name = r.name;
        if (!name.starts_with("unstable.")) continue;
        INFO(name);
        const std::string key(name.substr(9));
        for (const std::size_t value : {r.least, r.most})
            CHECK(r.of(options_of({{"HVD_TUNING", key + "=" + std::to_string(value)}}).tuning) ==
                  value);
        CHECK(refusal({{"HVD_TUNING", key + "=" + std::to_string(r.most + r.multiple)}}) != "");
    }
}

TEST_CASE("an error names the variable, the value and what is permitted") {
    CHECK(refusal({{"HVD_CHUNK_BYTES", "100"}}) ==
          "hvd: HVD_CHUNK_BYTES is '100'; it takes bytes from 64 to 1GiB, a multiple of 64 "
          "(K, KiB, M, MiB, G, GiB)");
    CHECK(refusal({{"HVD_TIMEOUT", "0"}}) ==
          "hvd: HVD_TIMEOUT is '0'; it takes a time of at most 43200min (ns, us, ms, s, min; s if "
          "none), or forever");
    CHECK(refusal({{"HVD_DESTRUCTOR_TIMEOUT", "1h"}}) ==
          "hvd: HVD_DESTRUCTOR_TIMEOUT is '1h'; it takes a time from 0 to 43200min (ns, us, ms, s, "
          "min; s if none)");
    CHECK(refusal({{"HVD_MPI_BETWEEN_NODES", "yes"}}) ==
          "hvd: HVD_MPI_BETWEEN_NODES is 'yes'; it takes true, false, 1 or 0");
    CHECK(refusal<hvd::engine_options>({{"HVD_ENGINE_CACHE_CAPACITY", "-1"}}) ==
          "hvd: HVD_ENGINE_CACHE_CAPACITY is '-1'; it takes a number from 0");
}

std::vector<std::string> told;
void tell(std::string_view line) { told.emplace_back(line); }

// The lines that hvd writes while f runs.
template <class F>
std::vector<std::string> lines_of(F f) {
    told.clear();
    const hvd::message_sink before = hvd::set_message_sink(&tell);
    f();
    hvd::set_message_sink(before);
    return told;
}

TEST_CASE("a variable that hvd does not know is told, or refused, with the one that was meant") {
    const auto line_of = [](const char* name) {
        const variables guard(values{{name, "5s"}});
        const auto lines = lines_of([] { hvd::options_from_environment(); });
        REQUIRE(lines.size() == 1);
        CHECK_THROWS_WITH_AS(hvd::configuration::from_environment({.refuse_unknown = true}),
                             lines[0].c_str(), hvd::usage_error);
        return lines[0];
    };
    CHECK(line_of("HVD_TIMOUT") ==
          "hvd: the environment has HVD_TIMOUT, which is no variable of hvd. Did you mean "
          "HVD_TIMEOUT?");
    CHECK(line_of("HVD_ENGINE_FUSION_TRESHOLD")
              .ends_with("Did you mean HVD_ENGINE_FUSION_THRESHOLD?"));
    CHECK(line_of("HVD_DEADLINE") ==
          "hvd: the environment has HVD_DEADLINE, which is no variable of hvd");
    CHECK(line_of("HVD_NOTHING_LIKE_THIS_ONE") ==
          "hvd: the environment has HVD_NOTHING_LIKE_THIS_ONE, which is no variable of hvd");
    CHECK(line_of("HVD_") == "hvd: the environment has HVD_, which is no variable of hvd");
    // Those of tests and tools, and one that the program itself reads.
    const variables guard(
        values{{"HVD_TEST_RANKS", "2"}, {"HVD_MPI_CUDA_AWARE", "0"}, {"HVD_OF_MY_PROGRAM", "1"}});
    const std::string_view mine[] = {"HVD_OF_MY_PROGRAM"};
    const hvd::environment_names names{.others = mine, .refuse_unknown = true};
    CHECK(lines_of([&] {
              CHECK(hvd::configuration::from_environment(names).entries().empty());
          }).empty());
}

// The lines of a program that makes two worlds, and may read the environment before.
template <class... Options>
std::vector<std::string> lines_of_a_program() {
    hvd::detail::environment_is_read().store(false);
    hvd::detail::communicator_settings_are_read().store(false);
    hvd::detail::tcp_settings_are_read().store(false);
    hvd::detail::unread_variables_are_told().store(false);
    return lines_of([&] {
        (hvd::options_from_environment<Options>(), ...);
        for (int i = 0; i < 2; ++i) {
            const auto world = hvd::communicator<hvd::threads>::world();
            hvd::run_threads(2, [](hvd::communicator<hvd::threads>& comm) { comm.barrier(); });
        }
    });
}

TEST_CASE("a variable that nothing has read is told once, by rank 0") {
    const std::string why =
        " is set, and nothing has read it: a program asks for settings of the environment, by "
        "hvd::options_from_environment";
    for (const auto& [name, reader] :
         {std::pair{"HVD_TIMEOUT", "()"}, std::pair{"HVD_TUNING", "()"},
          std::pair{"HVD_ENGINE_STALL_WARN", "<hvd::engine_options>()"},
          std::pair{"HVD_AUTOTUNE", "<hvd::autotune_options>()"},
          std::pair{"HVD_AUTOTUNE_LOG", "<hvd::autotune_options>()"},
          std::pair{"HVD_TIMELINE_FILE", "<hvd::timeline_options>()"}}) {
        const variables guard(values{{name, "5s"}});
        CHECK(lines_of_a_program() == std::vector<std::string>{std::string("hvd: ") + name + why +
                                                               reader + " of hvd/settings.hpp"});
    }
    for (const char* const name : {"HVD_WAITING_NOTICE", "HVD_LOCAL_RANK", "HVD_TEST_ANYTHING"}) {
        const variables guard(values{{name, "5s"}});
        CHECK(lines_of_a_program().empty());
    }
    {
        const variables guard(values{{"HVD_TIMOUT", "5s"}});
        CHECK(lines_of_a_program() ==
              std::vector<std::string>{"hvd: the environment has HVD_TIMOUT, which is no variable "
                                       "of hvd. Did you mean HVD_TIMEOUT?"});
    }
    const variables read(values{{"HVD_ENGINE_STALL_WARN", "5s"}});
    CHECK(lines_of_a_program<hvd::engine_options>().empty());
}

TEST_CASE("settings of a world that only others' settings were asked for are told") {
    const variables set(values{{"HVD_TIMEOUT", "5s"}, {"HVD_ENGINE_STALL_WARN", "5s"}});
    const auto lines = lines_of_a_program<hvd::engine_options>();
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with("hvd: HVD_TIMEOUT is set, and nothing has read it"));
    // Those of an engine may be asked for later.
    CHECK(lines_of_a_program<hvd::communicator_options>().empty());
}

TEST_CASE("variables of hvd::tcp are told in a program without it") {
    const variables set(values{{"HVD_NETWORK_INTERFACE", "eth7"}});
    CHECK(lines_of_a_program<hvd::communicator_options>() ==
          std::vector<std::string>{"hvd: HVD_NETWORK_INTERFACE is set, and nothing has read it: "
                                   "hvd::tcp reads it where its world is given no tcp_options"});
    CHECK(lines_of_a_program<hvd::tcp_options>().empty());
}

TEST_CASE("an empty variable is not set") {
    const variables set(values{{"HVD_TIMEOUT", ""}, {"HVD_TIMOUT", ""}, {"HVD_START_TIMEOUT", ""}});
    CHECK(lines_of_a_program().empty());
    CHECK(
        lines_of([] { CHECK(hvd::configuration::from_environment().entries().empty()); }).empty());
    CHECK(!hvd::options_from_environment().timeout.is_given());
}

TEST_CASE("a time below the resolution of the clock is not 0") {
    using picoseconds = std::chrono::duration<double, std::pico>;
    CHECK(hvd::time_span(picoseconds(1)).nanoseconds == 1);
    CHECK(hvd::time_limit(picoseconds(1)).patience() == 1);
    CHECK(hvd::time_limit(picoseconds(-1)).is_wrong());
    CHECK(hvd::time_limit(picoseconds(0)).is_wrong());
}

TEST_CASE("each variable of a setting is one that is told or one that is read unasked") {
    for_each_setting([](const setting& s, void*) {
        INFO(s.variable);
        const bool is_read =
            hvd::detail::is_named_by(s.variable, hvd::detail::variables_read_unasked) ||
            hvd::detail::is_named_by(s.variable, hvd::detail::variables_of_tcp);
        CHECK(is_read != hvd::detail::is_named_by(s.variable, hvd::detail::variables_to_ask_for));
    });
}

TEST_CASE("the environment wins over code that asks for it, and leaves the rest") {
    const variables guard(values{{"HVD_TIMEOUT", "5s"}});
    const hvd::communicator_options start{.timeout = std::chrono::seconds(1), .node_size = 3};
    const auto o = hvd::options_from_environment(start);
    CHECK(o.timeout.time().nanoseconds == 5'000'000'000);
    CHECK(o.node_size == 3);
    CHECK(o.shared_memory_bytes == hvd::communicator_options{}.shared_memory_bytes);
}

TEST_CASE("a later value wins, and a wrong one is refused though another wins") {
    hvd::configuration both;
    both.add("timeout", "1s", "one");
    both.add("timeout", "2s", "two");
    CHECK(both.apply<hvd::communicator_options>().timeout.time().nanoseconds == 2'000'000'000);
    hvd::configuration wrong;
    wrong.add("timeout", "soon", "run.yaml:3");
    wrong.add("timeout", "2s", "two");
    CHECK_THROWS_WITH_AS(wrong.apply<hvd::communicator_options>(),
                         "hvd: run.yaml:3: timeout is 'soon'; it takes a time of at "
                         "most 43200min (ns, us, ms, s, min; s if none), or forever",
                         hvd::usage_error);
    CHECK_THROWS_WITH_AS(wrong.add("timeouts", "2s", "here"),
                         "hvd: here: timeouts is no option of hvd. Did you mean timeout?",
                         hvd::usage_error);
}

TEST_CASE("HVD_CONFIG is not passed over by a program that reads no file") {
    CHECK(refusal({{"HVD_CONFIG", "run.yaml"}}).starts_with("hvd: HVD_CONFIG is 'run.yaml'"));
    CHECK(refusal({{"HVD_CONFIG", ""}}) == "");
    const variables guard(values{{"HVD_CONFIG", "run.yaml"}});
    CHECK_THROWS_AS(hvd::configuration::from_environment(), hvd::usage_error);
    const std::string_view read_by_the_program[] = {"HVD_CONFIG"};
    CHECK(hvd::configuration::from_environment({.others = read_by_the_program}).entries().empty());
}

TEST_CASE("describe says where each value comes from") {
    const variables guard(values{{"HVD_TIMEOUT", "5s"}, {"HVD_NODE_SIZE", "2"}});
    const auto from = hvd::configuration::from_environment();
    auto o = from.apply<hvd::communicator_options>();
    o.node_size = 4;
    o.tuning.unstable.most_carried = 0;
    const std::string lines = "\n" + hvd::describe(o, from);
    CHECK(lines.find("\ntimeout = 5s  # environment HVD_TIMEOUT\n") != std::string::npos);
    CHECK(lines.find("\nnode_size = 4  # code\n") != std::string::npos);
    CHECK(lines.find("\ntuning.unstable = most_carried=0  # code\n") != std::string::npos);
    CHECK(lines.find("\nshared_memory_bytes = 1MiB  # default\n") != std::string::npos);
    CHECK(lines.find("\nwaiting_notice = 10s  # default\n") != std::string::npos);
}

TEST_CASE("the locale does not matter") {
    const std::string before = std::setlocale(LC_ALL, nullptr);
    for (const char* const name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"})
        if (std::setlocale(LC_ALL, name) != nullptr) break;
    CHECK(options_of({{"HVD_CHUNK_BYTES", "1024"}}).tuning.chunk_bytes == 1024);
    CHECK(refusal({{"HVD_CHUNK_BYTES", "1.024"}}) != "");
    CHECK(refusal({{"HVD_CHUNK_BYTES", "1,024"}}) != "");
    hvd::communicator_options o;
    o.shared_memory_bytes = 1234567;
    CHECK(hvd::describe(o).find("shared_memory_bytes = 1234567  # code") != std::string::npos);
    std::setlocale(LC_ALL, before.c_str());
}

TEST_CASE("what a setting takes of random bytes it writes as something that it takes again") {
    std::mt19937 random(1);
    const auto roll = [&](std::size_t n) { return std::size_t(random()) % n; };
    const std::string letters = "0123456789,-+KMGiBnusmin. \t\xc3\xa4truefals";
    const char* const wanted = std::getenv("HVD_TEST_FUZZ");
    const int rounds = wanted != nullptr ? std::atoi(wanted) : 3000;
    int taken = 0;
    for (int round = 0; round < rounds; ++round) {
        std::string text;
        for (std::size_t n = roll(6); n > 0; --n)
            text += roll(20) == 0 ? char(roll(256)) : letters[roll(letters.size())];
        for_each_setting([&](const setting& s, void* options) {
            if (!hvd::detail::read_setting(s, text, options)) return;
            ++taken;
            const std::string written = hvd::detail::value_text(s, options);
            INFO(std::string(s.variable), " '", text, "' '", written, "'");
            CHECK(hvd::detail::read_setting(s, written, options));
            CHECK(hvd::detail::value_text(s, options) == written);
        });
        hvd::detail::best_spelling meant(text);
        for_each_setting([&](const setting& s, void*) { meant.offer(s.variable); });
        CHECK(std::string_view(meant.question()).size() < 100);
    }
    CHECK(taken > 0);
}

}  // namespace settings_tests
