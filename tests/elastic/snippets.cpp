// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include <hvd/data.hpp>

#include "elastic_test.hpp"
#include "temporary_directory.hpp"

using namespace std::chrono_literals;
using hvd_test::elastic_job;

namespace {

//! [run_elastic]
double train(const hvd::elastic::options& options = {}) {
    std::vector<float> weights(3, 0), gradient(3);
    hvd::optimizers::sgd<float> sgd{.rate = 0.1f, .momentum = 0.9f};
    hvd::elastic::state state{weights, sgd};  // what must not be lost

    hvd::elastic::run(
        state,
        [&](hvd::communicator<hvd::tcp>& world) {
            hvd::distributed_optimizer optimizer{world, sgd};  // refers to it
            optimizer.register_parameter("weights", weights, gradient);
            while (state.step() < 20) {
                for (std::size_t i = 0; i < 3; ++i) gradient[i] = weights[i] - 1;
                optimizer.step();
                state.commit();  // after the last collective of the step
            }
        },
        options);
    return weights[0];
}
//! [run_elastic]

//! [local]
std::size_t collect(const hvd::elastic::options& options, std::int64_t steps) {
    std::vector<float> weights(3, 0);
    std::vector<float> replay;  // what this rank has seen
    std::mt19937 random(std::uint32_t(options.tcp.rank));
    hvd::elastic::local own_replay{replay};
    hvd::elastic::local own_random{random};
    hvd::elastic::state state{weights, own_replay, own_random};

    hvd::elastic::run(
        state,
        [&](hvd::communicator<hvd::tcp>& world) {
            for (const auto& [rank, seen] : own_replay.copies_of_lost())  // they are here
                replay.insert(replay.end(), seen.begin(), seen.end());
            for (const int rank : own_replay.lost_without_copy())  // the same on all ranks
                std::printf("both copies of rank %d are lost\n", rank);
            while (state.step() < steps) {
                replay.push_back(float(random() % 1000));
                std::vector<float> gradient(3, replay.back());
                world.allreduce(gradient, hvd::average);
                for (std::size_t i = 0; i < 3; ++i) weights[i] += gradient[i];
                state.commit();  // sends a copy of replay and random to another rank
            }
        },
        options);
    return replay.size();
}
//! [local]

// Calls learn(world, model, batch) for the samples of two epochs.
template <class Learn>
void learn_all(const std::vector<int>& samples, std::vector<float>& model, Learn learn,
               const hvd::elastic::options& options) {
    //! [loader]
    namespace data = hvd::data;
    auto batches = data::from(samples) | data::shuffle({.seed = 1}) | data::batch(16);
    data::loader_state position{.seed = 1};
    hvd::elastic::state state{model, position};
    hvd::elastic::run(
        state,
        [&](hvd::communicator<hvd::tcp>& world) {
            data::loader loader(batches, world);
            loader.resume(position);
            for (std::uint64_t epoch = position.epoch; epoch < 2; ++epoch)
                for (const auto& batch : loader.epoch(epoch)) {
                    learn(world, model, batch);
                    position = loader.state();
                    state.commit();
                }
        },
        options);
    //! [loader]
}

struct scaler {
    std::map<std::string, float> scales;
};

}  // namespace

//! [saved]
template <>
struct hvd::elastic::saved<scaler> {
    using copy = scaler;
    static void take(const scaler& object, copy& to) { to = object; }
    static void put_back(const copy& from, scaler& object) { object = from; }
    template <class Comm>
    static void synchronize(Comm& comm, scaler& object, hvd::root from) {
        std::vector<std::string> names;
        std::vector<float> values;
        for (const auto& [name, value] : object.scales) {
            names.push_back(name);
            values.push_back(value);
        }
        comm.broadcast_object(names, from);
        comm.broadcast_object(values, from);
        object.scales.clear();
        for (std::size_t i = 0; i < names.size(); ++i) object.scales[names[i]] = values[i];
    }
};
//! [saved]

