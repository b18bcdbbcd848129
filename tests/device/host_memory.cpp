// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A view of device memory whose pointer is of the host: the rank that has it is told so.

#include <hvd/cuda.hpp>
#include <hvd/train_device.hpp>

#include "failures.hpp"

namespace host_memory_tests {

using namespace device_test;

namespace {

using host = hvd::threads;
using in_nodes = hvd::hierarchical<hvd::nccl, host>;

constexpr const char* expected = "can't reach, expected device memory";

// Runs f(gpus) on 1 to 4 ranks.
template <class Backend, class F>
void on(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        const int pairs = ranks % 2 == 0 ? 2 : 1;
        hvd::run_threads(ranks,
                         [&](hvd::communicator<host>& world) {
                             hvd::communicator<Backend> gpus(world, patient);
                             f(gpus);
                         },
                         {.node_size = std::is_same_v<Backend, in_nodes> ? pairs : ranks});
        CHECK(emulation::live_objects() == 0);
        emulation::reset();
    }
}

void has(const std::string& said, const std::string& part) {
    INFO(said);
    CHECK(said.find(part) != std::string::npos);
}

template <class Comm>
void check_works(Comm& gpus) {
    const tensor<float> x{float(gpus.rank())};
    gpus.allreduce(x.view(), hvd::sum);
    CHECK(x.values()[0] == float(gpus.size() * (gpus.size() - 1) / 2));
}

}  // namespace

TEST_CASE("a backend that compares calls refuses host memory, and tells the peers") {
    on<hvd::staged<host>>([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), last = n - 1;
        std::vector<float> wrong(std::size_t(2 + r));
        const tensor<float> right(wrong), gathered(std::vector<float>(std::size_t(4 * n)));
        const std::string refused_by_last =
            "rank " + std::to_string(last) + " refused it: hvd: allreduce on rank " +
            std::to_string(last) + ": the input of 2 elements is in host memory";
        const auto in = hvd::device_view(r == last ? wrong.data() : right.data(), 2);
        if (r == last) {
            has(text_of<hvd::usage_error>([&] { gpus.allreduce(in, hvd::sum); }),
                "allreduce on rank " + std::to_string(r) +
                    ": the input of 2 elements is in host memory that GPU " +
                    std::to_string(gpus.device()) + " " + expected);
        } else {
            has(text_of<hvd::peer_error>([&] { gpus.allreduce(in, hvd::sum); }), refused_by_last);
        }
        // All ranks at once, in what they receive.
        std::vector<float> all(std::size_t(2 * n));
        has(text_of<hvd::usage_error>([&] {
                gpus.allgather(hvd::device_view(right.data(), 2),
                               hvd::into(hvd::device_view(all.data(), all.size())));
            }),
            "allgather on rank " + std::to_string(r) + ": the output of " + std::to_string(2 * n));
        check_works(gpus);
        CHECK(wrong == std::vector<float>(wrong.size()));
    });
}

TEST_CASE_TEMPLATE("memory that a call does not use on this rank may be anywhere", Backend,
                   hvd::nccl, hvd::staged<host>, in_nodes) {
    on<Backend>([](auto& gpus) {
        const int n = gpus.size(), r = gpus.rank(), root = n - 1;
        std::vector<int> unused(std::size_t(2), 7);
        const tensor<int> x{r, 1}, sum{0, 0};
        const auto out = hvd::device_view(r == root ? sum.data() : unused.data(), 2);
        gpus.reduce(x.view(), hvd::into(out), hvd::sum, hvd::root{root});
        if (r == root) CHECK(sum.values() == std::vector<int>{n * (n - 1) / 2, n});
        CHECK(unused == std::vector<int>{7, 7});
    });
}

