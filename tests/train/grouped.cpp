// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Groups of parameters with rates of their own, against one optimizer for each group.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "model.hpp"
#include "shared_folder.hpp"

namespace grouped_tests {

using communicator = hvd_test::communicator;
using hvd_test::regression;
namespace optimizers = hvd::optimizers;

namespace {

using views = std::vector<hvd::tensor_view<double>>;

// The whole batch on one rank: `first` steps w and b, `second` steps v.
template <class O>
std::vector<double> serial(O first, O second, int steps) {
    regression model;
    for (int step = 0; step < steps; ++step) {
        model.zero();
        model.backward(step, 0, regression::batch, 0, 1);
        first.step(
            views{hvd::view(model.w.data(), model.w.size()), {}, hvd::view(model.b.data(), 1)},
            views{hvd::view(model.dw.data(), model.dw.size()), {}, hvd::view(model.db.data(), 1)});
        second.step(views{{}, hvd::view(model.v.data(), model.v.size())},
                    views{{}, hvd::view(model.dv.data(), model.dv.size())});
    }
    return model.all();
}

// A model whose parameter v is in a group of its own.
template <class O>
struct trainee {
    regression model;
    hvd::distributed_optimizer<communicator, optimizers::grouped<O>> optimizer;

    trainee(communicator& comm, O first, O second) : optimizer(comm, {std::move(first)}) {
        model.register_with(optimizer);
        optimizer.optimizer().add_group(std::move(second), {1});
    }

    void train(int from, int to) {
        for (int step = from; step < to; ++step) {
            optimizer.zero_gradients();
            model.backward(step, 0, regression::batch, optimizer.comm().rank(),
                           optimizer.comm().size(),
                           [&](std::size_t i) { optimizer.gradient_ready(i); });
            optimizer.step();
        }
    }
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double most = 0;
    for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::abs(a[k] - b[k]));
    return most;
}

template <class O>
void compare(communicator& comm, O first, O second) {
    trainee<O> together(comm, first, second);
    together.train(0, 6);
    CHECK(distance(together.model.all(), serial(first, second, 6)) < 1e-12);
    CHECK(distance(together.model.all(), serial(first, first, 6)) > 1e-4);
}

}  // namespace

TEST_CASE("each group takes the step of its own numbers, with any of hvd's optimizers") {
    hvd_test::on_ranks([](communicator& comm) {
        compare<optimizers::sgd<double>>(comm, {.rate = 0.05}, {.rate = 0.01, .weight_decay = 0.1});
        compare<optimizers::sgd<double>>(
            comm, {.rate = 0.02, .momentum = 0.9},
            {.rate = 0.01, .momentum = 0.5, .nesterov = true, .weight_decay = 0.1});
        compare<optimizers::adam<double>>(comm, {.rate = 0.05}, {.rate = 0.01, .beta1 = 0.5});
        compare<optimizers::adamw<double>>(comm, {.rate = 0.05, .weight_decay = 0},
                                           {.rate = 0.05, .weight_decay = 0.5});
        compare<optimizers::adam<double>>(comm, {.rate = 0.05},
                                          {.rate = 0.05, .weight_decay = 0.5});
        compare<optimizers::adadelta<double>>(comm, {.rate = 1},
                                              {.rate = 3, .rho = 0.5, .weight_decay = 0.5});
    });
}

TEST_CASE("a frozen parameter of a group stays, and its group's numbers may change between steps") {
    hvd_test::on_ranks([](communicator& comm) {
        using adam = optimizers::adam<double>;
        trainee<adam> now(comm, {.rate = 0.05}, {.rate = 0.01});
        now.train(0, 2);
        const auto before = now.model.v;
        now.optimizer.freeze(1);
        now.train(2, 3);
        CHECK(now.model.v == before);
        now.optimizer.unfreeze(1);
        CHECK(now.optimizer.optimizer().steps.of(1) == 2);
        now.optimizer.optimizer().group(1).rate = 0;
        const auto w = now.model.w;
        now.train(3, 4);
        CHECK(now.model.v == before);
        CHECK(now.model.w != w);
        CHECK(now.optimizer.optimizer().rate == 0.05);
    });
}

TEST_CASE("a checkpoint has the numbers of each group, and a run goes on to the same bits") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        using adamw = optimizers::adamw<double>;
        const adamw first{.rate = 0.05, .weight_decay = 0},
            second{.rate = 0.02, .weight_decay = 0.5};
        trainee<adamw> whole(comm, first, second);
        whole.train(0, 3);
        hvd::save_checkpoint(folder / "c", whole.optimizer, {.step = 3});
        trainee<adamw> resumed(comm, {}, {});
        CHECK(hvd::load_checkpoint(folder / "c", resumed.optimizer).step == 3);
        CHECK(resumed.optimizer.optimizer().group(1).rate == 0.02);
        whole.train(3, 6);
        resumed.train(3, 6);
        CHECK(resumed.model.all() == whole.model.all());

        const hvd::safetensors_file file(folder / "c");
        CHECK(file.metadata().at("optimizer.rate") == "0.05");
        CHECK(file.metadata().at("optimizer.group1.weight_decay") == "0.5");
        CHECK(file.tensors().contains("optimizer.mean.v"));
        comm.barrier();  // the file is read before its maker removes it
    });
}

