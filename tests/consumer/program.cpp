// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A program that uses an installed hvd. `program` averages on three threads, `program mpi N` sums
// on N processes.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <hvd/hvd.hpp>

namespace {

template <class Communicator>
bool right(Communicator& comm) {
    std::vector<float> values(100, float(comm.rank()));
    comm.allreduce(values, hvd::average);
    return values == std::vector<float>(100, float(comm.size() - 1) / 2);
}

int on_threads() {
    std::vector<int> results(3);
    hvd::run_threads(3,
                     [&results](auto& comm) { results[std::size_t(comm.rank())] = right(comm); });
    return results == std::vector<int>{1, 1, 1} ? EXIT_SUCCESS : EXIT_FAILURE;
}

int on_mpi([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
#if HVD_HAS_MPI
    hvd::mpi_environment environment{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    return world.size() == std::atoi(argv[2]) && right(world) ? EXIT_SUCCESS : EXIT_FAILURE;
#else
    std::puts("built without MPI");
    return EXIT_FAILURE;
#endif
}

}  // namespace

int main(int argc, char** argv) { return argc > 2 ? on_mpi(argc, argv) : on_threads(); }
