// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Saves one checkpoint after the other until it is killed: saves FILE. See killed.py.

#include <unistd.h>

#include <cstdio>
#include <hvd/checkpoint.hpp>
#include <hvd/hvd.hpp>
#include <hvd/train.hpp>

namespace {

template <class Comm>
void save_for_ever(Comm& comm, const char* path) {
    std::vector<double> weight(1 << 15), gradient(weight.size());
    hvd::distributed_optimizer optimizer(comm,
                                         hvd::optimizers::sgd<double>{.rate = 0, .momentum = 0.9});
    optimizer.register_parameter("weight", weight, gradient);
    optimizer.step();  // it makes the velocity
    for (std::uint64_t step = 1;; ++step) {
        weight.assign(weight.size(), double(step));
        optimizer.optimizer().velocity[0].assign(weight.size(), double(step));
        hvd::save_checkpoint(path, optimizer, {.step = step});
        if (comm.rank() == 0) std::printf("%d\n", int(getpid())), std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
#if HVD_WITH_MPI
    hvd::mpi_environment environment(argc, argv);
    auto world = hvd::communicator<hvd::mpi>::world();
    save_for_ever(world, argv[1]);
#else
    hvd::run_threads(2,
                     [&](hvd::communicator<hvd::threads>& comm) { save_for_ever(comm, argv[1]); });
#endif
}
