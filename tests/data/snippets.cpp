// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The examples of docs/data.md and of the headers' comments.

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <hvd/arena.hpp>
#include <hvd/data_formats.hpp>

#include "hvd_test.hpp"
#include "tar_archive.hpp"
#include "temporary_directory.hpp"

namespace data_snippets {

namespace {

//! [source]
// Points of a line: sample i is the pair (i, 2 i + 1).
struct line {
    std::size_t size() const { return 1000; }
    std::array<float, 2> read(std::size_t i) const { return {float(i), float(2 * i + 1)}; }
};
static_assert(hvd::data::source<line>);
//! [source]

}  // namespace

TEST_CASE("permutation snippet") {
    std::vector<std::uint64_t> order;
    //! [permutation]
    const hvd::data::permutation shuffled(1'000'000'000'000, /*seed*/ 42, /*epoch*/ 3);
    for (std::uint64_t i = 0; i < 5; ++i) order.push_back(shuffled(i));  // the first five samples
    const std::uint64_t back = shuffled.position_of(order[4]);           // 4
    //! [permutation]
    CHECK(back == 4);
}

TEST_CASE("alone snippet") {
    //! [alone]
    namespace data = hvd::data;

    std::vector<float> numbers(1000);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i);

    auto batches = data::from(numbers) | data::map([](float x) { return 2 * x; }) |
                   data::shuffle({.seed = 42}) | data::batch(128);
    data::loader loader(batches, hvd::part{.rank = 0, .size = 1});
    double sum = 0;
    for (const std::vector<float>& batch : loader.epoch(0))
        for (const float x : batch) sum += x;
    //! [alone]
    CHECK(sum == 999000);
}

TEST_CASE("pipeline and loader snippets") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        namespace data = hvd::data;
        std::size_t seen = 0, shapes = 0;
        const auto train = [&](const data::rows<float>& batch) {
            seen += batch.size();
            shapes += batch.values.size();
        };
        //! [pipeline]
        auto batches = data::from(line()) |
                       data::map([](std::array<float, 2> point, data::random& draws) {
                           point[1] += float(0.1 * draws.uniform());  // augmentation
                           return point;
                       }) |
                       data::filter([](const auto& point) { return point[0] != 13; }) |
                       data::shuffle({.seed = 42}) |
                       data::batch(128, {.last = data::last_batch::drop}) | data::prefetch(4);
        //! [pipeline]
        //! [loader]
        data::loader loader(batches, world, {.threads = 2});
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch)
            for (const data::rows<float>& batch : loader.epoch(epoch))  // of this rank
                train(batch);
        //! [loader]
        double all = double(seen);
        world.allreduce(all, hvd::sum);
        CHECK(all <= 3 * 7 * 128);
        CHECK(all >= 3 * 7 * 128 - 3);
        CHECK(shapes == 2 * seen);
    });
}

TEST_CASE("resume snippet") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        namespace data = hvd::data;
        std::vector<int> samples(100);
        auto batches = data::from(samples) | data::shuffle({.seed = 42}) | data::batch(10);
        data::loader_state saved{.seed = 42, .epoch = 1, .samples_done = 70};
        int steps = 0;
        //! [resume]
        data::loader loader(batches, world);
        loader.resume(saved);  // of a checkpoint, perhaps of another number of ranks
        for (std::uint64_t epoch = saved.epoch; epoch < 3; ++epoch)
            for (const auto& batch : loader.epoch(epoch)) {
                steps += batch.empty() ? 0 : 1;  // train here
                saved = loader.state();          // this batch counts as done
            }
        //! [resume]
        CHECK(steps == 3 + 10);
        CHECK(saved == data::loader_state{42, 2, 100});
    });
}

TEST_CASE("errors snippet") {
    namespace data = hvd::data;
    const std::vector<std::string> files = {"1", "2", "x", "4"};
    std::string text;
    //! [errors]
    const auto decode = [](const std::string& file) { return std::stoi(file); };
    data::loader strict(data::from(files) | data::map(decode) | data::batch(4), hvd::part{});
    try {
        while (const auto batch = strict.next()) continue;
    } catch (const data::stage_error& e) {
        text = e.what();  // stage 1 (map), sample 2 of epoch 0: stoi
    }

    data::loader tolerant(
        data::from(files) | data::map(decode) | data::skip_errors({.at_most = 10}) | data::batch(4),
        hvd::part{});
    const auto batch = tolerant.next();  // 1, 2, 4; tolerant.skipped() is 1
    //! [errors]
    CHECK(text == "stage 1 (map), sample 2 of epoch 0: stoi");
    CHECK(*batch == std::vector<int>{1, 2, 4});
    CHECK(tolerant.skipped() == 1);
}

