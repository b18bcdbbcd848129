// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Checkpoints of steps that are taken in the pass of an allreduce, whose state is in slices.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>
#include <memory_resource>

#include "model.hpp"
#include "several_nodes.hpp"
#include "shared_folder.hpp"

namespace checkpoint_fused_tests {

using communicator = hvd_test::communicator;
using hvd_test::on_several_nodes;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

using sizes = std::vector<std::size_t>;

// Parameters and gradients, their plan and the step.
template <class O>
struct trainee {
    using T = typename O::value_type;
    std::vector<std::pmr::vector<T>> values, gradients;
    std::vector<hvd::tensor_view<T>> value_views, gradient_views;
    hvd::plan<communicator::backend_type> plan;
    hvd::fused_step<O> step;

    trainee(communicator& comm, const sizes& counts, O optimizer, std::vector<std::string> names,
            std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
        : values(made(counts, memory)),
          gradients(made(counts, memory)),
          value_views(views_of(values)),
          gradient_views(views_of(gradients)),
          plan(comm.plan_allreduce(hvd::fuse(gradient_views), hvd::average)),
          step(hvd::fuse(value_views), std::move(optimizer), std::move(names)) {}

    static auto made(const sizes& counts, std::pmr::memory_resource* memory) {
        std::vector<std::pmr::vector<T>> all;
        for (const std::size_t n : counts) {
            all.emplace_back(n, memory);
            for (std::size_t k = 0; k < n; ++k) all.back()[k] = T(hvd_test::noise(k + 7 * n));
        }
        return all;
    }
    static auto views_of(std::vector<std::pmr::vector<T>>& all) {
        std::vector<hvd::tensor_view<T>> views;
        for (auto& x : all) views.push_back(hvd::view(x.data(), x.size()));
        return views;
    }

    // The same gradients on every rank, so their average depends on no number of ranks.
    void set_gradients(int number) {
        for (std::size_t t = 0; t < gradients.size(); ++t)
            for (std::size_t k = 0; k < gradients[t].size(); ++k)
                gradients[t][k] =
                    T(hvd_test::noise(std::uint64_t(number) * 1000003 + k * 31 + t)) / 4;
    }
    void train(int from, int to) {
        for (int n = from; n < to; ++n) {
            set_gradients(n);
            plan.run_and_apply(step);
        }
    }
    std::vector<double> all() const {
        std::vector<double> together;
        for (const auto& v : values) together.insert(together.end(), v.begin(), v.end());
        return together;
    }
    void spoil() {
        for (auto& v : values) std::ranges::fill(v, T(9));
    }
};

const std::vector<std::string> five = {"a", "b", "c", "d", "e"};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double most = a.size() == b.size() ? 0 : 1e9;
    for (std::size_t k = 0; k < a.size() && k < b.size(); ++k)
        most = std::max(most, std::abs(a[k] - b[k]));
    return most;
}

template <class O>
void go_on(communicator& comm, const std::string& path, const sizes& counts, O optimizer,
           std::pmr::memory_resource* memory) {
    trainee<O> whole(comm, counts, optimizer, five, memory);
    whole.train(0, 3);
    hvd::save_checkpoint(path, comm, whole.step, {.step = 3});
    trainee<O> resumed(comm, counts, O{}, five, memory);
    resumed.spoil();
    CHECK(hvd::load_checkpoint(path, comm, resumed.step).step == 3);
    CHECK(resumed.step.steps() == 3);
    CHECK(resumed.step.optimizer().rate == optimizer.rate);
    CHECK(resumed.all() == whole.all());
    // saved again before it has stepped, it is the same
    hvd::save_checkpoint(path, comm, resumed.step, {.step = 3});
    trainee<O> again(comm, counts, O{}, five, memory);
    again.train(0, 2);  // its own state is replaced
    hvd::load_checkpoint(path, comm, again.step);
    whole.train(3, 6);
    resumed.train(3, 6);
    again.train(3, 6);
    CHECK(resumed.all() == whole.all());
    CHECK(again.all() == whole.all());
    CHECK(resumed.step.steps() == whole.step.steps());
    CHECK(resumed.step.state_bytes() == whole.step.state_bytes());
}

void check_going_on(communicator& comm) {
    const shared_folder folder(comm);
    hvd::arena arena{comm, std::size_t(8) << 20};
    for (std::pmr::memory_resource* memory :
         {std::pmr::new_delete_resource(), static_cast<std::pmr::memory_resource*>(&arena)})
        for (const sizes& counts : {sizes{1, 0, 1, 3, 0}, sizes{300, 70001, 0, 1, 2049}}) {
            const std::string path = folder / "c";
            go_on(comm, path, counts, optimizers::adam<float>{.rate = 0.01f}, memory);
            go_on(comm, path, counts, optimizers::adamw<double>{.rate = 0.01, .weight_decay = 0.1},
                  memory);
            go_on(comm, path, counts,
                  optimizers::sgd<float>{.rate = 0.1f, .momentum = 0.5f, .nesterov = true}, memory);
        }
}

}  // namespace

