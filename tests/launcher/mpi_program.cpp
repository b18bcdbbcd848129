// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstdio>
#include <cstdlib>

#include <hvd/mpi.hpp>

// Prints its place and a sum over all ranks. With an argument rank 1 ends with that exit code.
int main(int argc, char** argv) {
    hvd::mpi_environment env{argc, argv};
    try {
        auto world = hvd::communicator<hvd::mpi>::world();
        int sum = world.rank();
        world.allreduce(sum, hvd::sum);
        const char* mine = std::getenv("MINE");
        std::printf("rank %d of %d, sum %d, MINE %s\n", world.rank(), world.size(), sum,
                    mine == nullptr ? "?" : mine);
        std::fflush(stdout);
        if (argc > 1 && world.rank() == 1) std::exit(std::atoi(argv[1]));
    } catch (const hvd::usage_error& refused) {
        std::fprintf(stderr, "%s\n", refused.what());
        return 1;
    }
}
