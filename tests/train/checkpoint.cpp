// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <hvd/checkpoint.hpp>
#include <hvd/data.hpp>
#include <hvd/train.hpp>
#include <numeric>

#include "model.hpp"
#include "shared_folder.hpp"
#include "temporary_directory.hpp"

namespace checkpoint_tests {

using communicator = hvd_test::communicator;
using hvd_test::regression;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

struct run {
    regression model;
    hvd::distributed_optimizer<communicator, optimizers::adam<double>> optimizer;
    explicit run(communicator& comm) : optimizer(comm, optimizers::adam<double>{.rate = 0.02}) {
        model.register_with(optimizer);
    }
    void steps(int first, int last) {
        for (int step = first; step < last; ++step) {
            optimizer.zero_gradients();
            model.backward(step, 0, regression::batch, optimizer.comm().rank(),
                           optimizer.comm().size());
            optimizer.step();
        }
    }
};

std::string file_of(const std::string& header, std::size_t data_bytes) {
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header +
           std::string(data_bytes, '\0');
}

}  // namespace

TEST_CASE(
    "a checkpoint brings back model, optimizer and progress; the run goes on as if uninterrupted") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        run whole(comm), before(comm), after(comm);
        whole.steps(0, 6);
        before.steps(0, 3);
        const hvd::training_progress progress{
            .step = 3, .epoch = 1, .seed = ~std::uint64_t(0), .samples_done = 72};
        hvd::save_checkpoint(folder / "c", before.optimizer, progress,
                             {{"note", "\"quoted\" \xc3\xa9"}});
        CHECK(hvd::load_checkpoint(folder / "c", after.optimizer) == progress);
        after.steps(3, 6);
        CHECK(after.model.all() == whole.model.all());
        CHECK(hvd::safetensors_file(folder / "c").metadata().at("note") == "\"quoted\" \xc3\xa9");
        comm.barrier();
    });
}

TEST_CASE("a run goes on, on another number of ranks") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const shared_folder folder(comm);
        run whole(comm), all(comm);
        whole.steps(0, 6);
        all.steps(0, 3);
        hvd::save_checkpoint(folder / "c", all.optimizer, {.step = 3});
        auto fewer = comm.subset({0});
        if (fewer) {
            run one(fewer);
            hvd::load_checkpoint(folder / "c", one.optimizer);
            one.steps(3, 5);
            hvd::save_checkpoint(folder / "c", one.optimizer, {.step = 5});
        }
        comm.barrier();
        run again(comm);
        CHECK(hvd::load_checkpoint(folder / "c", again.optimizer).step == 5);
        again.steps(5, 6);
        CHECK(hvd_test::distance(again.model.all(), whole.model.all()) < 1e-9);
    });
}

TEST_CASE("a run that stops in the middle of an epoch goes on with the next sample") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        const std::string path = folder / "c";
        constexpr std::size_t batch = 4;
        run before(world), after(world);
        const auto stopped = [&](auto& optimizer) {
            hvd::sharded_sampler sampler(100, world, {.seed = 7});
            //! [save_midway]
            for (std::size_t step = 0; step < sampler.steps(batch); ++step) {
                optimizer.step();  // with sampler.batch(step, batch)
                if (step % 2 == 1)
                    hvd::save_checkpoint(path, optimizer,
                                         {.epoch = 3,
                                          .seed = 7,
                                          .samples_done = sampler.done_after(step + 1, batch)});
                if (step == 2) break;  // the job is stopped
            }
            //! [save_midway]
            return sampler.done_after(2, batch);
        };
        const auto done = stopped(before.optimizer);
        auto& optimizer = after.optimizer;
        //! [load_midway]
        const auto progress = hvd::load_checkpoint(path, optimizer);  // on any number of ranks
        hvd::sharded_sampler sampler(100, world, {.seed = progress.seed});
        sampler.begin_epoch({.epoch = progress.epoch, .done = progress.samples_done});
        //! [load_midway]
        CHECK(progress.samples_done == done);
        CHECK(sampler.steps(batch) * batch * std::size_t(world.size()) >= 100 - done);
    });
}