TEST_CASE("an elastic trainer is the trainer of one rank, on any number") {
    const double alone = train();
    CHECK(alone != 0);
    for (const int size : {2, 3}) {
        elastic_job job(size);
        std::vector<double> all(static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
            job.start(r, [&, r](auto& o) { all[std::size_t(r)] = train(o); });
        job.await();
        for (const double x : all) CHECK(x == doctest::Approx(alone));
    }
}

TEST_CASE("an elastic job learns each sample once in an epoch, with a rank that leaves") {
    std::vector<int> samples(100);
    std::iota(samples.begin(), samples.end(), 0);
    for (const int size : {1, 2, 3, 4})
        for (const int leaves_at : {0, 3, 9}) {
            elastic_job job(size);
            for (int r = 0; r < size; ++r)
                job.start(r, [&, r](auto& o) {
                    std::vector<float> times(100, 0);
                    int step = 0;
                    const bool leaves = r > 0 && r == size - 1;
                    const auto learn = [&](auto& world, auto& model, const auto& batch) {
                        if (leaves && step++ == leaves_at) throw std::runtime_error("leaves");
                        std::vector<float> mine(100, 0);
                        for (const int sample : batch) ++mine[std::size_t(sample)];
                        world.allreduce(mine, hvd::sum);
                        for (std::size_t i = 0; i < 100; ++i) model[i] += mine[i];
                    };
                    if (leaves) CHECK_THROWS(learn_all(samples, times, learn, o));
                    else learn_all(samples, times, learn, o);
                    if (!leaves) CHECK(times == std::vector<float>(100, 2));
                });
            job.await();
        }
}

TEST_CASE("an elastic job with objects that differ is that of undisturbed ranks") {
    elastic_job job(3);
    for (int r = 0; r < 3; ++r) job.start(r, [&](auto& o) { CHECK(collect(o, 20) == 20); });
    job.await();
}

TEST_CASE("float masters by reference live through the epochs") {
    // Each step is too small for 16 bits, and would be lost without the masters.
    const auto train_in_16_bits = [](const hvd::elastic::options& options, bool fails) {
        using hvd::bfloat16;
        std::vector<bfloat16> weights(3, bfloat16(1)), gradient(3, bfloat16(1));
        hvd::optimizers::float_masters<bfloat16, hvd::optimizers::sgd<float>> sgd{{.rate = 1e-3f}};
        hvd::elastic::state state{weights, sgd};
        hvd::elastic::run(
            state,
            [&](auto& world) {
                hvd::distributed_optimizer optimizer{
                    world, hvd::optimizers::by_reference{sgd}, {.skip_nonfinite = true}};
                optimizer.register_parameter("weights", weights, gradient);
                hvd::loss_scale scale{.value = 8};
                while (state.step() < 20) {
                    for (bfloat16& g : gradient) g = bfloat16(8);
                    scale.step(optimizer);
                    state.commit();
                    if (fails && state.step() % 3 == 0) throw hvd::peer_error(0, "as if", {});
                }
            },
            options);
        CHECK(sgd.master[0][0] == doctest::Approx(0.98));
        return float(weights[0]);
    };
    hvd::elastic::options alone;
    alone.tcp = {};
    const float undisturbed = train_in_16_bits(alone, false);
    CHECK(undisturbed < 1);
    elastic_job job(2);
    for (int r = 0; r < 2; ++r)
        job.start(r, [&](auto& o) { CHECK(train_in_16_bits(o, true) == undisturbed); });
    job.await();
}

TEST_CASE("a job commits every tenth step") {
    int object = 0;
    hvd::elastic::state state(object);
    while (state.step() < 20) {
        ++object;
        //! [end_step]
        state.end_step();
        if (state.step() % 10 == 0) state.commit();
        //! [end_step]
    }
    state.end_step();
    object = 0;
    state.restore();
    CHECK(object == 20);
    CHECK(state.step() == 20);
}

TEST_CASE("a job asks more often than it commits") {
    int object = 0;
    hvd::elastic::state state(object);
    while (state.step() < 100) {
        ++object;
        //! [check_host_updates]
        state.end_step();
        if (state.step() % 100 == 0) state.commit();
        else if (state.step() % 10 == 0) state.check_host_updates();
        //! [check_host_updates]
    }
    object = 0;
    state.restore();
    CHECK(object == 100);
}

TEST_CASE("a rank tells the launcher how many samples it has done") {
    elastic_job job(3, true);
    for (int r = 0; r < 3; ++r)
        job.start(r, [](auto& o) {
            const std::vector<int> labels(32);
            double loss = 0;
            hvd::elastic::state state(loss);
            hvd::elastic::run(
                state,
                [&](auto&) {
                    while (state.step() < 3) {
                        //! [samples]
                        state.commit({.samples = std::ssize(labels)});  // of this rank's batch
                        //! [samples]
                    }
                },
                o);
            CHECK(state.step() == 3);
        });
    job.await();
}

TEST_CASE("options of a program") {
    //! [elastic_options]
    hvd::elastic::options options;
    options.bounds.min_size = 2;  // ranks
    options.bounds.straggler_timeout = 10s;
    options.communicator.timeout = 60s;
    //! [elastic_options]
    CHECK(options.bounds.max_size == 0);
}

namespace {

// Objects of all kinds. Those of ranks differ, also in their sizes.
struct objects {
    explicit objects(int n)
        : vector(std::size_t(n + 1), float(n)),
          tensors(std::size_t(n + 1), std::vector<double>(std::size_t(n + 2), n)),
          memory(6, n),
          views{hvd::view(memory.data(), 2), hvd::view(memory.data() + 2, 4)},
          number(n),
          text("rank " + std::to_string(n)),
          own{{{"a", float(n)}}} {
        adam.rate = float(n);
        adam.mean.assign(std::size_t(n), {float(n)});
        for (int g = 3; g < n + 1; ++g) groups.add_group({.rate = float(g)}, {std::size_t(g)});
    }
    std::vector<float> vector;
    std::vector<std::vector<double>> tensors;
    std::vector<int> memory;
    std::vector<hvd::tensor_view<int>> views;
    std::int64_t number;
    std::string text;
    scaler own;
    hvd::optimizers::adam<float> adam;
    hvd::optimizers::grouped<hvd::optimizers::sgd<float>> groups;

    // Loses the values, and keeps the sizes of what a file does not resize.
    void spoil() {
        std::ranges::fill(vector, -1.0f);
        for (auto& t : tensors) std::ranges::fill(t, -1);
        std::ranges::fill(memory, -1);
        number = -1;
        text = "another";
        adam.rate = -1;
        adam.mean.clear();
        groups.more[0].rate = -1;
    }
    bool is_that_of(int n) const {
        const objects other(n);
        return vector == other.vector && tensors == other.tensors && memory == other.memory &&
               number == n && text == other.text && own.scales == other.own.scales &&
               adam.rate == other.adam.rate && adam.mean == other.adam.mean &&
               groups.members == other.groups.members &&
               groups.more[0].rate == other.groups.more[0].rate;
    }
};

}  // namespace

TEST_CASE("all kinds of objects go to newcomers, and come back after a failure") {
    elastic_job job(2, true);
    std::vector<int> good(2, 0);
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            objects mine(r + 3);
            hvd::tensor_view<int> view = mine.views[0];
            hvd::elastic::state state(mine.vector, mine.tensors, view, mine.views, mine.number,
                                      mine.text, mine.own, mine.adam, mine.groups);
            int epochs = 0, first = 0;
            hvd::elastic::run(
                state,
                [&](auto& comm) {
                    ++epochs;
                    for (int n : {3, 4})
                        if (mine.is_that_of(n)) first = n;
                    if (first != 0 && mine.is_that_of(first)) ++good[std::size_t(r)];
                    if (epochs > 1) return;
                    state.commit();
                    mine.vector.clear();
                    mine.tensors.clear();
                    mine.memory.assign(6, -1);
                    mine.text = "half a step";
                    mine.adam.mean.clear();
                    comm.barrier();
                    throw hvd::peer_error(comm.rank(), "as if a rank were lost", {});
                },
                o);
        });
    job.await();
    CHECK(good == std::vector<int>{2, 2});
}