TEST_CASE("a run that steps in the allreduce's pass goes on to the same bits") {
    hvd_test::on_ranks(check_going_on);
    on_several_nodes(check_going_on);
}

TEST_CASE("the ranks that load a fused step are another number than those that saved it") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const shared_folder folder(comm);
        using adam = optimizers::adam<double>;
        const sizes counts = {7, 400, 3, 1, 60};
        const adam optimizer{.rate = 0.05};
        trainee<adam> whole(comm, counts, optimizer, five);
        whole.train(0, 5);
        auto part = comm.split(comm.rank() == 0 ? 0 : 1);
        trainee<adam> of_part(part, counts, optimizer, five);
        of_part.train(0, 3);
        if (comm.rank() > 0) hvd::save_checkpoint(folder / "rest", part, of_part.step, {});
        else hvd::save_checkpoint(folder / "one", part, of_part.step, {});
        comm.barrier();
        for (const char* name : {"rest", "one"}) {
            trainee<adam> resumed(comm, counts, adam{}, five);
            hvd::load_checkpoint(folder / name, comm, resumed.step);
            resumed.train(3, 5);
            CHECK(distance(resumed.all(), whole.all()) < 1e-12);
            CHECK(resumed.step.steps() == 5);
        }
    });
}

TEST_CASE("a fused step and a distributed optimizer load each other's files") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        using adam = optimizers::adam<float>;
        const sizes counts = {6, 40};
        const std::vector<std::string> names = {"weight", "bias"};
        trainee<adam> model(comm, counts, {.rate = 0.01f}, names);
        const auto registered = [&](trainee<adam>& of, bool turned) {
            auto optimizer = std::make_unique<hvd::distributed_optimizer<communicator, adam>>(
                comm, adam{.rate = 0.01f});
            for (const std::size_t i : {turned ? 1 : 0, turned ? 0 : 1})
                optimizer->register_parameter(names[i], of.value_views[i], of.gradient_views[i]);
            return optimizer;
        };
        //! [save_fused]
        model.train(0, 3);
        hvd::save_checkpoint(folder / "fused", comm, model.step, {.epoch = 1});
        //! [save_fused]
        trainee<adam> loose(comm, counts, {}, names);
        const auto optimizer = registered(loose, true);
        CHECK(hvd::load_checkpoint(folder / "fused", *optimizer).epoch == 1);
        CHECK(optimizer->optimizer().steps.of(0) == 3);
        for (int n = 3; n < 5; ++n) {
            loose.set_gradients(n);
            optimizer->step();
        }
        hvd::save_checkpoint(folder / "loose", *optimizer, {.epoch = 2});

        trainee<adam> back(comm, counts, {}, names);
        back.spoil();
        //! [load_fused]
        const auto progress = hvd::load_checkpoint(folder / "loose", comm, back.step);
        //! [load_fused]
        CHECK(progress.epoch == 2);
        CHECK(back.step.steps() == 5);
        back.train(5, 7);
        model.train(3, 7);
        CHECK(distance(back.all(), model.all()) < 1e-5);
    });
}