TEST_CASE("a loader goes on from a checkpoint, on any number of ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        const std::string path = folder / "c";
        run before(comm), after(comm);
        auto& optimizer = before.optimizer;
        std::vector<int> numbers(100);
        std::iota(numbers.begin(), numbers.end(), 0);
        const auto batches =
            hvd::data::from(numbers) | hvd::data::shuffle({.seed = 7}) | hvd::data::batch(9);
        hvd::data::loader loader(batches, comm);
        loader.begin_epoch(3);
        for (int i = 0; i < 4; ++i) (void)loader.next();
        const std::uint64_t step = 37;
        //! [save_loader]
        hvd::save_checkpoint(path, optimizer, hvd::training_progress::at(loader.state(), step));
        //! [save_loader]
        for (int ranks = 1; ranks <= 4; ++ranks) {
            std::vector<std::vector<int>> rest(8), expected(8);
            for (int rank = 0; rank < ranks; ++rank) {
                hvd::data::loader again(batches, hvd::part{rank, ranks}),
                    whole(batches, hvd::part{rank, ranks});
                //! [load_loader]
                const auto progress = hvd::load_checkpoint(path, after.optimizer);
                again.resume(progress);
                //! [load_loader]
                CHECK(progress.step == 37);
                CHECK(again.state() == loader.state());
                whole.begin_epoch(3);
                for (int i = 0; i < 4; ++i) (void)whole.next();
                for (std::size_t i = 0; i < rest.size(); ++i) {
                    const auto mine = again.next(), theirs = whole.next();
                    REQUIRE(mine.has_value() == theirs.has_value());
                    if (!mine) continue;
                    rest[i].insert(rest[i].end(), mine->begin(), mine->end());
                    expected[i].insert(expected[i].end(), theirs->begin(), theirs->end());
                }
            }
            CHECK(rest == expected);
            CHECK(rest[0].size() == 9);
        }
    });
}

TEST_CASE(
    "a checkpoint that cannot be written or read is an error on every rank, with path and reason") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        run some(comm);
        CHECK_THROWS_WITH_AS(hvd::save_checkpoint(folder / "absent/c", some.optimizer, {}),
                             doctest::Contains("No such file or directory"), hvd::checkpoint_error);
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "absent", some.optimizer),
                             doctest::Contains("No such file or directory"), hvd::checkpoint_error);
        int one = 1;
        comm.allreduce(one, hvd::sum);
        CHECK(one == comm.size());
    });
}

TEST_CASE("a torn, foreign or ill-sized file is refused with its reason and changes nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        run saved(comm), loaded(comm);
        saved.steps(0, 2);
        const std::string path = folder / "c";
        hvd::save_checkpoint(path, saved.optimizer, {});
        const std::string whole = content(path);
        const auto before = loaded.model.all();
        const auto refused = [&](const std::string& bytes, const char* reason) {
            comm.barrier();
            if (comm.rank() == 0) write(path, bytes);
            CHECK_THROWS_WITH_AS(hvd::load_checkpoint(path, loaded.optimizer),
                                 doctest::Contains(reason), hvd::checkpoint_error);
            CHECK(loaded.model.all() == before);
            CHECK(loaded.optimizer.optimizer().mean.empty());
        };
        for (const std::size_t size : {std::size_t(0), std::size_t(7)})
            refused(whole.substr(0, size), "not a safetensors file");
        for (const std::size_t size : {std::size_t(8), std::size_t(60), whole.size() - 1})
            refused(whole.substr(0, size), "torn");
        refused(whole + "x", "torn: it has");
        refused("\x89PNG and so on, a picture", "header would have");
        refused(file_of("[1, 2]", 0), "no JSON object");
        refused(file_of("{\"a\": ", 0), "no JSON object");
        refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
                "has 8 bytes and lies in 4");
        refused(
            file_of(
                R"({"a":{"dtype":"F32","shape":[4611686018427387905,8],"data_offsets":[0,32]}})",
                32),
            "impossible shape");
        refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
                "gap at byte");
        refused(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", 8),
                "lies from 8 to 4");
        refused(file_of(R"({"model.w":{"dtype":"X9","shape":[6],"data_offsets":[0,4]}})", 4),
                "is of the unknown type X9");
        refused(file_of(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
                "not described by");
        refused(file_of(R"({"model.w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})", 24),
                "is of float32, and of float64 was expected");
        refused(file_of(R"({"model.w":{"dtype":"F64","shape":[3],"data_offsets":[0,24]}})", 24),
                "has shape [3], expected was [6]");
        refused(file_of("{}", 0), "has no tensor \"model.w\"");
        refused(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
                "has \"__metadata__\" twice");
    });
}

TEST_CASE("if the rank that reads or writes the file throws, all throw checkpoint_error") {
    hvd_test::on_ranks([](communicator& comm) {
        CHECK_THROWS_AS(hvd::detail::on_root_or_all_throw(comm, "reading", [] { throw 7; }),
                        hvd::checkpoint_error);
        comm.barrier();
    });
}

