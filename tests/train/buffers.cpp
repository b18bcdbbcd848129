// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Tensors of a model that are no parameters.

#include <hvd/train.hpp>
#include <hvd/train_engine.hpp>

#include "hvd_test.hpp"

namespace buffers_tests {

using communicator = hvd_test::communicator;
using doctest::Contains;
using hvd::buffer_policy;

namespace {

struct model {
    std::vector<double> w = {1, 2}, dw = {0, 0}, averaged;
    std::vector<float> mean, sent;
    explicit model(int rank)
        : averaged(3, rank * 0.5), mean(2, float(rank)), sent(4, float(10 + rank)) {}
};

using optimizer_of_model =
    hvd::distributed_optimizer<communicator, hvd::optimizers::sgd<double>, double>;

template <class Optimizer>
void register_all(Optimizer& optimizer, model& m) {
    optimizer.register_parameter("w", m.w, m.dw);
    optimizer.register_buffer("mean", m.mean);
    optimizer.register_buffer("sent", hvd::view(m.sent.data(), hvd::shape(2, 2)),
                              buffer_policy::from_root);
    optimizer.register_buffer("averaged", m.averaged, buffer_policy::averaged);
}

}  // namespace

TEST_CASE("buffers become equal as their policies say") {
    hvd_test::on_ranks([](communicator& comm) {
        for (int from = 0; from < comm.size(); ++from) {
            model m(comm.rank());
            optimizer_of_model optimizer(comm, {});
            register_all(optimizer, m);
            hvd::synchronize_buffers(optimizer, hvd::root{from});
            const double mean = (comm.size() - 1) / 2.0;
            CHECK(m.mean == std::vector<float>(2, float(mean)));
            CHECK(m.averaged == std::vector<double>(3, mean / 2));
            CHECK(m.sent == std::vector<float>(4, float(10 + from)));
            m.mean.assign(2, float(2 * comm.rank()));
            hvd::synchronize_buffers(optimizer, hvd::root{from});
            CHECK(m.mean[0] == float(2 * mean));
        }
    });
}

TEST_CASE("each step makes buffers equal if the options say so, on an engine too") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::engine<communicator::backend_type> engine{comm};
        const auto check = [&](auto& on) {
            model m(comm.rank());
            hvd::distributed_optimizer optimizer(on, hvd::optimizers::sgd<double>{},
                                                 {.synchronize_buffers = true});
            register_all(optimizer, m);
            const double mean = (comm.size() - 1) / 2.0;
            for (int step = 1; step < 4; ++step) {
                m.mean.assign(2, float(comm.rank() * step));
                m.sent.assign(4, float(comm.rank() + step));
                CHECK(optimizer.step());
                CHECK(m.mean == std::vector<float>(2, float(mean) * float(step)));
                CHECK(m.sent == std::vector<float>(4, float(step)));
            }
        };
        check(comm);
        check(engine);
    });
}

TEST_CASE("a step with other buffers than the peers' is told on every rank, and steps nothing") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        model m(comm.rank());
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{},
                                             {.synchronize_buffers = true});
        optimizer.register_parameter("w", m.w, m.dw);
        m.dw = {1, 1};
        optimizer.register_buffer(comm.rank() == 1 ? "other" : "mean", m.mean);
        CHECK_THROWS_WITH_AS(optimizer.step(), Contains("rank 1: "), hvd::mismatch_error);
        CHECK(m.w == std::vector<double>{1, 2});
        CHECK(m.mean[0] == float(comm.rank()));
    });
}

TEST_CASE("a model without buffers has nothing to synchronize, and one policy is enough") {
    hvd_test::on_ranks([](communicator& comm) {
        optimizer_of_model none(comm, {});
        hvd::synchronize_buffers(none);
        std::vector<float> one(1, float(comm.rank()));
        none.register_buffer("one", one);
        hvd::synchronize_buffers(none);
        CHECK(one[0] == float(comm.size() - 1) / 2);
    });
}

TEST_CASE("broadcast_parameters sends the root's buffers, whatever their policy") {
    hvd_test::on_ranks([](communicator& comm) {
        model m(comm.rank());
        m.w = {double(comm.rank()), 1};
        optimizer_of_model optimizer(comm, {});
        register_all(optimizer, m);
        const int last = comm.size() - 1;
        hvd::broadcast_parameters(optimizer, hvd::root{last});
        CHECK(m.w[0] == last);
        CHECK(m.mean == std::vector<float>(2, float(last)));
        CHECK(m.averaged == std::vector<double>(3, last * 0.5));
        CHECK(m.sent == std::vector<float>(4, float(10 + last)));
    });
}

TEST_CASE("buffers are shown with their names, values and shapes") {
    hvd_test::on_ranks([](communicator& comm) {
        model m(comm.rank());
        optimizer_of_model optimizer(comm, {});
        register_all(optimizer, m);
        std::string shown;
        optimizer.for_each_buffer([&](const std::string& name, const auto& value, const auto& s) {
            shown += name + " " + std::to_string(value.size()) + "/" + std::to_string(s.size());
            shown += ";";
        });
        CHECK(shown == "mean 2/1;sent 4/2;averaged 3/1;");
        CHECK_THROWS_WITH_AS(optimizer.register_buffer("averaged", m.mean),
                             Contains("a buffer named \"averaged\" is registered already"),
                             hvd::usage_error);
    });
}

TEST_CASE("buffers that differ between ranks are told on every rank") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const bool differs = comm.rank() == 1;
        std::vector<float> x(differs ? 3 : 2, float(comm.rank()));
        const auto refused = [&](const char* name, std::size_t size, buffer_policy policy) {
            optimizer_of_model optimizer(comm, {});
            optimizer.register_buffer(name, hvd::view(x.data(), size), policy);
            CHECK_THROWS_WITH_AS(hvd::synchronize_buffers(optimizer), Contains("rank 1: "),
                                 hvd::mismatch_error);
            CHECK(x[0] == float(comm.rank()));
        };
        refused(differs ? "b" : "a", 2, buffer_policy::averaged);
        refused("a", x.size(), buffer_policy::averaged);
        refused("a", 2, differs ? buffer_policy::averaged : buffer_policy::from_root);
    });
}

}  // namespace buffers_tests
