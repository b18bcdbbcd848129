// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include <hvd/hvd.hpp>

#include "command_line.hpp"
#include "dataset.hpp"
#include "elastic.hpp"
#include "scaling.hpp"
#include "train.hpp"

namespace {

using namespace fashion_mnist;

void say(const std::exception& error) { fmt::print(stderr, "fashion_mnist: {}\n", error.what()); }

data load(const options& options) {
    data data{load_dataset(options.data, "train"), load_dataset(options.data, "t10k")};
    if (options.limit) data.train.limit(options.limit);
    return data;
}

template <class Communicator>
void run(Communicator& comm, const options& options, const data& data) {
    if (options.scaling) measure_scaling(comm, options, data);
    else train(comm, options, data);
}

void run_on_threads(int ranks, const options& options) {
    const data data = load(options);
    hvd::run_threads(ranks,
                     [&](hvd::communicator<hvd::threads>& comm) { run(comm, options, data); });
}

#if HVD_HAS_MPI
void run_on_mpi(int& argc, char**& argv, const options& options) {
    const data data = load(options);
    hvd::mpi_environment environment{argc, argv};
    try {
        auto world = hvd::communicator<hvd::mpi>::world();
        run(world, options, data);
    } catch (const std::exception& error) {
        say(error);  // now, since the environment aborts the job before this reaches main
        throw;
    }
}
#endif

}  // namespace

int main(int argc, char** argv) try {
    options options;
    if (const auto status = parse(argc, argv, options)) return *status;
    if (options.serves) {
        const data data = load(options);
        return hvd::data::serve(augmented(data.train, options, options.global_batch));
    }
    if (options.elastic) {
        train_elastic(options, load(options));
        return EXIT_SUCCESS;
    }
#if HVD_HAS_MPI
    if (!options.threads) run_on_mpi(argc, argv, options);
    else run_on_threads(options.threads, options);
#else
    run_on_threads(options.threads ? options.threads : 1, options);
#endif
    return EXIT_SUCCESS;
} catch (const std::exception& error) {
    say(error);
    return EXIT_FAILURE;
}