TEST_CASE("a fused step is saved before its first run, with metadata of the user") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        using sgd = optimizers::sgd<double>;
        trainee<sgd> fresh(comm, {3, 5}, {.rate = 0.5, .momentum = 0.9}, {});
        hvd::save_checkpoint(folder / "c", comm, fresh.step, {}, {{"note", "hello"}});
        const hvd::safetensors_file file(folder / "c");
        CHECK(file.metadata().at("note") == "hello");
        CHECK(file.tensors().size() == 2);
        CHECK(file.tensors().contains("model.1"));
        trainee<sgd> loaded(comm, {3, 5}, {}, {});
        loaded.train(0, 1);
        hvd::load_checkpoint(folder / "c", comm, loaded.step);
        CHECK(loaded.step.state_bytes() == 0);
        fresh.train(0, 2);
        loaded.train(0, 2);
        CHECK(loaded.all() == fresh.all());
        comm.barrier();  // all have read the file
    });
}

TEST_CASE("a checkpoint that a fused step can't go on from is refused and changes nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        using adam = optimizers::adam<float>;
        const std::vector<std::string> names = {"a", "b"};
        trainee<adam> model(comm, {3, 5}, {.rate = 0.5f}, names);
        model.train(0, 1);
        const auto before = model.all();
        const auto refused = [&](trainee<adam>& by, const char* file, const char* why) {
            const auto values = by.all();
            CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / file, comm, by.step),
                                 doctest::Contains(why), hvd::checkpoint_error);
            CHECK(by.all() == values);
            CHECK(by.step.optimizer().rate == 0.5f);
        };
        hvd::save_checkpoint(folder / "c", comm, model.step, {});
        trainee<adam> others(comm, {3, 5}, {.rate = 0.5f}, {"a", "c"});
        refused(others, "c", "has no tensor \"model.c\"");
        trainee<adam> longer(comm, {3, 6}, {.rate = 0.5f}, names);
        refused(longer, "c", "model.b");
        refused(model, "none", "none");

        // A distributed optimizer whose parameters took other numbers of steps.
        hvd::distributed_optimizer optimizer(comm, adam{});
        for (const std::size_t i : {0, 1})
            optimizer.register_parameter(names[i], model.value_views[i], model.gradient_views[i]);
        optimizer.step();
        optimizer.freeze(0);
        optimizer.step();
        hvd::save_checkpoint(folder / "counts", optimizer, {});
        trainee<adam> fresh(comm, {3, 5}, {.rate = 0.5f}, names);
        refused(fresh, "counts", "2 steps of \"b\" and 1 of another");
    });
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        using adam = optimizers::adam<float>;
        trainee<adam> model(comm, {30}, {.rate = 0.5f}, {"a"});
        hvd::distributed_optimizer optimizer(
            comm, adam{}, {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
        optimizer.register_parameter("a", model.value_views[0], model.gradient_views[0]);
        model.set_gradients(0);
        optimizer.step();
        hvd::save_checkpoint(folder / "residuals", optimizer, {});
        CHECK_THROWS_WITH_AS(hvd::load_checkpoint(folder / "residuals", comm, model.step),
                             doctest::Contains("no error feedback"), hvd::checkpoint_error);
    });
}

TEST_CASE("names of a fused step are as many as its parameters, and differ") {
    std::vector<float> a(2), b(3);
    using adam = optimizers::adam<float>;
    CHECK_THROWS_WITH_AS((hvd::fused_step{hvd::fuse(a, b), adam{}, {"a"}}),
                         doctest::Contains("1 names for 2 parameters"), hvd::usage_error);
    CHECK_THROWS_WITH_AS((hvd::fused_step{hvd::fuse(a, b), adam{}, {"a", "a"}}),
                         doctest::Contains("two parameters are named \"a\""), hvd::usage_error);
    CHECK(hvd::fused_step{hvd::fuse(a, b), adam{}}.names() == std::vector<std::string>{"0", "1"});
}

}  // namespace checkpoint_fused_tests
