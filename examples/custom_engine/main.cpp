// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// An engine with its own memory, tensors, threads and MPI_Comm becomes data-parallel. hvd starts
// nothing. It takes over the engine's communicator, and reduces the engine's tensors where they
// lie.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <hvd/mpi.hpp>

#include "network.hpp"

//! [tensor]
// From here on an engine's tensor is a tensor of hvd.
template <>
struct hvd::view_traits<custom_engine::tensor> {
    static constexpr bool borrowed = true;
    static auto view(const custom_engine::tensor& t) {
        return hvd::view(t.data, hvd::shape(t.rows, t.columns));
    }
};
//! [tensor]

namespace {

constexpr int samples = 480, steps = 400;
constexpr float rate = 0.2f;

std::array<float, 2> input_of(int sample) {
    const auto n = float(sample);
    return {std::sin(1.3f * n), std::cos(2.1f * n)};
}
float target_of(const std::array<float, 2>& x) { return std::sin(3 * x[0]) * x[1]; }

// Runs one rank of the engine. The engine starts MPI itself, so it does not use
// hvd::mpi_environment.
void train(MPI_Comm group, int threads) {
    //! [communicator]
    hvd::communicator<hvd::mpi> comm(group, hvd::adopt);  // frees it at the end
    //! [communicator]

    custom_engine::slab memory(1 << 20);
    custom_engine::network model(memory), gradient(memory);
    std::vector<custom_engine::network> partial;  // one for each thread
    for (int t = 0; t < threads; ++t) partial.emplace_back(memory);
    int number = 0;
    for (const auto& tensor : model.tensors())
        for (std::size_t i = 0; i < tensor.size(); ++i)
            tensor.data[i] = 0.7f * std::sin(float(number += 7));

    //! [plan]
    auto [w1, b1, w2, b2] = gradient.tensors();
    auto [v1, a1, v2, a2] = model.tensors();
    comm.broadcast(hvd::fuse(v1, a1, v2, a2), hvd::root{0});
    auto average = comm.plan_allreduce(hvd::fuse(w1, b1, w2, b2), hvd::average);  // made once
    //! [plan]

    custom_engine::crew crew(threads);
    std::vector<double> errors(static_cast<std::size_t>(threads));
    double first = 0, last = 0;
    for (int step = 0; step < steps; ++step) {
        crew.run([&](int thread) {
            const auto me = static_cast<std::size_t>(thread);
            for (const auto& tensor : partial[me].tensors())
                std::fill_n(tensor.data, tensor.size(), 0.0f);
            errors[me] = 0;
            const int stride = comm.size() * threads;
            for (int s = comm.rank() * threads + thread; s < samples; s += stride) {
                const auto x = input_of(s);
                errors[me] +=
                    model.backward(x, target_of(x), float(comm.size()) / samples, partial[me]);
            }
        });
        const auto sums = gradient.tensors();
        for (std::size_t i = 0; i < sums.size(); ++i)
            for (std::size_t k = 0; k < sums[i].size(); ++k) {
                sums[i].data[k] = 0;
                for (const auto& part : partial) sums[i].data[k] += part.tensors()[i].data[k];
            }
        //! [run]
        average.run();  // in the engine's main thread, between two tasks of its crew
        //! [run]
        for (std::size_t i = 0; i < sums.size(); ++i)
            for (std::size_t k = 0; k < sums[i].size(); ++k)
                model.tensors()[i].data[k] -= rate * sums[i].data[k];

        double error = 0;
        for (const double e : errors) error += e / samples;
        comm.allreduce(error, hvd::sum);
        (step == 0 ? first : last) = error;
    }

    const auto everybodys = comm.allgather(v1);
    for (std::size_t i = 0; i < everybodys.values.size(); ++i)
        if (everybodys.values[i] != v1.data[i % v1.size()])
            throw std::runtime_error("the ranks have other parameters");
    if (comm.rank() == 0)
        std::printf(
            "%d ranks of %d threads: mean squared error %.3f, after %d steps %.3f; %zu bytes of "
            "the engine's slab\n",
            comm.size(), threads, first, steps, last, memory.used());
}

}  // namespace

int main(int argc, char** argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);  // as the engine always did
    MPI_Comm group = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &group);
    try {
        train(group, argc > 1 ? std::atoi(argv[1]) : 2);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engine: %s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    MPI_Finalize();
}
