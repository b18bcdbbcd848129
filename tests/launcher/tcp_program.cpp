// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <hvd/tcp.hpp>

// Prints its place and a sum over all ranks. With an argument rank 1 then ends with exit code 23,
// and the others wait for it in a collective.
int main(int argc, char**) {
    try {
        auto world = hvd::communicator<hvd::tcp>::world();
        std::vector<double> sums(100'000, world.rank());
        world.allreduce(sums, hvd::sum);
        std::printf("rank %d of %d, local %d of %d, sum %g\n", world.rank(), world.size(),
                    world.local_rank(), world.local_size(), sums.back());
        std::fflush(stdout);
        if (argc > 1) {
            if (world.rank() == 1) std::_Exit(23);
            world.barrier();
        }
    } catch (const hvd::error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
