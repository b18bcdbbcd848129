// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include <hvd/elastic.hpp>

// elastic_worker FILE: trains until there is a file of this name. In each step all ranks add the
// average of a tensor that differs between them, scaled so that it is 1 for any number of ranks. At
// the end each tells how many steps were done, and whether the sums are those of as many. When an
// epoch of N ranks has done a step, there is a file FILE.N. With HVD_TEST_SAMPLES each rank counts
// its rank and 1 samples in each of its steps. HVD_TEST_KEEP is a directory for the state. With
// HVD_TEST_UNEVEN the ranks stop after different numbers of steps: their ranks and 3. The process
// whose HVD_RANK is that of HVD_TEST_EXIT ends with 0 after 3 steps.
int main(int argc, char** argv) {
    if (argc != 2) return 2;
    std::printf("begins\n");
    std::fflush(stdout);
    const bool counts = std::getenv("HVD_TEST_SAMPLES") != nullptr;
    const bool is_uneven = std::getenv("HVD_TEST_UNEVEN") != nullptr;
    const char* const exits = std::getenv("HVD_TEST_EXIT");
    const bool is_early = exits != nullptr && std::string(exits) == std::getenv("HVD_RANK");
    std::vector<double> sums(1000, 0);
    bool is_over = false;
    std::int64_t done = 0;
    hvd::elastic::state state(sums, done, is_over);
    if (const char* directory = std::getenv("HVD_TEST_KEEP")) state.persist_in(directory);
    try {
        hvd::elastic::run(state, [&](auto& comm) {
            const double mean = (comm.size() + 1) / 2.0;
            while (!is_over && !(is_uneven && done >= comm.rank() + 3)) {
                std::vector<double> tensor(sums.size() + 1, comm.rank() + 1);
                tensor.back() = ::access(argv[1], F_OK) == 0 ? 1 : 0;
                comm.allreduce(tensor, hvd::average);
                for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += tensor[i] / mean;
                is_over = tensor.back() > 0;
                ++done;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                if (comm.rank() == 0) {
                    const std::string runs = argv[1] + ("." + std::to_string(comm.size()));
                    std::ofstream{runs};
                }
                state.commit({.samples = counts ? comm.rank() + 1 : 0});
                if (is_early && done == 3) std::_Exit(0);
            }
        });
    } catch (const hvd::error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    bool is_right = done == state.step();
    for (const double sum : sums) is_right = is_right && sum == double(done);
    std::printf("%ld steps, %s\n", long(done), is_right ? "right" : "wrong");
    return is_right ? 0 : 3;
}
