// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The part of hvd-info that is linked with MPI.
//
// hvd-info-mpi --library prints the library's version and starts nothing. hvd-info-mpi starts MPI,
// reads a report, and prints a line of facts. Rank 0 prints the reports of all ranks below it, each
// after its size.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <hvd/platform/cuda_aware_mpi.hpp>

namespace {

std::string library() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string all(text, std::size_t(length));
    // MPICH says its number first, in a line of its own: "MPICH Version:\t4.0.2".
    return all.substr(0, all.find('\n'));
}

const char* name_of(int level) {
    switch (level) {
        case MPI_THREAD_MULTIPLE: return "multiple";
        case MPI_THREAD_SERIALIZED: return "serialized";
        case MPI_THREAD_FUNNELED: return "funneled";
        default: return "single";
    }
}

void gather(const std::string& own, int rank, int size) {
    int bytes = int(own.size());
    std::vector<int> sizes(std::size_t(size), 0), places(std::size_t(size), 0);
    MPI_Gather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (std::size_t r = 1; r < sizes.size(); ++r) places[r] = places[r - 1] + sizes[r - 1];
    std::string all(std::size_t(rank == 0 ? places.back() + sizes.back() : 0), ' ');
    MPI_Gatherv(own.data(), bytes, MPI_CHAR, all.data(), sizes.data(), places.data(), MPI_CHAR, 0,
                MPI_COMM_WORLD);
    for (std::size_t r = 0; rank == 0 && r < sizes.size(); ++r)
        std::printf("%d\n%s", sizes[r],
                    all.substr(std::size_t(places[r]), std::size_t(sizes[r])).c_str());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "--library") == 0) {
        std::puts(library().c_str());
        return 0;
    }
    const std::string own{std::istreambuf_iterator<char>(std::cin), {}};
    int level = 0, rank = 0, size = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::printf("%d %d %s %s\n", rank, size, name_of(level),
                hvd::detail::is_cuda_aware() ? "yes" : "no");
    gather(own, rank, size);
    std::fflush(stdout);
    MPI_Finalize();
    return 0;
}
