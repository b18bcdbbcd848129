// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Functions of an MPI library that stand before those of the real one, where LD_PRELOAD names this
// file: that of another version, or of one that crashes as it starts.
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

extern "C" {
int MPI_Get_library_version(char* version, int* length);
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided);

int MPI_Get_library_version(char* version, int* length) {
    std::strcpy(version, std::getenv("HVD_TEST_MPI_LIBRARY"));
    *length = int(std::strlen(version));
    return 0;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    if (std::getenv("HVD_TEST_MPI_CRASH") != nullptr) std::raise(SIGSEGV);
    void* const real = ::dlsym(RTLD_NEXT, "MPI_Init_thread");
    return reinterpret_cast<decltype(&MPI_Init_thread)>(real)(argc, argv, required, provided);
}
}