TEST_CASE("a checkpoint with other groups is refused and changes nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        using sgd = optimizers::sgd<double>;
        trainee<sgd> two(comm, {.rate = 0.05, .momentum = 0.9}, {.rate = 0.02});
        two.train(0, 1);
        hvd::save_checkpoint(folder / "two", two.optimizer, {});
        trainee<sgd> three(comm, {.rate = 7}, {});
        three.optimizer.optimizer().add_group({}, {2});
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "two", three.optimizer),
                             doctest::Contains("\"optimizer.group2.rate\""), hvd::checkpoint_error);
        regression model;
        hvd::distributed_optimizer one(comm, sgd{.rate = 7});
        model.register_with(one);
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "two", one),
                             doctest::Contains("\"optimizer.group1."), hvd::checkpoint_error);
        CHECK(three.optimizer.optimizer().rate == 7);
        CHECK(one.optimizer().rate == 7);
    });
}

TEST_CASE("the numbers of groups are broadcast, and ranks that differ in them are told") {
    hvd_test::on_ranks([](communicator& comm) {
        using sgd = optimizers::sgd<double>;
        const auto mine = double(comm.rank());
        trainee<sgd> now(comm, {}, {.rate = 0.01 * (1 + mine)});
        if (comm.size() > 1)
            CHECK_THROWS_WITH_AS(now.train(0, 1), doctest::Contains("group1.rate"),
                                 hvd::mismatch_error);
        hvd::broadcast_optimizer_state(now.optimizer);
        CHECK(now.optimizer.optimizer().group(1).rate == 0.01);
        now.train(0, 1);

        regression model;
        hvd::distributed_optimizer other(comm, optimizers::grouped<sgd>{});
        model.register_with(other);
        if (comm.rank() > 0) other.optimizer().add_group({}, {2, 0});
        if (comm.size() > 1)
            CHECK_THROWS_WITH_AS(other.step(), doctest::Contains("parameters of groups"),
                                 hvd::mismatch_error);
    });
}

TEST_CASE("groups of parameters with masters, and of tables, step as without groups") {
    hvd_test::on_ranks([](communicator& comm) {
        using adam = optimizers::adam<float>;
        const adam slow{.rate = 0.01f}, fast{.rate = 0.1f};
        const auto trained = [&]<class O>(O optimizer, auto element, bool sparse) {
            using T = decltype(element);
            std::vector<T> a(6, T(1)), da(6), b(6, T(1)), db(6);
            hvd::distributed_optimizer all(comm, std::move(optimizer));
            for (auto [name, value, gradient] : {std::tuple("a", &a, &da), {"b", &b, &db}})
                if (sparse) all.register_sparse(name, *value, *gradient, 2);
                else all.register_parameter(name, *value, *gradient);
            for (int step = 0; step < 3; ++step) {
                all.zero_gradients();
                for (const std::size_t i : {0, 1})
                    if (sparse) all.gradient_ready(i, hvd::sparse_rows<T>{{1}, {T(1), T(2)}});
                    else (i == 0 ? da : db).assign(6, T(1));
                all.step();
            }
            std::vector<float> both(a.begin(), a.end());
            both.insert(both.end(), b.begin(), b.end());
            return both;
        };
        // The first half is that of a slow optimizer, the second that of a fast one.
        const auto check = [&](auto of_slow, auto of_fast, auto of_groups, auto element,
                               bool sparse) {
            auto expected = trained(of_slow, element, sparse);
            const auto second = trained(of_fast, element, sparse);
            std::copy(second.begin() + 6, second.end(), expected.begin() + 6);
            CHECK(trained(of_groups, element, sparse) == expected);
            CHECK(second != expected);
        };
        optimizers::grouped<adam> groups{slow};
        groups.add_group(fast, {1});
        using half = hvd::bfloat16;
        check(optimizers::float_masters<half, adam>{slow},
              optimizers::float_masters<half, adam>{fast},
              optimizers::float_masters<half, optimizers::grouped<adam>>{groups}, half(), false);
        using lazy = optimizers::lazy_rows<adam>;
        check(lazy{slow}, lazy{fast}, optimizers::lazy_rows<optimizers::grouped<adam>>{groups},
              float(), true);
        optimizers::grouped<lazy> of_lazy{{slow}};
        of_lazy.add_group({fast}, {1});
        check(lazy{slow}, lazy{fast}, of_lazy, float(), true);
        using sgd = optimizers::sgd<float>;
        optimizers::grouped<sgd> plain{{.rate = 0.5f}};
        plain.add_group({.rate = 0.25f}, {1});
        CHECK(plain.steps_rows());
        check(sgd{.rate = 0.5f}, sgd{.rate = 0.25f}, plain, float(), true);
        plain.group(1).weight_decay = 0.5f;  // then tables are stepped whole
        CHECK_FALSE(plain.steps_rows());
    });
}

TEST_CASE("a parameter is in one group, and must exist") {
    optimizers::grouped<optimizers::sgd<float>> groups{};
    CHECK(groups.add_group({}, {3, 1}) == 1);
    CHECK_THROWS_WITH_AS(groups.add_group({}, {0, 3}),
                         doctest::Contains("parameter 3 is in group 1 already"), hvd::usage_error);
    CHECK_THROWS_WITH_AS(groups.add_group({}, {5, 0, 5}), doctest::Contains("parameter 5 is twice"),
                         hvd::usage_error);
    CHECK(groups.groups() == 2);
    CHECK(groups.group_of(1) == 1);
    CHECK(groups.group_of(0) == 0);
    CHECK_THROWS_WITH_AS(groups.group(2), doctest::Contains("no group 2"), hvd::usage_error);
    hvd_test::on_ranks([](communicator& comm) {
        trainee<optimizers::sgd<double>> now(comm, {}, {});
        now.optimizer.optimizer().add_group({}, {0, 3});
        CHECK_THROWS_WITH_AS(now.train(0, 1),
                             doctest::Contains("group 2 has parameter 3, and there are 3"),
                             hvd::usage_error);
    });
}

}  // namespace grouped_tests