// safetensors.py reads this file. The launch sets its path.
TEST_CASE("a file for Python to read") {
    const char* const path = std::getenv("HVD_TEST_SAFETENSORS");
    if (path == nullptr) return;
    std::vector<float> weight = {1.5f, -2, 3, 4, 5, 6};
    std::vector<hvd::bfloat16> half = {hvd::bfloat16(0.5f)};
    std::vector<std::int64_t> steps = {-7};
    hvd::write_safetensors(
        path,
        std::vector{hvd::named("weight", hvd::view(weight.data(), hvd::shape(2, 3))),
                    hvd::named("half", half), hvd::named("steps", steps)},
        {{"epoch", "3"}});
}

// safetensors.py compares the files that are read with those that the format's own package reads.
TEST_CASE("files that others judge too") {
    const char* const folder = std::getenv("HVD_TEST_CORPUS");
    if (folder == nullptr) return;
    for (const auto& file : std::filesystem::directory_iterator(folder)) try {
            const hvd::safetensors_file read(file.path().string());
            std::printf("%s\n", file.path().filename().c_str());
        } catch (const hvd::checkpoint_error&) {
        }
}

// The same without the package: some of its judgements.
TEST_CASE("odd files are read or refused as the format's own package does") {
    const hvd_test::temporary_directory folder;
    const std::string path = folder / "c";
    const auto reads = [&](const std::string& bytes) {
        write(path, bytes);
        try {
            const hvd::safetensors_file file(path);
            return true;
        } catch (const hvd::checkpoint_error&) {
            return false;
        }
    };
    const std::string one = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    CHECK(reads(file_of(one, 4)));
    CHECK(reads(file_of(" " + one + "\n", 4)));
    CHECK(!reads(file_of("\xef\xbb\xbf" + one, 4)));
    CHECK(!reads(file_of(one + std::string(1, '\0'), 4)));
    CHECK(!reads(file_of(one + std::string("\0garbage", 8), 4)));
    CHECK(reads(file_of(R"({"__metadata__":null})", 0)));
    CHECK(reads(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0)));
    CHECK(!reads(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0)));
    CHECK(reads(file_of(R"({"a":["F32",[1],[0,4]]})", 4)));
    CHECK(reads(file_of(R"({"a\u0000b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)));
    CHECK(!reads(file_of(R"({"a":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}})", 4)));
    CHECK(!reads(file_of(R"({"a":{"dtype":"F8_E5M2","shape":[3],"data_offsets":[0,4]}})", 4)));
    CHECK(!reads(file_of(R"({"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]}})", 4)));
    CHECK(reads(file_of(R"({"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}})", 4)));
    CHECK(reads(file_of(
        R"({"a":{"dtype":"F32","shape":[4611686018427387904,0],"data_offsets":[0,0]}})", 0)));
    CHECK(!reads(
        file_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)));
    // The last of two descriptions of one name holds, and the other one must be readable.
    const auto twice = [&](const std::string& first) {
        return reads(file_of(
            "{\"a\":" + first + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    };
    CHECK(twice(R"({"dtype":"F64","shape":[7],"data_offsets":[9,1],"x":{}})"));
    CHECK(twice(R"(["U8",[3],[8,9]])"));
    CHECK(!twice(R"({"dtype":"F32","shape":[1]})"));
    CHECK(!twice(R"({"dtype":"X9","shape":[1],"data_offsets":[0,4]})"));
    CHECK(!twice(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"));
    CHECK(!twice("7"));
    const auto nested = [&](std::size_t arrays) {
        return reads(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":)" +
                                 std::string(arrays, '[') + std::string(arrays, ']') + "}}",
                             4));
    };
    CHECK(nested(125));
    CHECK(!nested(126));
    CHECK(!reads(file_of(R"({"__metadata__":{"k":[],"k":"2"}})", 0)));
    CHECK(!reads(file_of(R"({"__metadata__":{"k":1,"k":"2"}})", 0)));
}

TEST_CASE("a scalar of a file loads into a variable and into a tensor of one") {
    const hvd_test::temporary_directory folder;
    const std::string path = folder / "c";
    write(path, file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
    float variable = 1;
    std::vector<float> one(1, 1), two(2, 1);
    const hvd::safetensors_file file(path);
    file.read(hvd::named("a", variable));
    file.read(hvd::named("a", one));
    CHECK(variable != 1);
    CHECK(one[0] == variable);
    CHECK_THROWS_AS(file.read(hvd::named("a", two)), hvd::checkpoint_error);
}

}  // namespace checkpoint_tests
