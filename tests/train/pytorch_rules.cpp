// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The optimizers against a serial reference that follows the formulas in PyTorch's documentation of
// torch.optim.SGD, Adam, AdamW and Adadelta.

#include <algorithm>
#include <cmath>
#include <optional>

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "model.hpp"
#include "shared_folder.hpp"

namespace pytorch_rules_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

// One element by PyTorch's SGD with dampening=0.
struct sgd_element {
    std::optional<double> buffer = {};

    template <class O>
    void step(const O& o, double& p, double g) {
        if (o.weight_decay != 0) g += double(o.weight_decay) * p;
        if (o.momentum != 0) {
            buffer = buffer ? double(o.momentum) * *buffer + g : g;
            if (o.nesterov) g += double(o.momentum) * *buffer;
            else g = *buffer;
        }
        p -= double(o.rate) * g;
    }
};

// One element by PyTorch's Adam, or with Decoupled by AdamW.
template <bool Decoupled>
struct adam_element {
    double mean = 0, variance = 0;
    int steps = 0;

    template <class O>
    void step(const O& o, double& p, double g) {
        ++steps;
        if (Decoupled) p -= double(o.rate) * double(o.weight_decay) * p;
        else if (o.weight_decay != 0) g += double(o.weight_decay) * p;
        mean = double(o.beta1) * mean + (1 - double(o.beta1)) * g;
        variance = double(o.beta2) * variance + (1 - double(o.beta2)) * g * g;
        const double m = mean / (1 - std::pow(double(o.beta1), steps)),
                     v = variance / (1 - std::pow(double(o.beta2), steps));
        p -= double(o.rate) * m / (std::sqrt(v) + double(o.epsilon));
    }
};

// One element by PyTorch's Adadelta.
struct adadelta_element {
    double squares = 0, changes = 0;

    template <class O>
    void step(const O& o, double& p, double g) {
        if (o.weight_decay != 0) g += double(o.weight_decay) * p;
        const double rho = double(o.rho), epsilon = double(o.epsilon);
        squares = rho * squares + (1 - rho) * g * g;
        const double change = std::sqrt(changes + epsilon) / std::sqrt(squares + epsilon) * g;
        changes = rho * changes + (1 - rho) * change * change;
        p -= double(o.rate) * change;
    }
};

template <class O>
struct element_of;
template <class T>
struct element_of<optimizers::sgd<T>> : sgd_element {};
template <class T, bool Decoupled>
struct element_of<optimizers::adam<T, Decoupled>> : adam_element<Decoupled> {};
template <class T>
struct element_of<optimizers::adadelta<T>> : adadelta_element {};

const std::vector<std::size_t> counts = {7, 3001};

double first_value(std::size_t parameter, std::size_t i) { return noise(10000 * parameter + i); }
double mean_gradient(std::size_t parameter, std::size_t i, int step) {
    return noise(100000 * (std::size_t(step) + 1) + 10000 * parameter + i);
}
// Ranks have other gradients, whose mean does not depend on their number.
double gradient_of(const communicator& comm, double mean) {
    return mean + 0.25 * (comm.rank() - 0.5 * (comm.size() - 1));
}

// Parameters and gradients of one rank.
template <class T>
struct replica {
    std::vector<std::vector<T>> values, gradients;

    replica() {
        for (std::size_t p = 0; p < counts.size(); ++p) {
            values.emplace_back();
            gradients.emplace_back(counts[p]);
            for (std::size_t i = 0; i < counts[p]; ++i) values[p].push_back(T(first_value(p, i)));
        }
    }
    void backward(const communicator& comm, int step) {
        for (std::size_t p = 0; p < counts.size(); ++p)
            for (std::size_t i = 0; i < counts[p]; ++i)
                gradients[p][i] = T(gradient_of(comm, mean_gradient(p, i, step)));
    }
};

// One rank that has the mean of the gradients.
template <class O>
struct reference {
    std::vector<std::vector<double>> values;
    std::vector<std::vector<element_of<O>>> elements;

    reference() {
        for (std::size_t p = 0; p < counts.size(); ++p) {
            values.emplace_back();
            elements.emplace_back(counts[p]);
            for (std::size_t i = 0; i < counts[p]; ++i) values[p].push_back(first_value(p, i));
        }
    }
    void step(const O& optimizer, int step) {
        for (std::size_t p = 0; p < counts.size(); ++p)
            for (std::size_t i = 0; i < counts[p]; ++i)
                elements[p][i].step(optimizer, values[p][i], mean_gradient(p, i, step));
    }
    template <class T>
    double distance(const std::vector<std::vector<T>>& of_model) const {
        double most = 0;
        for (std::size_t p = 0; p < counts.size(); ++p)
            for (std::size_t i = 0; i < counts[p]; ++i)
                if (const double d = std::abs(double(of_model[p][i]) - values[p][i]); !(d <= most))
                    most = d;
        return most;
    }
};

