// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// More elements than an int can count, for real. Needs some 9 GiB of memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <hvd/hvd.hpp>

namespace {

constexpr std::size_t count = (std::size_t(1) << 31) + 3;

// A different value near each place where a narrowed count would stop or begin again.
constexpr std::size_t places[] = {0,         1,         2,         3,        count / 2,
                                  count - 4, count - 3, count - 2, count - 1};

template <class Communicator>
bool sums_and_broadcasts(Communicator& comm) {
    bool right = true;
    std::vector<std::int8_t> values(count, std::int8_t(comm.rank() + 1));
    comm.allreduce(values, hvd::sum);
    for (const std::size_t place : places) right = right && values[place] == 3;

    for (const std::size_t place : places)
        values[place] = std::int8_t(comm.rank() == 1 ? place % 101 + 1 : 0);
    comm.broadcast(values, hvd::root{1});
    for (const std::size_t place : places)
        right = right && values[place] == std::int8_t(place % 101 + 1);
    return right;
}

}  // namespace

int main([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
#if HVD_HAS_MPI
    hvd::mpi_environment environment{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    if (world.size() != 2 || !sums_and_broadcasts(world)) return EXIT_FAILURE;
#else
    bool right[2] = {};
    hvd::run_threads(2, [&right](auto& comm) { right[comm.rank()] = sums_and_broadcasts(comm); });
    if (!right[0] || !right[1]) return EXIT_FAILURE;
#endif
    std::puts("2^31 + 3 elements on 2 ranks");
}