TEST_CASE("NCCL's refusal of host memory says which tensor it was") {
    hvd::run_threads(3, [](world_type& world) {
        hvd::communicator<hvd::nccl> gpus(world, impatient);
        std::vector<double> wrong(std::size_t(3 + world.rank()));
        const auto x = hvd::device_view(wrong.data(), wrong.size());
        has(text_of<hvd::usage_error>([&] { gpus.allreduce(x, hvd::sum); }),
            "allreduce on rank " + std::to_string(world.rank()) + ": the input of " +
                std::to_string(wrong.size()) + " elements is in host memory that GPU " +
                std::to_string(gpus.device()) + " " + expected);
        CHECK_THROWS_AS(gpus.barrier(), hvd::peer_error);  // it is given up
        world.barrier();
    });
    hvd::run_threads(2, [](world_type& world) {
        hvd::communicator<hvd::nccl> gpus(world, impatient);
        std::vector<double> wrong(2);
        const auto x = hvd::device_view(wrong.data(), 2);
        const int other = 1 - world.rank();
        has(text_of<hvd::usage_error>([&] {
                gpus.exchange(world.rank() == 0
                                  ? hvd::device_messages().send(x, hvd::peer{other})
                                  : hvd::device_messages().recv(hvd::into(x), hvd::peer{other}));
            }),
            std::string("exchange on rank ") +
                (other == 1 ? "0: the tensor to rank 1" : "1: the tensor from rank 0") +
                " of 2 elements is in host memory");
    });
    emulation::reset();
}

TEST_CASE_TEMPLATE("plans refuse host memory on all ranks", Backend, hvd::nccl, hvd::staged<host>,
                   in_nodes) {
    on<Backend>([](auto& gpus) {
        const int r = gpus.rank(), last = gpus.size() - 1;
        const tensor<float> a{1, 2}, b{3, float(r)},
            all(std::vector<float>(std::size_t(2 + 2 * last)));
        std::vector<float> wrong{3, 4}, wrong_all(all.values().size());
        const auto second = hvd::device_view(r == last ? wrong.data() : b.data(), 2);
        const auto told = [&](auto make, const std::string& why) {
            const std::string said =
                r == last ? text_of<hvd::usage_error>(make) : text_of<hvd::peer_error>(make);
            has(said, why);
            has(said, "on rank " + std::to_string(last));
            has(said, expected);
        };
        told([&] { (void)gpus.plan_allreduce(hvd::fuse(a.view(), second), hvd::sum); },
             "tensor 1 of 2 elements is in host memory");
        told([&] { (void)gpus.plan_broadcast(hvd::fuse(second, a.view())); },
             "tensor 0 of 2 elements is in host memory");
        if constexpr (!std::is_same_v<Backend, in_nodes>) {
            const auto to =
                hvd::device_view(r == last ? wrong_all.data() : all.data(), wrong_all.size());
            told([&] { (void)gpus.plan_allgather(a.view(), hvd::into(to)); }, "into() of ");
        }
        check_works(gpus);
    });
}

TEST_CASE("parameters and registered memory are on the device") {
    on<hvd::nccl>([](auto& gpus) {
        const tensor<float> x{1, 2};
        std::vector<float> wrong(2);
        const auto y = hvd::device_view(wrong.data(), 2);
        hvd::distributed_optimizer optimizer(gpus, hvd::optimizers::sgd<float>{});
        const std::string rank = "rank " + std::to_string(gpus.rank());
        for (const bool value : {true, false}) {
            const std::string said = text_of<hvd::usage_error>([&] {
                if (value) optimizer.register_parameter("w", y, x.view());
                else optimizer.register_local("w", x.view(), y);
            });
            has(said, rank);
            has(said, std::string("parameter \"w\": its ") + (value ? "value" : "gradient") +
                          " of 2 elements is in host memory");
            has(said, expected);
        }
        optimizer.register_parameter("w", x.view(), tensor<float>{1, 1}.view());
        has(text_of<hvd::usage_error>([&] { (void)gpus.register_memory(y); }),
            "register_memory on " + rank + ": the tensor of 2 elements is in host memory");
        check_works(gpus);
    });
}

TEST_CASE("a GPU that reads all memory takes that of the host") {
    emulation::answer("discrete", 0);
    hvd::run_threads(2, [](world_type& world) {
        hvd::communicator<hvd::staged<host>> gpus(world, patient);
        std::vector<float> x{float(world.rank()), 2};
        gpus.allreduce(hvd::device_view(x.data(), 2), hvd::sum);
        CHECK(x == std::vector<float>{1, 4});
    });
    emulation::reset();
}

}  // namespace host_memory_tests