// Steps a replica by a distributed optimizer.
template <class O>
struct by_optimizer {
    using T = typename O::value_type;
    communicator& comm;
    replica<T> model;
    hvd::distributed_optimizer<communicator, O> distributed;

    by_optimizer(communicator& on, const O& inside) : comm(on), distributed(on, inside) {
        for (std::size_t p = 0; p < counts.size(); ++p)
            distributed.register_parameter(std::to_string(p), model.values[p], model.gradients[p]);
    }
    O& optimizer() { return distributed.optimizer(); }
    void step(int step) {
        model.backward(comm, step);
        CHECK(distributed.step());
    }
    void save(const std::string& path) { hvd::save_checkpoint(path, distributed, {}); }
    void load(const std::string& path) { hvd::load_checkpoint(path, distributed); }
};

// Steps a replica in the pass of an allreduce, each time by a plan whose ranks have another order.
template <class O>
struct by_plan {
    using T = typename O::value_type;
    communicator& comm;
    replica<T> model;
    hvd::fused_step<O> fused;

    by_plan(communicator& on, const O& inside) : comm(on), fused(hvd::fuse(model.values), inside) {}
    O& optimizer() { return fused.optimizer(); }
    void step(int step) {
        model.backward(comm, step);
        auto other = comm.split(0, step % 2 == 0 ? comm.rank() : -comm.rank());
        other.plan_allreduce(hvd::fuse(model.gradients), hvd::average).run_and_apply(fused);
    }
    void save(const std::string& path) { hvd::save_checkpoint(path, comm, fused, {}); }
    void load(const std::string& path) { hvd::load_checkpoint(path, comm, fused); }
};

template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 2e-5 : 1e-11;

template <class Trainer, class O>
void check(communicator& comm, const O& optimizer) {
    Trainer trainer(comm, optimizer);
    reference<O> expected;
    for (int step = 0; step < 5; ++step) {
        trainer.step(step);
        expected.step(optimizer, step);
        CHECK(expected.distance(trainer.model.values) < tolerance<typename O::value_type>);
    }
}

template <class O>
void check_both(communicator& comm, const O& optimizer) {
    check<by_optimizer<O>>(comm, optimizer);
    check<by_plan<O>>(comm, optimizer);
}

}  // namespace

TEST_CASE_TEMPLATE("sgd is PyTorch's SGD, for every momentum with Nesterov's and weight decay", T,
                   float, double) {
    hvd_test::on_ranks([](communicator& comm) {
        for (const double momentum : {0.0, 0.9})
            for (const bool nesterov : {false, true})
                for (const double weight_decay : {0.0, 0.125}) {
                    CAPTURE(momentum);
                    CAPTURE(nesterov);
                    CAPTURE(weight_decay);
                    check_both(comm, optimizers::sgd<T>{.rate = T(0.125),
                                                        .momentum = T(momentum),
                                                        .nesterov = nesterov,
                                                        .weight_decay = T(weight_decay)});
                }
    });
}

TEST_CASE_TEMPLATE("adam has L2 weight decay and adamw a decoupled one, as PyTorch's", T, float,
                   double) {
    hvd_test::on_ranks([](communicator& comm) {
        check_both(comm, optimizers::adam<T>{.rate = T(0.0625)});
        check_both(comm, optimizers::adam<T>{.rate = T(0.0625), .weight_decay = T(0.5)});
        check_both(comm, optimizers::adamw<T>{.rate = T(0.0625)});
        check_both(comm, optimizers::adamw<T>{.rate = T(0.0625), .weight_decay = T(0.5)});
        CHECK(optimizers::adam<T>{}.weight_decay == T(0));
        CHECK(optimizers::adamw<T>{}.weight_decay == T(0.01));
    });
}

TEST_CASE_TEMPLATE("adadelta is PyTorch's, with weight decay and without", T, float, double) {
    hvd_test::on_ranks([](communicator& comm) {
        for (const double weight_decay : {0.0, 0.5}) {
            const optimizers::adadelta<T> adadelta{.weight_decay = T(weight_decay)};
            check<by_optimizer<optimizers::adadelta<T>>>(comm, adadelta);
        }
    });
}

