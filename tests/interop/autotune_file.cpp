// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Results of searches in a file.

#include <hvd/engine.hpp>
#include <hvd/interop/autotune_file.hpp>

#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "hvd_test.hpp"
#include "temporary_directory.hpp"

namespace {

const hvd_test::temporary_directory folder;

const hvd::tuning_key here{"a \"fast\" processor\n", 4, 2, "mpi", true, 0xfedcba9876543210u};
const hvd::autotune_result found{{.fusion_threshold = 0,
                                  .largest_first = true,
                                  .prediction = false,
                                  .tuning = {.chunk_bytes = 64, .bucket_bytes = 12345}},
                                 0.1 + 0.2,
                                 1e-7,
                                 17};

std::string text_of(const std::string& path) {
    std::ostringstream all;
    all << std::ifstream(path, std::ios::binary).rdbuf();
    return all.str();
}
void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

// The error of reading a text, without the file's name.
std::string refusal(const std::string& text) {
    const std::string path = folder / "garbage.json";
    write_text(path, text);
    try {
        const hvd::autotune_file file(path);
        return "";
    } catch (const hvd::usage_error& e) {
        const std::string what = e.what();
        REQUIRE(what.starts_with("hvd: " + path + ":"));
        return what.substr(path.size() + 6);
    }
}

void check_equal(const hvd::autotune_result& a, const hvd::autotune_result& b) {
    CHECK(a.chosen == b.chosen);
    CHECK(a.seconds == b.seconds);
    CHECK(a.seconds_before == b.seconds_before);
    CHECK(a.steps == b.steps);
}

}  // namespace

TEST_CASE("a result is read as it was written, and those of other machines stay") {
    const std::string path = folder / "tuned.json";
    hvd::autotune_file fresh(path);
    CHECK(fresh.entries().empty());
    fresh.put(here, found);
    fresh.write();
    for (int other = 0; other < 6; ++other) {
        hvd::tuning_key key = here;
        if (other == 0) key.processor = "another";
        if (other == 1) key.ranks = 8;
        if (other == 2) key.ranks_per_node = 4;
        if (other == 3) key.backend = "threads";
        if (other == 4) key.of_engine = false;
        if (other == 5) key.tensors = 0;
        hvd::autotune_file file(path);
        CHECK(file.find(key) == nullptr);
        auto result = found;
        result.steps = other;
        file.put(key, result);
        file.write();
        const hvd::autotune_file again(path);
        CHECK(again.entries().size() == std::size_t(other + 2));
        REQUIRE(again.find(key) != nullptr);
        check_equal(*again.find(key), result);
        REQUIRE(again.find(here) != nullptr);
        check_equal(*again.find(here), found);
    }
    hvd::autotune_file file(path);
    auto better = found;
    better.seconds = 0;
    file.put(here, better);  // in place of the old one
    file.write();
    CHECK(hvd::autotune_file(path).entries().size() == 7);
    check_equal(*hvd::autotune_file(path).find(here), better);
}

TEST_CASE("garbage is an error with file, line and value") {
    const std::string path = folder / "good.json";
    hvd::autotune_file file(path);
    file.put(here, found);
    file.write();
    const std::string good = text_of(path);
    CHECK(refusal(good) == "");
    const auto with = [&](const std::string& old, const std::string& now) {
        std::string text = good;
        REQUIRE(text.find(old) != text.npos);
        return refusal(text.replace(text.find(old), old.size(), now));
    };
    CHECK(with("\"64\"", "\"65\"") ==
          "8: tuning.chunk_bytes is '65'; it takes bytes from 64 to 1GiB, a multiple of 64 (K, "
          "KiB, M, MiB, G, GiB)");
    CHECK(with("\"engine.cycle_time\": \"0\"", "\"engine.cycle_time\": \"soon\"")
              .find("4: engine.cycle_time is 'soon'") == 0);
    CHECK(with("\"ranks\": 4", "\"ranks\": four").find("2: ranks is 'four'") == 0);
    CHECK(with("\"ranks\": 4", "\"ranks\": 0").find("2: ranks is '0'") == 0);
    CHECK(with("\"engine\": true", "\"engine\": 1").find("2: engine is '1'") == 0);
    CHECK(with("fedc", "wxyz").find("2: tensors is 'wxyz") == 0);
    CHECK(with("\"seconds\": 0.", "\"seconds\": -0.").find("2: seconds is '-0.3") == 0);
    CHECK(with("\"steps\": 17", "\"hops\": 17") == "2: 'hops' is unknown here");
    CHECK(with("\"ranks\": 4, ", "") == "2: a result has 9 of its 10 members");
    CHECK(with("\"ranks\": 4", "\"ranks\": 4, \"ranks\": 4") == "2: ranks stands twice");
    CHECK(with("\"tuning.chunk_bytes\"", "\"tuning.chunks\"") ==
          "8: 'tuning.chunks' is unknown here");
    CHECK(with("\"results\"", "\"result\"") == "1: 'result' is unknown here");
    CHECK(with("[", "{") != "");
    CHECK(refusal("") == "1: the file is empty");
    CHECK(refusal("[]") == "1: there is no map");
    CHECK(refusal("{\"results\": 7}") == "1: results is no list");
    CHECK(refusal(good.substr(0, good.size() / 2)).find("it is no YAML") != std::string::npos);
    const std::string entry = good.substr(good.find("  {"), good.rfind("\n]") - good.find("  {"));
    CHECK(refusal("{\"results\": [\n" + entry + ",\n" + entry + "]}").find("stands above") !=
          std::string::npos);
    // Random bytes in place of others: an error or another result, but no crash.
    std::mt19937 random(1);
    for (int n = 0; n < 300; ++n) {
        std::string text = good;
        for (unsigned k = random() % 4 + 1; k > 0; --k)
            text[random() % text.size()] = char(random());
        const std::string damaged = folder / "damaged.json";
        write_text(damaged, text);
        try {
            const hvd::autotune_file read(damaged);
        } catch (const hvd::usage_error&) {
        }
    }
}

