// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A model is saved and loaded without an optimizer's state.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "shared_folder.hpp"

namespace saved_model_tests {

using communicator = hvd_test::communicator;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

template <class T, class Optimizer>
struct model {
    std::vector<T> a, b, own, da, db, d_own;
    hvd::distributed_optimizer<communicator, Optimizer> optimizer;

    model(communicator& comm, float value, Optimizer inside)
        : a(2, T(value)),
          b(3, T(value)),
          own(1, T(float(comm.rank()))),
          da(2, T(1.0f)),
          db(3, T(1.0f)),
          d_own(1),
          optimizer(comm, std::move(inside)) {
        optimizer.register_parameter("a", a, da);
        optimizer.register_local("own", own, d_own);
        optimizer.register_parameter("b", b, db);
    }
};

}  // namespace

TEST_CASE("a model is loaded from its file or a checkpoint, and the optimizer keeps its state") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        using adam = optimizers::adam<float>;
        model<float, adam> saved(world, 5, {}), other(world, float(world.rank()), {});
        saved.optimizer.step();
        other.optimizer.step();
        const std::string path = folder / "model", checkpoint = folder / "checkpoint";
        {
            auto& optimizer = saved.optimizer;
            //! [save_model]
            hvd::save_model(path, optimizer, {{"accuracy", "0.92"}});
            //! [save_model]
        }
        hvd::save_checkpoint(checkpoint, saved.optimizer, {.step = 1});
        for (const std::string& from : {path, checkpoint}) {
            other.a.assign(2, float(world.rank()));
            auto& optimizer = other.optimizer;
            //! [load_model]
            hvd::load_model(from, optimizer);  // or a checkpoint's path
            //! [load_model]
            CHECK(other.a == saved.a);
            CHECK(other.b == saved.b);
            CHECK(other.own[0] == float(world.rank()));
            CHECK(other.optimizer.optimizer().mean[0][0] == doctest::Approx(0.1));
            CHECK(other.optimizer.optimizer().steps.of(0) == 1);
        }
        const hvd::safetensors_file file(path);
        CHECK(file.tensors().size() == 2);
        CHECK(file.metadata() == hvd::checkpoint_metadata{{"accuracy", "0.92"}});
        world.barrier();
    });
}

TEST_CASE(
    "buffers are in checkpoints and in files of a model alone, and a loss scale in progress") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        using adam = optimizers::adam<float>;
        const std::string path = folder / "model", checkpoint = folder / "checkpoint";
        std::vector<float> mean = {1, 2, 3}, other_mean(3, float(world.rank()));
        std::vector<double> variance = {0.5}, other_variance = {double(world.rank())};
        model<float, adam> saved(world, 5, {}), other(world, 3, {}), without(world, 5, {});
        saved.optimizer.register_buffer("mean", mean);
        saved.optimizer.register_buffer("variance", variance);
        other.optimizer.register_buffer("mean", other_mean);
        other.optimizer.register_buffer("variance", other_variance);

        hvd::training_progress progress{.epoch = 2};
        progress.scale = {.value = 128, .interval = 7, .good_steps = 3};
        hvd::save_checkpoint(checkpoint, saved.optimizer, progress);
        CHECK(hvd::load_checkpoint(checkpoint, other.optimizer) == progress);
        CHECK(other_mean == mean);
        CHECK(other_variance == variance);

        mean = {4, 5, 6};
        hvd::save_model(path, saved.optimizer);
        hvd::load_model(path, other.optimizer);
        CHECK(other_mean == mean);
        for (const std::string& file : {path, checkpoint})
            CHECK_THROWS_WITH_AS(hvd::load_model(file, without.optimizer),
                                 doctest::Contains("\"buffer.mean\""), hvd::checkpoint_error);
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(checkpoint, without.optimizer),
                             doctest::Contains("\"buffer.mean\""), hvd::checkpoint_error);
        hvd::save_model(path, without.optimizer);
        CHECK_THROWS_WITH_AS(hvd::load_model(path, other.optimizer),
                             doctest::Contains("\"buffer.mean\""), hvd::checkpoint_error);
        CHECK(other_mean == mean);
    });
}

TEST_CASE("masters begin with the parameters of a model that is loaded") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        using T = hvd::bfloat16;
        using masters = optimizers::float_masters<T, optimizers::sgd<float>>;
        model<T, masters> saved(world, 8, {{.rate = 1}}), other(world, 2, {{.rate = 1}});
        hvd::save_model(folder / "m", saved.optimizer);
        other.optimizer.step();
        hvd::load_model(folder / "m", other.optimizer);
        other.optimizer.step();
        CHECK(float(other.a[1]) == 7);
        world.barrier();
    });
}

TEST_CASE("tensors are saved and loaded under their own names, beside tensors of others") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        const std::string path = folder / "m";
        std::vector<float> w(6, float(world.rank() + 1));
        std::vector<std::int64_t> n = {world.rank()};
        const auto tensors = [&] {
            return std::vector{hvd::named("w", hvd::view(w.data(), hvd::shape(2, 3))),
                               hvd::named("n", n)};
        };
        hvd::save_model(path, world, tensors());
        w.assign(6, -1);
        n = {-1};
        hvd::load_model(path, world, std::vector{tensors()[0]});
        CHECK(w == std::vector<float>(6, 1));
        CHECK(n[0] == -1);
        hvd::load_model(path, world, tensors());
        CHECK(n[0] == 0);
        const auto refused = [&](const std::vector<hvd::named_tensor>& list, const char* reason) {
            w.assign(6, -1);
            CHECK_THROWS_WITH_AS(hvd::load_model(path, world, list), doctest::Contains(reason),
                                 hvd::checkpoint_error);
            CHECK(w == std::vector<float>(6, -1));
        };
        std::vector<float> absent = {1};
        refused({tensors()[0], hvd::named("absent", absent)}, "has no tensor \"absent\"");
        refused({tensors()[0], hvd::named("n", absent)}, "\"n\" is of int64");
        world.barrier();
    });
}

TEST_CASE("a file of another model is refused and changes nothing") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        model<float, optimizers::sgd<float>> loaded(world, 1, {});
        std::vector<float> a(2, 3), b(3, 3), c(1, 3);
        const auto refused = [&](const std::vector<hvd::named_tensor>& list, const char* reason) {
            hvd::save_model(folder / "m", world, list);
            CHECK_THROWS_WITH_AS(hvd::load_model(folder / "m", loaded.optimizer),
                                 doctest::Contains(reason), hvd::checkpoint_error);
            CHECK(loaded.a == std::vector<float>(2, 1));
        };
        refused({hvd::named("model.a", a)}, "has no tensor \"model.b\"");
        refused({hvd::named("model.a", a), hvd::named("model.b", b), hvd::named("model.c", c)},
                "has the tensor \"model.c\", which this model has not");
        refused({hvd::named("model.a", b), hvd::named("model.b", b)}, "has shape [3]");
        hvd::save_model(folder / "m", world,
                        std::vector{hvd::named("model.a", a), hvd::named("model.b", b),
                                    hvd::named("another.c", c)});
        hvd::load_model(folder / "m", loaded.optimizer);
        CHECK(loaded.a == a);
        CHECK_THROWS_WITH_AS(hvd::save_model(folder / "absent/m", loaded.optimizer),
                             doctest::Contains("No such file"), hvd::checkpoint_error);
        world.barrier();
    });
}

}  // namespace saved_model_tests