TEST_CASE_TEMPLATE("a momentum that becomes 0 leaves the velocity, which goes on later", Trainer,
                   by_optimizer<optimizers::sgd<double>>, by_plan<optimizers::sgd<double>>) {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        Trainer first(comm, {.rate = 0.125}), second(comm, {.rate = 7});
        reference<optimizers::sgd<double>> expected;
        const auto steps = [&](Trainer& trainer, int begin, int end, double momentum) {
            for (int step = begin; step < end; ++step) {
                trainer.optimizer().momentum = momentum;
                trainer.step(step);
                expected.step(trainer.optimizer(), step);
                CHECK(expected.distance(trainer.model.values) < 1e-11);
            }
        };
        steps(first, 0, 2, 0);
        steps(first, 2, 4, 0.5);
        steps(first, 4, 6, 0);
        first.save(folder / "c");
        second.load(folder / "c");
        CHECK(second.optimizer().rate == 0.125);
        steps(second, 6, 7, 0);
        steps(second, 7, 9, 0.75);
        comm.barrier();
    });
}

TEST_CASE("sgd without momentum has no velocity, in memory and in checkpoints") {
    hvd_test::on_ranks([](communicator& comm) {
        using sgd = optimizers::sgd<double>;
        const shared_folder folder(comm);
        by_optimizer<sgd> plain(comm, {.rate = 0.125});
        by_plan<sgd> fused(comm, {.rate = 0.125});
        for (int step = 0; step < 3; ++step) {
            plain.step(step);
            fused.step(step);
        }
        CHECK(plain.optimizer().velocity.empty());
        CHECK(fused.fused.state_bytes() == 0);
        fused.save(folder / "fused");
        plain.save(folder / "plain");
        for (const char* name : {"fused", "plain"})
            CHECK(hvd::safetensors_file(folder / name).tensors().size() == counts.size());
        comm.barrier();
        by_plan<sgd> from_plain(comm, {});
        by_optimizer<sgd> from_fused(comm, {.momentum = 0.5});
        from_fused.step(0);  // its velocity is replaced by none
        from_plain.load(folder / "plain");
        from_fused.load(folder / "fused");
        for (auto* values :
             {&fused.model.values, &from_plain.model.values, &from_fused.model.values})
            CHECK((*values)[1][3000] == doctest::Approx(plain.model.values[1][3000]));
        for (const auto& slot : from_fused.optimizer().velocity) CHECK(slot.empty());
        comm.barrier();
    });
}

TEST_CASE_TEMPLATE("a checkpoint moves sgd with momentum to one rank and back to all", Trainer,
                   by_optimizer<optimizers::sgd<double>>, by_plan<optimizers::sgd<double>>) {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        const optimizers::sgd<double> nesterov{
            .rate = 0.125, .momentum = 0.75, .nesterov = true, .weight_decay = 0.0625};
        Trainer all(comm, nesterov), again(comm, {});
        reference<optimizers::sgd<double>> expected;
        const auto steps = [&](Trainer& trainer, int begin, int end) {
            for (int step = begin; step < end; ++step) trainer.step(step);
        };
        for (int step = 0; step < 9; ++step) expected.step(nesterov, step);
        steps(all, 0, 3);
        all.save(folder / "all");
        if (auto one = comm.subset({comm.size() - 1})) {
            Trainer alone(one, {});
            alone.load(folder / "all");
            steps(alone, 3, 6);
            alone.save(folder / "one");
        }
        comm.barrier();
        again.load(folder / "one");
        steps(again, 6, 9);
        CHECK(again.optimizer().momentum == 0.75);
        CHECK(again.optimizer().nesterov);
        CHECK(expected.distance(again.model.values) < 1e-11);
        comm.barrier();
    });
}

TEST_CASE("rows are stepped alone only without momentum and weight decay") {
    using sgd = optimizers::sgd<float>;
    CHECK(sgd{}.steps_rows());
    CHECK(sgd{.nesterov = true}.steps_rows());
    CHECK_FALSE(sgd{.momentum = 0.5f}.steps_rows());
    CHECK_FALSE(sgd{.weight_decay = 0.5f}.steps_rows());
}

TEST_CASE("an infinite value makes no NaN of a step without weight decay") {
    const float infinity = std::numeric_limits<float>::infinity();
    const auto stepped = [&](auto optimizer) {
        std::vector<float> value(20, infinity), gradient(20, 1);
        const hvd::tensor_view<float> p[] = {hvd::view(value.data(), 20)},
                                      g[] = {hvd::view(gradient.data(), 20)};
        optimizer.step(p, g);
        return value;
    };
    const std::vector<float> expected(20, infinity);
    CHECK(stepped(optimizers::sgd<float>{}) == expected);
    CHECK(stepped(optimizers::sgd<float>{.momentum = 0.5f}) == expected);
    CHECK(stepped(optimizers::adam<float>{}) == expected);
    CHECK(stepped(optimizers::adadelta<float>{}) == expected);
}

}  // namespace pytorch_rules_tests