TEST_CASE("a file that can't be read or written is an error that names it") {
    CHECK_THROWS_WITH_AS(hvd::autotune_file(folder / ""), doctest::Contains("can't be read"),
                         hvd::usage_error);
    hvd::autotune_file file(folder / "no such folder/tuned.json");
    file.put(here, found);
    CHECK_THROWS_WITH_AS(file.write(), doctest::Contains("no such folder/tuned.json"),
                         hvd::usage_error);
}

TEST_CASE("the first run searches, and the next one takes its result") {
    for (const int ranks : {1, 2, 3}) {
        const std::string path = folder / ("run" + std::to_string(ranks) + ".json");
        hvd::engine_tuning chosen;
        const auto run = [&](bool has_known, std::size_t size) {
            hvd_test::run_threads(ranks, [&](auto& world) {
                std::vector<float> w(100), b(size);
                //! [autotune_file]
                hvd::engine engine{world};
                hvd::autotune_options options{.max_steps = 500, .file = path};
                auto tuner = hvd::autotune_with_file(engine, hvd::fuse(w, b), options);
                while (!tuner.is_over()) {
                    engine.allreduce("layer", hvd::fuse(w, b), hvd::average).wait();
                    tuner.step();
                }
                //! [autotune_file]
                CHECK((tuner.result().steps == 0) == has_known);
                if (world.rank() == 0 && !has_known) chosen = engine.tuned();
                if (has_known) CHECK(engine.tuned() == chosen);
            });
        };
        run(false, 3);
        run(true, 3);
        run(false, 4);  // another tensor
        run(true, 4);
        CHECK(hvd::autotune_file(path).entries().size() == 2);
    }
}

TEST_CASE("the file of rank 0 counts, whatever the others have") {
    for (const int ranks : {2, 3}) {
        const std::string path = folder / ("root" + std::to_string(ranks) + ".json");
        hvd_test::run_threads(ranks, [&](auto& world) {
            std::vector<float> w(100);
            if (world.rank() == 0) {
                hvd::autotune_file file(path);
                file.put(hvd::tuning_key_of(world, w),
                         {.chosen = {.tuning = {.chunk_bytes = 4096}}});
                file.write();
            }
            world.barrier();
            for (const bool root_has : {true, false}) {
                const bool has = (world.rank() == 0) == root_has;
                const hvd::autotune_options options{.file = has ? path : "",
                                                    .changed = [](const hvd::engine_tuning&) {}};
                const auto tuner = hvd::autotune_with_file(world, w, options);
                CHECK(tuner.is_over() == root_has);
                if (root_has) CHECK(tuner.result().chosen.tuning.chunk_bytes == 4096);
                world.barrier();
            }
        });
    }
}

TEST_CASE("a communicator has results of its own, and all ranks learn of a wrong file") {
    const std::string path = folder / "wrong.json";
    hvd_test::run_threads(3, [&](auto& world) {
        std::vector<float> w(100);
        const hvd::autotune_options options{.file = path};
        auto key = hvd::tuning_key_of(world, w);
        CHECK(key.ranks == 3);
        CHECK(key.ranks_per_node == 3);
        CHECK(key.backend == "threads");
        CHECK(!key.of_engine);
        CHECK(key.processor != "");
        if (world.rank() == 0) {
            //! [autotune_file_by_hand]
            hvd::autotune_file file(path);
            file.put(hvd::tuning_key_of(world, w), {.chosen = {.tuning = {.chunk_bytes = 4096}}});
            file.write();
            //! [autotune_file_by_hand]
        }
        world.barrier();
        const auto tuner = hvd::autotune_with_file(world, w, options);
        CHECK(tuner.is_over());
        CHECK(tuner.result().chosen.tuning.chunk_bytes == 4096);
        world.barrier();
        if (world.rank() == 0) write_text(path, "{\"results\": [{\"ranks\": \"x\"}]}");
        world.barrier();
        try {
            hvd::autotune_with_file(world, w, options);
            FAIL("no error");
        } catch (const hvd::usage_error& e) {
            CHECK(world.rank() == 0);
            CHECK(std::string(e.what()).find("wrong.json:1: ranks is 'x'") != std::string::npos);
        } catch (const hvd::peer_error& e) {
            CHECK(world.rank() != 0);
            CHECK(std::string(e.what()).find("wrong.json:1: ranks is 'x'") != std::string::npos);
        }
    });
}