TEST_CASE("groups inside other wrappers go to newcomers and into files") {
    using masters =
        hvd::optimizers::float_masters<hvd::bfloat16,
                                       hvd::optimizers::grouped<hvd::optimizers::sgd<float>>>;
    masters all{{{.rate = 1}}};
    all.add_group({.rate = 2}, {1});
    all.master = {{1, 2}, {3}};
    const auto is_equal = [&](const masters& other) {
        return other.members == all.members && other.more.size() == 1 && other.more[0].rate == 2 &&
               other.rate == 1 && other.master == all.master;
    };
    elastic_job job(2, true);
    std::vector<bool> has_groups[2];
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            masters mine{{{.rate = 3}}};
            if (r == 0) mine = all;
            hvd::elastic::state state(mine);
            hvd::elastic::run(
                state, [&](auto&) { has_groups[r] = {is_equal(mine), mine.more.empty()}; }, o);
        });
    job.await();
    CHECK(has_groups[0].size() == 2);
    CHECK(has_groups[0] == has_groups[1]);
    CHECK(has_groups[0] != std::vector{false, false});  // those of one of them

    std::vector<std::byte> bytes;
    hvd::detail::peer_writer to(bytes);
    hvd::detail::kept_object<masters>::write(to, all);
    masters read;
    hvd::detail::peer_reader from(bytes);
    hvd::detail::kept_object<masters>::read(from, read);
    CHECK(is_equal(read));
}

