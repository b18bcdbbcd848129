// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A header of a program names hvd's types by hvd/fwd.hpp; the door comes later, in one file.
#include <hvd/fwd.hpp>

#include <vector>

struct trainer {
    hvd::communicator<hvd::threads>& world;
    hvd::plan<hvd::threads>* plan = nullptr;
    hvd::arena* memory = nullptr;

    void step(hvd::tensor_view<float> gradients, const hvd::reduce_options& options);
    hvd::request start(hvd::tensor_view<float, hvd::host, 2> gradients);
    hvd::gathered<int> counts(const hvd::options& options);
    void report(const hvd::peer_error& failure, const hvd::communicator_options& options);
};
using on_mpi = hvd::communicator<hvd::direct<hvd::mpi>>;
using halves = std::vector<hvd::bfloat16>;
void end(hvd::mpi_environment& environment, on_mpi& world, halves& values);

#include <hvd/hvd.hpp>

void trainer::step(hvd::tensor_view<float> gradients, const hvd::reduce_options& options) {
    world.allreduce(gradients, hvd::sum, options);
}

hvd::request trainer::start(hvd::tensor_view<float, hvd::host, 2> gradients) {
    return world.allreduce_async(gradients, hvd::sum);
}

hvd::gathered<int> trainer::counts(const hvd::options& options) {
    return world.allgather(std::vector<int>{world.rank()}, options);
}

int main() {
    std::vector<int> right(2);
    hvd::run_threads(2, [&right](hvd::communicator<hvd::threads>& world) {
        trainer mine{world};
        std::vector<float> gradients(4, 1);
        mine.step(hvd::view(gradients.data(), 4), {});
        mine.start(hvd::view(gradients.data(), hvd::shape(2, 2))).wait();
        right[std::size_t(world.rank())] =
            gradients == std::vector<float>(4, 4) && mine.counts({}).values == std::vector{0, 1};
    });
    return right == std::vector{1, 1} ? 0 : 1;
}
