// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The examples of training on the device in the reference and in docs/device.md, on the emulation.

#include "device_support.hpp"

namespace device_snippets_tests {

using namespace device_test;

namespace {

// It stands for the kernels of a model.
struct kernels_of_a_model {
    const tensor<float>&dw1, &db1;
    void backward_b1(cudaStream_t s) const { write(s, db1); }
    void backward_w1(cudaStream_t s) const { write(s, dw1); }
    static void write(cudaStream_t s, const tensor<float>& gradient) {
        emulation::enqueue(s, [data = gradient.data()] {
            *reinterpret_cast<float*>(emulation::seen_by_device(data, sizeof(float))) += 1;
        });
    }
};

void trainer(hvd::communicator<hvd::threads>& world) {
    const tensor<float> w1_memory{1, 2}, dw1_memory{0, 0}, b1_memory{3}, db1_memory{0};
    const kernels_of_a_model model{dw1_memory, db1_memory};
    const auto w1 = w1_memory.view(), dw1 = dw1_memory.view(), b1 = b1_memory.view(),
               db1 = db1_memory.view();
    const stream stream;
    //! [distributed_optimizer]
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s});
    hvd::distributed_optimizer optimizer(gpus, hvd::optimizers::adamw<float>{.rate = 0.001f});
    optimizer.register_parameter("w1", w1, dw1);  // device views of values and gradient
    optimizer.register_parameter("b1", b1, db1);
    hvd::broadcast_parameters(optimizer, hvd::root{0}, stream);
    for (int step = 0; step < 3; ++step) {
        optimizer.zero_gradients(stream);
        model.backward_b1(stream);  // kernels that add to the gradients
        optimizer.gradient_ready(1, stream);
        model.backward_w1(stream);
        optimizer.gradient_ready(0, stream);
        optimizer.step(stream);  // enqueued: the host goes on
    }
    //! [distributed_optimizer]
    CHECK(stream.values(w1_memory)[0] == doctest::Approx(1 - 3 * 0.001).epsilon(1e-3));
    {
        //! [clip_by_norm]
        auto gradients = optimizer.synchronize(stream);
        hvd::clip_by_norm(gradients, 1.0);  // the host does not wait
        optimizer.apply(std::move(gradients), stream);
        const double norm = optimizer.gradient_norm(stream);  // before it was clipped; this waits
        //! [clip_by_norm]
        CHECK(norm == doctest::Approx(std::sqrt(2.0)));
    }
    {
        //! [wait_before_apply]
        auto reduced = optimizer.synchronize(stream);
        cudaStreamSynchronize(stream);  // the gradients have come, or the communicator was given up
        optimizer.apply(std::move(reduced), stream);
        //! [wait_before_apply]
    }
    {
        //! [gradient_norm]
        auto gradients = optimizer.synchronize(stream);
        if (optimizer.gradient_norm(gradients, stream) < 100)  // this waits
            optimizer.apply(std::move(gradients), stream);
        //! [gradient_norm]
    }
    //! [broadcast_parameters]
    hvd::broadcast_parameters(gpus, hvd::fuse(w1, b1), hvd::root{0}, stream);
    //! [broadcast_parameters]
    //! [distributed_gradients]
    const hvd::tensor_view<float, hvd::device> gradients[] = {dw1, db1};
    hvd::distributed_gradients(gpus, gradients, {}, stream);
    //! [distributed_gradients]
    CHECK(stream.values(dw1_memory)[0] == 1);
}

void sparse(hvd::communicator<hvd::threads>& world) {
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s});
    const tensor<float> values_memory(std::vector<float>(12, 1)),
        gradient_memory(std::vector<float>(12)), rows_memory{5, 6, 7, 8, 9, 10};
    const tensor<std::int64_t> indices_memory{1, 3};
    const auto table = values_memory.view(), gradient = gradient_memory.view(),
               values = rows_memory.view();
    const auto indices = indices_memory.view();
    const stream stream;
    //! [register_sparse]
    hvd::distributed_optimizer optimizer(gpus, hvd::optimizers::sgd<float>{.rate = 0.5f});
    const auto embedding = optimizer.register_sparse("embedding", table, gradient, 3);
    optimizer.gradient_ready(embedding, hvd::sparse_view<float, hvd::device>{indices, values},
                             stream);
    optimizer.step(stream);  // the host waits for the rows
    //! [register_sparse]
    CHECK(stream.values(values_memory)[3] == 1 - 2.5f);
    //! [sparse]
    const hvd::sparse_view<float, hvd::device> rows{indices, values};
    hvd::sparse_allreduce(gpus, rows, hvd::into(gradient), 3, {}, stream);
    //! [sparse]
    CHECK(stream.values(gradient_memory)[3] == 5);
}

}  // namespace

TEST_CASE("the examples of training on the device") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& world) {
            trainer(world);
            sparse(world);
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace device_snippets_tests
