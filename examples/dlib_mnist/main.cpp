// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Trains a network of dlib on Fashion-MNIST with dlib's own trainer, on any number of ranks.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <hvd/hvd.hpp>
#include <hvd/train.hpp>

#include "data_parallel.hpp"
#include "idx.hpp"

namespace {

using image = dlib::matrix<unsigned char>;

template <class Sub>
using convolution = dlib::max_pool<2, 2, 2, 2, dlib::relu<Sub>>;
using lenet = dlib::loss_multiclass_log<dlib::fc<
    10, dlib::relu<dlib::fc<
            84, convolution<dlib::con<
                    16, 5, 5, 1, 1, convolution<dlib::con<6, 5, 5, 1, 1, dlib::input<image>>>>>>>>>;

struct options {
    std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
    std::size_t limit = 0;
    int epochs = 3;
    std::size_t batch = 64;
    double rate = 0.02;
    int threads = 0;
};

struct data_set {
    std::vector<image> images;
    std::vector<unsigned long> labels;
};

data_set read(const options& options, const std::string& name) {
    const auto file = [&](const char* what) { return options.data / (name + what); };
    const auto pixels = fashion_mnist::read_idx(file("-images-idx3-ubyte.gz"));
    const auto labels = fashion_mnist::read_idx(file("-labels-idx1-ubyte.gz"));
    const auto rows = static_cast<long>(pixels.shape.at(1)),
               columns = static_cast<long>(pixels.shape.at(2));
    const std::size_t all = std::min(pixels.shape[0], labels.values.size()),
                      count = options.limit == 0 ? all : std::min(all, options.limit);
    data_set result;
    const std::uint8_t* next = pixels.values.data();
    for (std::size_t i = 0; i < count; ++i, next += rows * columns) {
        result.images.push_back(dlib::mat(next, rows, columns));
        result.labels.push_back(labels.values[i]);
    }
    return result;
}

// The share of the test images that the network knows. Each rank looks at its own.
template <class Communicator>
double accuracy(Communicator& comm, lenet& net, const data_set& test) {
    hvd::sharded_sampler sampler(test.images.size(), comm,
                                 {.shuffle = false, .uneven = hvd::uneven_samples::keep});
    std::array<double, 2> right_and_all{};
    for (const std::size_t i : sampler.indices()) {
        right_and_all[0] += net(test.images[i]) == test.labels[i] ? 1 : 0;
        right_and_all[1] += 1;
    }
    comm.allreduce(right_and_all, hvd::sum);
    return right_and_all[0] / right_and_all[1];
}

template <class Communicator>
void train(Communicator& comm, const options& options, const data_set& data, const data_set& test) {
    lenet net;
    net(data.images.front());  // shapes the network
    dlib_mnist::replicas all(comm, net);
    all.broadcast();

    dlib::dnn_trainer trainer(net, dlib_mnist::distributed_solver(all, dlib::sgd(0.0005f, 0.9f)));
    trainer.set_learning_rate(options.rate);
    trainer.set_learning_rate_shrink_factor(1);  // it would look at this rank's loss alone

    hvd::sharded_sampler sampler(data.images.size(), comm);
    const std::size_t mine =
        std::max<std::size_t>(1, options.batch / static_cast<std::size_t>(comm.size()));
    for (int epoch = 0; epoch < options.epochs; ++epoch) {
        sampler.begin_epoch({.epoch = static_cast<std::uint64_t>(epoch)});
        const auto order = sampler.indices();
        for (std::size_t first = 0; first < order.size(); first += mine) {
            data_set batch;
            for (std::size_t i = first; i < std::min(first + mine, order.size()); ++i) {
                batch.images.push_back(data.images[order[i]]);
                batch.labels.push_back(data.labels[order[i]]);
            }
            trainer.train_one_step(batch.images, batch.labels);
        }
        trainer.get_net();  // waits for the last step
        const double right = accuracy(comm, net, test);
        if (comm.rank() == 0)
            fmt::print("{} ranks: epoch {}, test accuracy {:.2f} %\n", comm.size(), epoch + 1,
                       100 * right);
    }
}

std::optional<int> parse(int argc, char** argv, options& result) {
    CLI::App app("Trains a network of dlib on Fashion-MNIST, on any number of ranks.");
    app.option_defaults()->always_capture_default();
    app.add_option("--data", result.data, "directory of the package dataset-fashion-mnist");
    app.add_option("--limit", result.limit, "use the first N images (0: all)");
    app.add_option("--epochs", result.epochs)->check(CLI::PositiveNumber);
    app.add_option("--batch", result.batch, "images a step on all ranks together")
        ->check(CLI::PositiveNumber);
    app.add_option("--lr", result.rate)->check(CLI::PositiveNumber);
    app.add_option("--threads", result.threads,
                   "ranks as threads of this process (0: MPI's world)");
    CLI11_PARSE(app, argc, argv);
    return std::nullopt;
}

void say(const std::exception& error) { fmt::print(stderr, "dlib_mnist: {}\n", error.what()); }

}  // namespace

int main(int argc, char** argv) try {
    options options;
    if (const auto status = parse(argc, argv, options)) return *status;
    const data_set data = read(options, "train"), test = read(options, "t10k");
#if HVD_HAS_MPI
    if (options.threads == 0) {
        hvd::mpi_environment environment{argc, argv};
        try {
            auto world = hvd::communicator<hvd::mpi>::world();
            train(world, options, data, test);
        } catch (const std::exception& error) {
            say(error);  // now, since the environment aborts the job before this reaches main
            throw;
        }
        return EXIT_SUCCESS;
    }
#endif
    hvd::run_threads(std::max(options.threads, 1), [&](hvd::communicator<hvd::threads>& comm) {
        train(comm, options, data, test);
    });
} catch (const std::exception& error) {
    say(error);
    return EXIT_FAILURE;
}