TEST_CASE("all kinds of objects are with another rank when theirs is lost") {
    elastic_job job(2, true);
    int good = 0;
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            objects mine(r + 3);
            namespace elastic = hvd::elastic;
            elastic::local vector(mine.vector);
            elastic::local tensors(mine.tensors);
            elastic::local views(mine.views);
            elastic::local number(mine.number);
            elastic::local text(mine.text);
            elastic::local adam(mine.adam);
            elastic::local groups(mine.groups);
            elastic::state state(vector, tensors, views, number, text, adam, groups);
            const auto work = [&](auto& comm) {
                if (comm.size() == 2) {
                    state.commit();
                    if (r == 1) throw std::runtime_error("leaves");
                    comm.barrier();
                }
                const objects other(4);
                CHECK(mine.is_that_of(3));
                CHECK(vector.copies_of_lost().at(0).object == other.vector);
                CHECK(tensors.copies_of_lost().at(0).object == other.tensors);
                CHECK(views.copies_of_lost().at(0).object[1] == std::vector<int>(4, 4));
                CHECK(number.copies_of_lost().at(0).object == 4);
                CHECK(text.copies_of_lost().at(0).object == other.text);
                CHECK(adam.copies_of_lost().at(0).object.rate == other.adam.rate);
                CHECK(adam.copies_of_lost().at(0).object.mean == other.adam.mean);
                CHECK(groups.copies_of_lost().at(0).object.members == other.groups.members);
                CHECK(groups.copies_of_lost().at(0).object.more[0].rate ==
                      other.groups.more[0].rate);
                ++good;
            };
            if (r == 0) hvd::elastic::run(state, work, o);
            else CHECK_THROWS_AS(hvd::elastic::run(state, work, o), std::runtime_error);
        });
    job.await();
    CHECK(good == 1);
}

TEST_CASE("all kinds of objects are kept in a file") {
    const hvd_test::temporary_directory made;
    const std::string directory = made.path();
    const auto with_state = [](objects& of, auto f) {
        hvd::tensor_view<int> view = of.views[0];
        hvd::elastic::state state(of.vector, of.tensors, view, of.views, of.number, of.text,
                                  of.adam, of.groups);
        f(state);
    };
    objects mine(4), other(4);
    other.spoil();
    with_state(mine, [&](auto& state) {
        //! [persist_in]
        state.persist_in(directory, {.every = 10});  // before elastic::run
        //! [persist_in]
        state.resume_from(9);
        hvd::elastic::options o;
        o.tcp = {};
        hvd::elastic::run(state, [&](auto&) { state.commit(); }, o);
    });
    with_state(other, [&](auto& state) {
        state.persist_in(directory);
        hvd::detail::elastic_access::read_kept(state);
        CHECK(state.step() == 10);
        CHECK(state.persisted().step == 10);
    });
    CHECK(other.is_that_of(4));
}
