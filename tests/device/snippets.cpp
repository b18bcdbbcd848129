// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The examples of the device path's reference and of docs/device.md, on the emulation.

#include <array>
#include <atomic>
#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

#include <hvd/data_device.hpp>
#include <hvd/engine_device.hpp>

#include "support.hpp"

namespace snippets_tests {

using namespace device_test;
using world_type = hvd::communicator<hvd::threads>;

namespace {

void nccl(world_type& world) {
    //! [nccl]
    hvd::pin_device(world);  // each local rank its GPU
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s});
    //! [nccl]
    const tensor<float> memory(std::vector<float>(1000, 1));
    float* const gradient = memory.data();
    //! [device_allreduce]
    auto x = hvd::device_view(gradient, 1000);
    gpus.allreduce(x, hvd::average);
    //! [device_allreduce]
    cudaStream_t compute{};
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    //! [device_request]
    auto pending =
        gpus.allreduce_async(x, hvd::sum, {.stream = compute});  // after what `compute` has to do
    pending.wait();  // the host waits; pending.wait(stream): a stream does
    //! [device_request]
    CHECK(memory.values()[0] == float(gpus.size()));
    //! [device_then]
    std::atomic<bool> is_reduced = false;
    auto told = gpus.allreduce_async(x, hvd::max, {.stream = compute});
    told.then([&](std::exception_ptr failure) { is_reduced = !failure; });
    told.wait();  // the function has been called
    //! [device_then]
    CHECK(is_reduced);

    const tensor<float> w1(std::vector<float>(10, 1)), b1(std::vector<float>(3, 1)),
        w2(std::vector<float>(300'000, 1));
    cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
    //! [device_plan]
    auto step = gpus.plan_allreduce(hvd::fuse(w1.view(), b1.view(), w2.view()),
                                    hvd::average);  // once: agreed, laid out
    step.run(compute);                              // every step
    auto half = gpus.plan_allreduce(hvd::fuse(w1.view(), w2.view()), hvd::average, {},
                                    hvd::codec::cast<hvd::bfloat16>);
    //! [device_plan]
    half.run();
    CHECK(w2.values()[7] == 1);

    std::vector<hvd::device_request> requests;
    std::vector gradients{w1.view(), b1.view()};
    //! [device_streams]
    for (auto& gradient : gradients)  // after the kernels of the backward pass on stream 0
        requests.push_back(gpus.allreduce_async(gradient, hvd::average, {.stream = 0}));
    for (auto& request : requests) request.wait(0);  // later kernels on stream 0 come after it
    //! [device_streams]
    CHECK(b1.values()[2] == 1);

    const tensor<float> all(std::vector<float>(10 * std::size_t(gpus.size()), 0));
    //! [device_movements]
    gpus.broadcast(hvd::fuse(w1.view(), b1.view()), hvd::root{0});
    gpus.allgather(w1.view(), hvd::into(all.view()));
    //! [device_movements]
    CHECK(all.values().back() == 1);

    {
        //! [device_arena]
        hvd::device_arena arena(gpus, std::size_t(1) << 20);
        auto g1 = arena.tensor<float>(hvd::shape(128, 64));
        auto g2 = arena.tensor<float>(hvd::shape(64));
        auto in_place = gpus.plan_allreduce(hvd::fuse(g1, g2),
                                            hvd::average);  // packs nothing: one call of NCCL's
        //! [device_arena]
        in_place.run();
        CHECK(in_place.packed_bytes() == 0);
        gpus.barrier();
    }
    cudaStreamDestroy(compute);
}

void options(world_type& world) {
    //! [nccl_options]
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = 16;
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s},
                                      {.config = config, .stream_priority = -1});
    //! [nccl_options]
    const tensor<float> pool(std::vector<float>(1000, 1));
    //! [register_memory]
    auto registered = gpus.register_memory(pool.view());  // while the allocator has the pool
    //! [register_memory]
    CHECK(bool(registered) == (gpus.size() > 1));
}

void messages(world_type& world) {
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s});
    const int rank = gpus.rank(), above = rank - 1, below = rank + 1 < gpus.size() ? rank + 1 : -1;
    const tensor<float> x{float(rank)}, y{-1}, top{1}, bottom{2}, from_above{-1}, from_below{-1};
    if (gpus.size() > 1) {
        //! [device_send]
        if (rank == 0) gpus.send(x.view(), hvd::peer{1});
        if (rank == 1) gpus.recv(hvd::into(y.view()), hvd::peer{0});
        //! [device_send]
        CHECK(y.values()[0] == (rank == 1 ? 0 : -1));
    }
    //! [device_messages]
    hvd::device_messages halo;  // once
    if (above >= 0)
        halo.send(top.view(), hvd::peer{above})
            .recv(hvd::into(from_above.view()), hvd::peer{above});
    if (below >= 0)
        halo.send(bottom.view(), hvd::peer{below})
            .recv(hvd::into(from_below.view()), hvd::peer{below});
    gpus.exchange(halo);  // every step
    //! [device_messages]
    CHECK(from_above.values()[0] == (above >= 0 ? 2 : -1));
    CHECK(from_below.values()[0] == (below >= 0 ? 1 : -1));
}