TEST_CASE("collate snippet") {
    namespace data = hvd::data;
    //! [collate]
    struct labelled {
        std::vector<float> pixels;
        std::vector<int> labels;
    };
    const std::vector<std::vector<float>> images = {{1, 2}, {3, 4}, {5, 6}};
    const std::vector<int> labels = {7, 8, 9};
    const auto collate = [](const std::vector<std::tuple<std::vector<float>, int>>& samples) {
        labelled batch;
        for (const auto& [image, label] : samples) {
            batch.pixels.insert(batch.pixels.end(), image.begin(), image.end());
            batch.labels.push_back(label);
        }
        return batch;
    };
    data::loader loader(data::from(data::zip(images, labels)) | data::batch(3, collate),
                        hvd::part{});
    //! [collate]
    const auto batch = loader.next();
    CHECK(batch->pixels == std::vector<float>{1, 2, 3, 4, 5, 6});
    CHECK(batch->labels == labels);
}

TEST_CASE("threaded_map snippet") {
    namespace data = hvd::data;
    const std::vector<int> files = {1, 2, 3};
    const auto decode = [](int i) { return 10 * i; };
    const auto crop = [](int x) { return x + 1; };
    std::string line;
    //! [threaded_map]
    auto batches = data::from(files) | data::map(decode, {.threads = 4, .queue = 16}) |
                   data::map(crop, {.threads = 1}) | data::batch(128);
    data::loader loader(batches, hvd::part{}, {.threads = 2});
    const auto batch = loader.next();
    for (const data::stage_statistics& stage : loader.stages())
        line += stage.text() + "\n";  // stage 1 (map): 4 threads, busy in 97 %, …
    //! [threaded_map]
    CHECK(*batch == std::vector<int>{11, 21, 31});
    CHECK(line.find("stage 2 (map): 1 threads") != line.npos);
    const hvd_test::temporary_directory folder;
    const std::string file = folder.path() + "/stages.prom";
    //! [stage_metrics]
    loader.write_prometheus(file);  // hvd_data_stage_busy_seconds_total{rank="0",stage="1"} 3, …
    //! [stage_metrics]
    std::ifstream written(file);
    const std::string metrics{std::istreambuf_iterator<char>(written), {}};
    CHECK(metrics.find("hvd_data_stage_samples_total{rank=\"0\",stage=\"2\"} 3\n") != line.npos);
}

TEST_CASE("into snippet") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        namespace data = hvd::data;
        std::size_t seen = 0;
        const std::uint64_t each = 16, ranks = std::uint64_t(world.size());
        //! [into]
        hvd::arena arena{world, std::size_t(1) << 20};
        auto batches = data::from(line()) | data::equal_batch(each * ranks) | data::into(arena);
        data::loader loader(batches, world);
        for (auto& batch : loader.epoch(0)) {         // its rows are a std::pmr::vector
            world.allreduce(batch.values, hvd::sum);  // reduced where they lie
            seen += batch.size();
        }
        //! [into]
        CHECK(seen == 1000 / (each * ranks) * each);
    });
}

TEST_CASE("formats snippets") {
    namespace data = hvd::data;
    using namespace std::string_literals;
    const hvd_test::temporary_directory folder;
    const auto path = [&](const char* name, const std::string& bytes) {
        const std::string made = (folder / name).string();
        std::ofstream(made, std::ios::binary) << bytes;
        return made;
    };
    const auto images_path = path("images", "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02"s + "abcd"),
               labels_path = path("labels", "\0\0\x08\x01\0\0\0\x02"s + "\1\2");
    //! [idx]
    const data::idx_file images(images_path), labels(labels_path);
    auto mnist = data::from(data::zip(images, labels)) | data::shuffle({.seed = 1}) |
                 data::batch(128);  // of pairs of a std::vector of pixels and one of one label
    //! [idx]
    CHECK(data::loader(mnist, hvd::part{}).next()->size() == 2);

    std::vector<std::uint16_t> tokens(2049, 7);
    const auto tokens_path =
        path("tokens", std::string(reinterpret_cast<const char*>(tokens.data()), 4098));
    //! [tokens]
    const data::token_file tokens_of_text(tokens_path, {.length = 1024, .has_header = false});
    auto windows = data::from(tokens_of_text) | data::shuffle({.seed = 1}) |
                   data::equal_batch(2, data::concatenate);  // one buffer of 2 x 1025 tokens
    //! [tokens]
    CHECK(data::loader(windows, hvd::part{}).next()->values.size() == 2050);

    std::vector<std::string> shards;
    for (int shard = 0; shard < 2; ++shard)
        shards.push_back(
            path(shard == 0 ? "0.tar" : "1.tar",
                 data_tests::tar_archive().file("1.jpg", "picture").file("1.cls", "3").ended()));
    //! [tar]
    std::vector<data::tar_samples> archives;
    for (const std::string& shard : shards) archives.emplace_back(shard);
    auto pictures = data::from(data::chain(std::move(archives))) |
                    data::map([](const data::tar_sample& sample) {
                        return sample["jpg"].size();  // decode here
                    }) |
                    data::shuffle({.seed = 1}) | data::batch(128);
    //! [tar]
    CHECK(*data::loader(pictures, hvd::part{}).next() == std::vector<std::size_t>{7, 7});
}

}  // namespace data_snippets
