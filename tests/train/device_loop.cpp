// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Things of the loop around the steps, with parameters on the device.

#include "device_support.hpp"

using namespace device_test;
namespace optimizers = hvd::optimizers;
using floats = std::vector<float>;

namespace {

// True if the ranks compare their reductions of gradients.
template <class Comm>
bool compares(Comm& gpus, hvd::detail::collective kind) {
    return hvd::detail::device_access::session_of(gpus)->compares(kind);
}

template <class F>
void check_epochs_are_named(F f) {
    try {
        f();
        FAIL("a step with ranks in different epochs");
    } catch (const hvd::mismatch_error& e) {
        const std::string what = e.what();
        CHECK(what.find("epoch 7") != std::string::npos);
        CHECK(what.find("epoch 8") != std::string::npos);
    }
}

}  // namespace

TEST_CASE("ranks in different epochs are told so where they compare reductions, and go on") {
    using hvd::detail::collective;
    const std::vector<hvd::optimizer_options> kinds = {
        {},
        {.shard_state = true},
        {.codec = hvd::gradient_codec::bfloat16},
        {.codec = hvd::gradient_codec::bfloat16, .error_feedback = true},
        {.op = hvd::gradient_op::adasum}};
    for (const auto& options : kinds)
        train_on_every_backend([&](auto& world, auto& gpus) {
            const bool adasum = options.op == hvd::gradient_op::adasum;
            const stream s;
            const tensor<float> w(floats(48, 8)), dw(floats(48, 1));
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1}, options);
            optimizer.register_parameter("w", w.view(), dw.view());
            optimizer.begin_epoch(7);
            optimizer.step(s);
            s.write(dw, floats(48, 1));
            optimizer.step(s);
            CHECK(s.values(w) == floats(48, 6));
            s.write(dw, floats(48, 1));
            const auto kind = options.shard_state || options.error_feedback
                                  ? collective::reduce_scatter
                                  : collective::allreduce;
            if (gpus.size() > 1 && (adasum || compares(gpus, kind))) {
                if (gpus.rank() > 0) optimizer.begin_epoch(8);
                check_epochs_are_named([&] { optimizer.step(s); });
                CHECK(s.values(w) == floats(48, 6));
            }
            optimizer.begin_epoch(9);
            s.write(dw, floats(48, 1));
            optimizer.step(s);
            CHECK(s.values(w) == floats(48, 5));
            world.barrier();
        });
}

TEST_CASE("ranks in different epochs are told so on every backend if gradients come in rows") {
    train_on_every_backend([](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w(floats(12, 8)), dw(floats(12)), values{1, 2, 3, 4, 5, 6};
        const tensor<std::int64_t> indices{1, 3};
        cudaDeviceSynchronize();
        hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
        optimizer.register_sparse("w", w.view(), dw.view(), 3);
        const auto step = [&] {
            optimizer.gradient_ready(
                0, hvd::sparse_view<float, hvd::device>{indices.view(), values.view()}, s);
            optimizer.step(s);
        };
        optimizer.begin_epoch(7);
        step();
        CHECK(s.values(w)[3] == 7);
        if (gpus.size() > 1) {
            if (gpus.rank() > 0) optimizer.begin_epoch(8);
            check_epochs_are_named(step);
            optimizer.begin_epoch(9);
        }
        step();
        CHECK(s.values(w)[3] == 6);
        world.barrier();
    });
}
