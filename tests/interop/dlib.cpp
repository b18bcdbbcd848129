// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// dlib's networks on all ranks: its own trainer, which is closed, and a loop of one's own.

#include <data_parallel.hpp>

#include <map>

#include "hvd_test.hpp"

using communicator = hvd_test::communicator;

namespace {

using input = dlib::matrix<float, 5, 1>;
using network = dlib::loss_multiclass_log<dlib::fc<3, dlib::htan<dlib::fc<8, dlib::input<input>>>>>;

constexpr std::size_t batch = 420;  // 1 to 7 ranks have equal shares
constexpr int steps = 6;
constexpr double rate = 0.1;

struct samples {
    std::vector<input> inputs;
    std::vector<unsigned long> labels;
};

// Returns every size-th sample of a batch. All ranks know all samples.
samples share(int step, int rank, int size) {
    samples mine;
    for (std::size_t i = std::size_t(rank); i < batch; i += std::size_t(size)) {
        input x;
        for (long k = 0; k < x.size(); ++k)
            x(k) = float(std::sin(double(i + 1) * (1.3 + double(k)) + step));
        mine.labels.push_back(i % 3);
        mine.inputs.push_back(x);
    }
    return mine;
}

std::vector<float> values_of(network& net) {
    std::vector<float> all;
    dlib::visit_layer_parameters(net, [&](dlib::tensor& t) {
        if (t.size() > 0) all.insert(all.end(), t.host(), t.host() + t.size());
    });
    return all;
}

// Sets parameters that do not depend on dlib's random numbers, and differ between the ranks.
void set_parameters(network& net, int rank) {
    net(input(dlib::zeros_matrix<float>(5, 1)));  // shapes the network
    double at = 0;
    dlib::visit_layer_parameters(net, [&](dlib::tensor& t) {
        for (float& value : t) value = float(0.4 * std::sin(++at) * (1 + rank));
    });
}

// dlib without hvd.
std::vector<float> trained_alone() {
    network net;
    set_parameters(net, 0);
    std::vector<dlib::sgd> solvers(network::num_computational_layers, dlib::sgd(0.001f, 0.9f));
    for (int step = 0; step < steps; ++step) {
        const samples all = share(step, 0, 1);
        net.compute_parameter_gradients(all.inputs.begin(), all.inputs.end(), all.labels.begin());
        net.update_parameters(dlib::make_sstack(solvers), rate);
    }
    return values_of(net);
}

void check_near(const std::vector<float>& values, const std::vector<float>& expected) {
    REQUIRE(values.size() == expected.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-4));
}

//! [optimizer that steps itself]
// dlib's solvers of a network, as an optimizer that steps by itself.
struct solvers_of {
    using value_type = float;
    network* net;
    std::vector<dlib::sgd> solvers;
    void step() { net->update_parameters(dlib::make_sstack(solvers), rate); }
};

void register_all(auto& optimizer, network& net) {
    std::map<std::size_t, dlib::tensor*> gradients;
    dlib::visit_layer_parameter_gradients(
        net, [&](std::size_t i, dlib::tensor& gradient) { gradients[i] = &gradient; });
    dlib::visit_layer_parameters(net, [&](std::size_t i, dlib::tensor& value) {
        if (value.size() > 0)
            optimizer.register_parameter("layer" + std::to_string(i),
                                         hvd::view(value.host(), value.size()),
                                         hvd::view(gradients[i]->host(), value.size()));
    });
}
//! [optimizer that steps itself]

}  // namespace

TEST_CASE("dlib's closed trainer on N ranks equals dlib alone with the whole batch") {
    const std::vector<float> expected = trained_alone();
    hvd_test::on_ranks([&](communicator& comm) {
        network net;
        set_parameters(net, comm.rank());
        dlib_mnist::replicas all(comm, net);
        all.broadcast();
        //! [closed trainer]
        dlib::dnn_trainer trainer(net,
                                  dlib_mnist::distributed_solver(all, dlib::sgd(0.001f, 0.9f)));
        trainer.set_learning_rate(rate);
        trainer.set_learning_rate_shrink_factor(1);  // it would look at this rank's loss alone
        //! [closed trainer]
        for (int step = 0; step < steps; ++step) {
            const samples mine = share(step, comm.rank(), comm.size());
            trainer.train_one_step(mine.inputs, mine.labels);
        }
        trainer.get_net();  // waits for the last step
        check_near(values_of(net), expected);
    });
}

TEST_CASE("a loop on dlib's networks takes distributed_optimizer, which lets dlib step") {
    const std::vector<float> expected = trained_alone();
    hvd_test::on_ranks([&](communicator& comm) {
        network net;
        set_parameters(net, comm.rank());
        const samples first = share(0, 0, 1);
        // Gradients have their shape, and their memory, after the first backward pass.
        net.compute_parameter_gradients(first.inputs.begin(), first.inputs.end(),
                                        first.labels.begin());
        //! [loop]
        hvd::distributed_optimizer optimizer(
            comm, solvers_of{&net, std::vector(network::num_computational_layers,
                                               dlib::sgd(0.001f, 0.9f))});
        register_all(optimizer, net);
        hvd::broadcast_parameters(optimizer);
        for (int step = 0; step < steps; ++step) {
            const samples mine = share(step, comm.rank(), comm.size());
            net.compute_parameter_gradients(mine.inputs.begin(), mine.inputs.end(),
                                            mine.labels.begin());
            optimizer.step();
        }
        //! [loop]
        check_near(values_of(net), expected);
    });
}
