// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The file of a trainer in C that is compiled as C++20.

//! [source]
#include <hvd/tcp.hpp>  // or hvd/mpi.hpp, with hvd::mpi and an hvd::mpi_environment

#include <exception>
#include <string>

#include "data_parallel.h"

struct data_parallel {
    hvd::communicator<hvd::tcp> world = hvd::communicator<hvd::tcp>::world();
};

namespace {

thread_local std::string last_error;

// No exception leaves this file: C knows none.
template <class F>
int run(F f) {
    try {
        f();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

}  // namespace

data_parallel* data_parallel_begin() {
    data_parallel* made = nullptr;
    run([&] { made = new data_parallel; });
    return made;
}
int data_parallel_rank(const data_parallel* all) { return all->world.rank(); }
int data_parallel_size(const data_parallel* all) { return all->world.size(); }
int data_parallel_broadcast(data_parallel* all, float* parameters, size_t count) {
    return run([&] { all->world.broadcast(hvd::view(parameters, count), hvd::root{0}); });
}
int data_parallel_average(data_parallel* all, float* gradients, size_t count) {
    return run([&] { all->world.allreduce(hvd::view(gradients, count), hvd::average); });
}
void data_parallel_end(data_parallel* all) { delete all; }
const char* data_parallel_error() { return last_error.c_str(); }
//! [source]