void named(world_type& world) {
    const tensor<float> w1(std::vector<float>(1000, 1)), rows{float(world.rank())};
    const tensor<float> all(std::vector<float>(std::size_t(world.size())));
    std::vector<float> loss{1};
    const auto kernel = w1.view();
    cudaStream_t compute{};
    cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
    cudaStreamSynchronize(nullptr);  // the stream does not wait for the copies
    {
        //! [engine]
        hvd::communicator<hvd::nccl> gpus(world, {.timeout = 30s});
        hvd::engine engine{world, gpus};

        // Device views and tensors of the host, in any order, from any thread.
        auto a = engine.allreduce("conv1/kernel", kernel, hvd::average, {.stream = compute});
        auto b = engine.allreduce("loss", loss, hvd::average);
        auto c = engine.allgather("rows", rows.view(), hvd::into(all.view()));
        b.wait();
        c.wait();  // c.counts(): the elements of each rank
        //! [engine]
        //! [engine_streams]
        a.wait(compute);  // later kernels on `compute` come after the result; a.wait(): the host
        //! [engine_streams]
        //! [engine_then]
        auto told = engine.allreduce("rows", rows.view(), hvd::sum,
                                     {.then = [](std::exception_ptr failure) {
                                         if (!failure) std::puts("the device is done with rows");
                                     }});
        //! [engine_then]
        told.wait();
        CHECK(c.counts().size() == std::size_t(world.size()));
        cudaStreamSynchronize(compute);
    }
    cudaStreamDestroy(compute);
    CHECK(w1.values()[999] == 1);
    CHECK(all.values().back() == float(world.size() - 1));
}

void policies(world_type& world) {
    const tensor<float> memory(std::vector<float>(1000, float(world.rank())));
    const auto x = memory.view();
    //! [staged]
    hvd::communicator<hvd::staged<hvd::threads>> gpus(world);  // with MPI: hvd::staged<hvd::mpi>
    gpus.allreduce(x, hvd::average);
    //! [staged]
    //! [per_operation]
    using moved_by_the_host = hvd::staged<hvd::threads>;
    hvd::communicator<hvd::per_operation<hvd::nccl, moved_by_the_host, moved_by_the_host>> mixed(
        world);
    mixed.allreduce(x, hvd::average);  // NCCL
    mixed.broadcast(x, hvd::root{0});  // staged
    //! [per_operation]
    //! [through_host]
    {
        auto on_host = hvd::through_host(x);
        world.allreduce(on_host, hvd::sum);
    }  // goes back to the device
    //! [through_host]
    CHECK(memory.values()[0] == float(world.size() * (world.size() - 1)) / 2);
}

void batches(world_type& world) {
    namespace data = hvd::data;
    const std::vector<std::array<float, 2>> points(100, {1, 2});
    const std::vector<int> labels(100, 3);
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    std::size_t samples = 0;
    const auto train = [&](const auto& x, const auto& y, cudaStream_t) {
        CHECK(x.extent(0) == y.extent(0));
        samples += x.extent(0);
    };
    const auto columns = [](const std::vector<std::tuple<std::array<float, 2>, int>>& all) {
        std::pair<data::rows<float>, std::vector<int>> batch{{{}, 2}, {}};
        for (const auto& [point, label] : all) {
            batch.first.values.insert(batch.first.values.end(), point.begin(), point.end());
            batch.second.push_back(label);
        }
        return batch;
    };
    //! [to_device]
    auto batches = data::from(data::zip(points, labels)) | data::shuffle({.seed = 42}) |
                   data::batch(32, columns) | data::map(data::to_device()) | data::prefetch(4);
    data::loader loader(batches, world, {.threads = 2});
    for (auto& batch : loader.epoch(0)) {
        const auto [x, y] = batch.on(stream);  // device tensors; the host does not wait
        train(x, y, stream);                   // kernels on the stream
    }
    //! [to_device]
    CHECK(samples <= 100 / std::size_t(world.size()) + 4);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

}  // namespace

TEST_CASE("the examples of the device path") {
    for (const int ranks : {1, 2, 3, 4}) {
        hvd::run_threads(ranks, nccl);
        hvd::run_threads(ranks, options);
        hvd::run_threads(ranks, messages);
        hvd::run_threads(ranks, named);
        hvd::run_threads(ranks, policies);
        hvd::run_threads(ranks, batches);
    }
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
}

namespace {

// The last rank makes no call any more.
void ask_who_is_late(world_type& world) {
    const tensor<float> memory(std::vector<float>(1000, 1));
    const auto x = memory.view();
    hvd::communicator<hvd::nccl> gpus(world, {.timeout = 300ms * slowness});
    gpus.barrier();
    if (world.rank() + 1 == world.size()) return;
    //! [who_is_late]
    try {
        gpus.allreduce(x, hvd::sum);
    } catch (const hvd::timeout_error&) {  // NCCL does not know which rank is late
        world.barrier({.timeout = 1s});    // throws, and names the ranks that do not come
    }
    //! [who_is_late]
}

}  // namespace

TEST_CASE("the host says which rank is late") {
    for (int ranks = 2; ranks <= 4; ++ranks)
        hvd::run_threads(ranks, [](world_type& world) {
            std::vector<int> late;
            try {
                ask_who_is_late(world);
            } catch (const hvd::peer_error& e) {
                late = e.peers();
            }
            if (world.rank() + 1 < world.size()) CHECK(late == std::vector{world.size() - 1});
        });
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace snippets_tests
