// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Local parameters differ between ranks, and are in checkpoints nevertheless.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "shared_folder.hpp"

namespace checkpoint_local_tests {

using communicator = hvd_test::communicator;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

// A shared parameter between two local ones.
struct model {
    std::vector<float> first, shared, last, d_first, d_shared, d_last;
    hvd::distributed_optimizer<communicator, optimizers::adam<float>> optimizer;

    explicit model(communicator& comm)
        : first(6, float(comm.rank())),
          shared(3, 1),
          last(2, 10 + float(comm.rank())),
          d_first(6),
          d_shared(3),
          d_last(2),
          optimizer(comm, optimizers::adam<float>{.rate = 0.25f}) {
        optimizer.register_local("first", hvd::view(first.data(), hvd::shape(2, 3)),
                                 hvd::view(d_first.data(), hvd::shape(2, 3)));
        optimizer.register_parameter("shared", shared, d_shared);
        optimizer.register_local("last", last, d_last);
    }
    void steps(int from, int to) {
        const float own = float(optimizer.comm().rank() + 1);
        for (int step = from; step < to; ++step) {
            d_first.assign(6, own * float(step + 1));
            d_shared.assign(3, own);
            d_last.assign(2, -own * float(step % 2 + 1));
            optimizer.step();
        }
    }
    std::vector<float> all() const {
        std::vector<float> values = first;
        values.insert(values.end(), shared.begin(), shared.end());
        values.insert(values.end(), last.begin(), last.end());
        return values;
    }
};

}  // namespace

TEST_CASE("local parameters go on as if uninterrupted, on every rank with its own") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        model whole(comm), before(comm), after(comm);
        whole.steps(0, 5);
        before.steps(0, 3);
        hvd::save_checkpoint(folder / "c", before.optimizer, {.step = 3});
        after.steps(0, 1);
        CHECK(hvd::load_checkpoint(folder / "c", after.optimizer).step == 3);
        CHECK(after.all() == before.all());
        after.steps(3, 5);
        CHECK(after.all() == whole.all());
        const hvd::safetensors_file file(folder / "c");
        for (int r = 0; r < comm.size(); ++r) {
            const std::string rank = "local." + std::to_string(r) + ".";
            CHECK(file.tensors().at(rank + "model.first").shape == std::vector<std::size_t>{2, 3});
            CHECK(file.tensors().contains(rank + "optimizer.variance.last"));
            CHECK(file.tensors().contains(rank + "optimizer.steps.last"));
        }
        comm.barrier();
    });
}

TEST_CASE("slots that a local parameter of the file has not are gone after it is loaded") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        model saved(comm), loaded(comm);
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        loaded.steps(0, 2);
        hvd::load_checkpoint(folder / "c", loaded.optimizer);
        CHECK(loaded.all() == saved.all());
        for (const std::size_t i : {0u, 1u, 2u}) {
            CHECK(loaded.optimizer.optimizer().mean[i].empty());
            CHECK(loaded.optimizer.optimizer().steps.of(i) == 0);
        }
        comm.barrier();
    });
}

TEST_CASE("local parameters need as many ranks as before, unless they are to stay as they are") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const shared_folder folder(comm);
        model saved(comm);
        saved.steps(0, 2);
        hvd::save_checkpoint(folder / "c", saved.optimizer, {.step = 2});
        hvd::save_checkpoint(folder / "without", saved.optimizer, {.step = 2}, {},
                             {.local = false});
        if (auto fewer = comm.subset({0})) {
            model one(fewer);
            const auto before = one.all();
            CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "c", one.optimizer),
                                 doctest::Contains("and 1 load it: with .local = false"),
                                 hvd::checkpoint_error);
            CHECK(one.all() == before);
            for (const char* name : {"c", "without"}) {
                one.shared.assign(3, -1);
                one.steps(0, 1);
                const auto first = one.first;
                hvd::load_checkpoint(folder / name, one.optimizer, {.local = false});
                CHECK(one.shared == saved.shared);
                CHECK(one.first == first);
                CHECK(one.optimizer.optimizer().steps.of(0) > 0);
            }
        }
        comm.barrier();
        model all(comm);
        const auto first = all.first;
        hvd::load_checkpoint(folder / "without", all.optimizer);  // it has none
        CHECK(all.first == first);
        CHECK(all.shared == saved.shared);
        comm.barrier();
    });
}

TEST_CASE("a local slot that does not fit its parameter is not written, whichever rank has it") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        model saved(comm);
        saved.steps(0, 1);
        if (comm.rank() == comm.size() - 1) saved.optimizer.optimizer().mean[2].push_back(1);
        CHECK_THROWS(hvd::save_checkpoint(folder / "c", saved.optimizer, {}));
        saved.optimizer.optimizer().mean[2].resize(2);
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        comm.barrier();
    });
}

TEST_CASE("a local parameter without elements is saved and loaded") {
    hvd_test::on_ranks([](communicator& world) {
        const hvd_test::shared_folder folder(world);
        std::vector<float> w(2, 1), dw(2, 1), none, d_none;
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.momentum = 0.9f});
        optimizer.register_parameter("w", w, dw);
        optimizer.register_local("none", none, d_none);
        optimizer.step();
        const std::vector<float> stepped = w;
        hvd::save_checkpoint(folder / "checkpoint", optimizer, {});
        w.assign(2, 0);
        hvd::load_checkpoint(folder / "checkpoint", optimizer);
        CHECK(w == stepped);
    });
}

}  // namespace checkpoint_local_tests
