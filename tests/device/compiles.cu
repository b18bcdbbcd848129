// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// nvcc compiles the doors and the kernels.
#include <vector>

#include <hvd/kernels.cuh>
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

void call(hvd::communicator<hvd::threads>& world, hvd::tensor_view<float, hvd::device> x,
          hvd::tensor_view<__nv_bfloat16, hvd::device> y) {
    hvd::communicator<hvd::nccl> gpus(world);
    gpus.allreduce(x, hvd::average);
    gpus.plan_allreduce(hvd::fuse(x, y), hvd::average, {}, hvd::codec::cast<hvd::bfloat16>).run();
    hvd::device_arena arena(gpus, 1 << 20);
    gpus.allreduce(arena.tensor<float>(hvd::shape(100)), hvd::max);
    hvd::communicator<hvd::staged<hvd::threads>> staged(world);
    staged.plan_allreduce(hvd::fuse(x, y), hvd::average).run();
    std::vector<float> host(4);
    world.allreduce(host, [](float a, float b) { return a > b ? a : b; });
    world.plan_allreduce(host, hvd::average).run();
    const hvd::request sum = world.allreduce_async(host, hvd::sum);
    world.broadcast_object(host, hvd::root{0});
}
