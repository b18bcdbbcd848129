// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Options from files. HVD_TEST_FUZZ is the number of random files that are read.

#include <hvd/hvd.hpp>
#include <hvd/interop/options_file.hpp>

#include <fstream>
#include <random>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

using hvd_test::values;
using hvd_test::variables;

namespace {

const hvd_test::temporary_directory folder;

std::string written(const std::string& text, const std::string& name = "run.yaml") {
    const std::string path = folder / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

// The error of reading a file of this text, without its path.
std::string refusal(const std::string& text) {
    const std::string path = written(text);
    try {
        const auto all = hvd::read_configuration(path);
        all.apply<hvd::communicator_options>();
        all.apply<hvd::engine_options>();
    } catch (const hvd::usage_error& e) {
        std::string what = e.what();
        REQUIRE(what.starts_with("hvd: " + path + ":"));
        return what.substr(path.size() + 6);
    }
    return "";
}

const char* const yaml = R"(# the settings of a run
timeout: 30s
cpus: [2, 0]
tuning:
  chunk_bytes: 128KiB
  unstable: most_carried=0,most_by_two=1K
engine:
  fusion_threshold: 64MiB
  prediction: false
)";

}  // namespace

TEST_CASE("a file has the options as maps") {
    const char* const json = R"({"timeout": "30s", "cpus": [2, 0],
        "tuning": {"chunk_bytes": "128KiB", "unstable": "most_carried=0,most_by_two=1K"},
        "engine": {"fusion_threshold": "64MiB", "prediction": false}})";
    for (const char* const text : {yaml, json}) {
        const auto all = hvd::read_configuration(written(text));
        const auto o = all.apply<hvd::communicator_options>();
        CHECK(o.timeout.time().nanoseconds == 30'000'000'000);
        CHECK(o.cpus == std::vector<int>{2, 0});
        CHECK(o.tuning.chunk_bytes == 128 << 10);
        CHECK(o.tuning.unstable.most_carried == 0);
        CHECK(o.tuning.unstable.most_by_two == 1024);
        const auto e = all.apply<hvd::engine_options>();
        CHECK(e.fusion_threshold == 64 << 20);
        CHECK(!e.prediction);
        CHECK(e.cache_capacity == 1024);
    }
    CHECK(hvd::read_configuration(written("")).entries().empty());
    CHECK(hvd::read_configuration(written("# nothing\n")).entries().empty());
}

