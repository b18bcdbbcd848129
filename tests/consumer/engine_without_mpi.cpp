// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Somebody else's program without MPI: a gradient by its name, and a step, over hvd::tcp.
#include <cstdlib>
#include <vector>

#include <hvd/engine.hpp>
#include <hvd/tcp.hpp>
#include <hvd/train.hpp>

int main() {
    auto world = hvd::communicator<hvd::tcp>::world();
    hvd::engine engine{world};
    std::vector<float> weight(10, 1), gradient(10, 1);
    engine.allreduce("gradient", gradient, hvd::average).wait();
    const int last = engine.join().wait();

    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.5f});
    optimizer.register_parameter("weight", weight, gradient);
    hvd::broadcast_parameters(optimizer);
    optimizer.step();
    return last == 0 && weight[9] == 0.5f ? EXIT_SUCCESS : EXIT_FAILURE;
}
