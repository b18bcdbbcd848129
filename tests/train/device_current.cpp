// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Each rank trains on its own GPU, while another one is current on its thread.

#include <hvd/checkpoint.hpp>

#include "device_model.hpp"

namespace device_current_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

constexpr int gpus_here = 4;

int current() {
    int device = -1;
    cudaGetDevice(&device);
    return device;
}

// Runs f(world, gpus, use_other) on 1 to 4 ranks, with their own GPUs current. After use_other()
// another one is.
template <class Backend, class F>
void on_own_gpus(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks,
                         [&](hvd::communicator<host>& world) {
                             cudaSetDevice(world.rank());
                             hvd::communicator<Backend> gpus(world, {.timeout = 100s});
                             f(world, gpus, [&] { cudaSetDevice((world.rank() + 1) % gpus_here); });
                         },
                         {.node_size = ranks});
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

template <class F>
void on_own_gpus_of_every_backend(F f) {
    on_own_gpus<hvd::nccl>(f);
    on_own_gpus<hvd::staged<host>>(f);
    on_own_gpus<mixed>(f);
}

// An optimizer of the user's, which launches on the current device.
struct users_sgd {
    using value_type = float;
    using list = std::span<const hvd::tensor_view<float, hvd::device>>;
    int device;
    void step(list, list, cudaStream_t) { CHECK(current() == device); }
};
struct self_contained {
    int device;
    void step() { CHECK(current() == device); }
};

}  // namespace

TEST_CASE("a step runs on the communicator's GPU, whichever is current") {
    on_own_gpus_of_every_backend([](auto& world, auto& gpus, auto use_other) {
        const stream s;
        const int n = gpus.size(), r = gpus.rank();
        const std::vector<hvd::optimizer_options> all_options = {
            {.skip_nonfinite = true},
            {.shard_state = true},
            {.codec = hvd::codec::cast<hvd::bfloat16>},
            {.op = hvd::adasum}};
        for (const hvd::optimizer_options& options : all_options) {
            cudaSetDevice(r);
            const tensor<float> w(floats(48, 1)), local{5}, dw(floats(48, -1)), dl{-1};
            cudaStreamSynchronize(nullptr);
            use_other();
            const int other = current();
            hvd::distributed_optimizer optimizer(gpus, optimizers::adam<float>{.rate = 0.5f},
                                                 options);
            optimizer.register_parameter("w", w.view(), dw.view());
            optimizer.register_local("local", local.view(), dl.view());
            for (int step = 0; step < 2; ++step) {
                optimizer.zero_gradients(s);
                s.write(dw, floats(48, 1 + float(r)));
                if (step > 0) optimizer.gradient_ready(0, s);
                s.write(dl, floats{1});
                if (step > 0) optimizer.gradient_ready(1, s);
                auto gradients = optimizer.synchronize(s);
                if (options.op != hvd::adasum) hvd::clip_by_norm(gradients, 100.0);
                optimizer.apply(std::move(gradients), s);
                CHECK(current() == other);
            }
            hvd::broadcast_parameters(optimizer);
            CHECK(s.values(w)[47] == doctest::Approx(0));  // Adam's first steps are its rate
            CHECK(s.values(local)[0] == doctest::Approx(4));
            CHECK(optimizer.skipped_steps(s) == 0);
            if (options.op != hvd::adasum)
                CHECK(optimizer.gradient_norm(s) ==
                      doctest::Approx(std::sqrt(48.0) * double(n + 1) / 2));
            CHECK(current() == other);
        }
        world.barrier();
    });
}

TEST_CASE("rows of a table and optimizers of the user are on the communicator's GPU as well") {
    on_own_gpus_of_every_backend([](auto& world, auto& gpus, auto use_other) {
        const stream s;
        const int r = gpus.rank(), n = gpus.size();
        const tensor<float> table(floats(8, 1)), gradient(floats(8)), w{1}, dw{1},
            values(floats{1, 2});
        const tensor<std::int64_t> row{r % 4};
        cudaStreamSynchronize(nullptr);
        use_other();
        hvd::distributed_optimizer rows(gpus, optimizers::sgd<float>{.rate = 1});
        rows.register_sparse("table", table.view(), gradient.view(), 2);
        rows.gradient_ready(0, hvd::sparse_view<float, hvd::device>{row.view(), values.view()}, s);
        rows.step(s);
        const floats got = s.values(table);
        CHECK(got[std::size_t(2 * r)] == 1 - 1 / float(n));
        CHECK(got[std::size_t(2 * r + 1)] == 1 - 2 / float(n));

        hvd::distributed_optimizer users(gpus, users_sgd{r});
        users.register_parameter("w", w.view(), dw.view());
        users.step(s);
        users.step();  // on the default stream of the communicator's GPU
        hvd::distributed_optimizer contained(gpus, self_contained{r});
        contained.register_parameter("w", w.view(), dw.view());
        contained.step(s);
        CHECK(current() == (r + 1) % gpus_here);
        world.barrier();
    });
}

}  // namespace device_current_tests