TEST_CASE("the environment wins over the file, and the file over code that asks for it") {
    const std::string path = written("timeout: 3s\nnode_size: 2\n");
    const variables guard(values{{"HVD_CONFIG", path}, {"HVD_TIMEOUT", "7s"}});
    const hvd::communicator_options start{.destructor_timeout = std::chrono::seconds(1),
                                          .node_size = 5};
    auto o = hvd::options_from_environment_and_file(start);
    CHECK(o.timeout.time().nanoseconds == 7'000'000'000);
    CHECK(o.node_size == 2);
    CHECK(o.destructor_timeout.nanoseconds == 1'000'000'000);
    o.shared_memory_bytes = 4096;
    const auto from = hvd::configuration_from_environment_and_file();
    const std::string lines = "\n" + hvd::describe(o, from);
    CHECK(lines.find("\ntimeout = 7s  # environment HVD_TIMEOUT\n") != std::string::npos);
    CHECK(lines.find("\nnode_size = 2  # file " + path + ":2\n") != std::string::npos);
    CHECK(lines.find("\nshared_memory_bytes = 4KiB  # code\n") != std::string::npos);
    CHECK(lines.find("\nmpi_between_nodes = false  # default\n") != std::string::npos);
}

TEST_CASE("what is wrong in a file is refused with its line") {
    CHECK(refusal("timeout: 3s\ntuning:\n  chunk_byte: 1K\n") ==
          "3: tuning.chunk_byte is no option of hvd. Did you mean tuning.chunk_bytes?");
    CHECK(refusal("timeout: 3s\n\nnode_size: x\n") ==
          "3: node_size is 'x'; it takes a number from 1 to 2147483647");
    CHECK(refusal("timeout: 3s\ntimeout: 4s\n").starts_with("2: timeout stands twice; first at "));
    CHECK(refusal("timeout: [3s\n").find("it is no YAML: ") != std::string::npos);
    CHECK(refusal("tuning: {chunk_bytes: 1K").find("it is no YAML: ") != std::string::npos);
    CHECK(refusal("- timeout\n") == "1: the file is no map");
    CHECK(refusal("just text") == "1: the file is no map");
    CHECK(refusal("timeout:\n").ends_with(": timeout has no value"));
    CHECK(refusal(",").find("more than one document") != std::string::npos);
    CHECK(refusal("tuning: 3\n").starts_with("1: tuning is no option of hvd"));
    CHECK(refusal("a: {b: {c: {d: 1}}}\n") == "1: a.b.c has no value");
    CHECK(refusal("? [a]\n: 1\n") == "1: a key is no text");
    CHECK(refusal("cpus: [1, [2]]\n") == "1: cpus is a list of more than numbers");
    CHECK(refusal("cpus: [1, x]\n") ==
          "1: cpus is '1,x'; it takes numbers from 0 with commas between them");
    CHECK(refusal("timeout: 1s\n---\ntimeout: 2s\n").find("more than one document") !=
          std::string::npos);
    CHECK_THROWS_WITH_AS(hvd::read_configuration("/nowhere/at.all"),
                         "hvd: the file of options '/nowhere/at.all' can't be read",
                         hvd::usage_error);
    CHECK_THROWS_AS(hvd::read_configuration(folder / "."), hvd::usage_error);
}

TEST_CASE("options_file snippet") {
    const variables guard(values{{"HVD_CONFIG", written("tuning: {chunk_bytes: 64KiB}\n")}});
    //! [options_file]
    // HVD_CONFIG=run.yaml HVD_TIMEOUT=30s ./train
    const auto options = hvd::options_from_environment_and_file();
    hvd::run_threads(
        2,
        [](hvd::communicator<hvd::threads>& comm) {
            float x = 1;
            comm.allreduce(x, hvd::sum);
        },
        options);
    //! [options_file]
    CHECK(options.tuning.chunk_bytes == 64 << 10);
}

TEST_CASE("random files are read or refused, with an error of hvd") {
    std::mt19937 random(2);
    const auto roll = [&](std::size_t n) { return std::size_t(random()) % n; };
    const std::vector<std::string> words = {
        "{",    "}",    "[",       "]",        ":",       ": ",     ", ",          "- ",
        "\n",   "\n  ", "\t",      "&a ",      "*a",      "<<: ",   "!!int ",      "? ",
        "| ",   "> ",   "---\n",   "...",      "\"",      "'",      "#",           "%YAML 1.2\n",
        "~",    "null", "\\u0000", "\xff\xfe", "timeout", "tuning", "chunk_bytes", "engine",
        "cpus", "1",    "64",      "3s",       "[[[["};
    const char* const wanted = std::getenv("HVD_TEST_FUZZ");
    const int rounds = wanted != nullptr ? std::atoi(wanted) : 3000;
    int read = 0, refused = 0;
    for (int round = 0; round < rounds; ++round) {
        std::string text = roll(2) == 0 ? yaml : "";
        for (std::size_t n = 1 + roll(8); n > 0; --n) {
            const std::string word =
                roll(4) == 0 ? std::string(1, char(roll(256))) : words[roll(words.size())];
            text.insert(roll(text.size() + 1), word);
        }
        INFO("'", text, "'");
        try {
            const auto all = hvd::read_configuration(written(text, "random.yaml"));
            all.apply<hvd::communicator_options>();
            ++read;
        } catch (const hvd::usage_error&) {
            ++refused;
        } catch (const std::exception& e) {
            FAIL_CHECK(e.what());
        }
    }
    CHECK(refused > 0);
    CHECK(read > 0);
}
