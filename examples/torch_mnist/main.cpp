// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Trains a LibTorch module on Fashion-MNIST with hvd, on the host or on GPUs. On the host the two
// take turns if LibTorch has its own data parallelism.

#include <fmt/format.h>
#include <torch/cuda.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <optional>

#include <hvd/train.hpp>

#include "dataset.hpp"
#include "with_hvd.hpp"
#ifndef TORCH_MNIST_NO_GPUS
#include "on_gpus.hpp"
#endif
#if TORCH_MNIST_C10D
#include "with_c10d.hpp"
#endif

namespace {

using namespace torch_mnist;
using fashion_mnist::dataset;
using fashion_mnist::sample_index;

struct options {
    int epochs = 3;
    std::size_t batch = 64;
    std::size_t limit = 0;
    double rate = 0.01;
    std::string device = "cpu";
    std::string backend = "nccl";
    std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
};

struct batch {
    torch::Tensor images, labels;
};

batch gather(const dataset& data, std::span<const sample_index> samples, torch::Device device) {
    fashion_mnist::matrix<float> images;
    std::vector<std::uint8_t> labels;
    data.gather(samples, images, labels);
    const auto count = static_cast<std::int64_t>(samples.size());
    constexpr bool asynchronous = false, copy = true;
    return {torch::from_blob(images.data(), {count, 1, 28, 28})
                .to(device, torch::kFloat32, asynchronous, copy),
            torch::from_blob(labels.data(), {count}, torch::kUInt8).to(device, torch::kInt64)};
}

// Every trainer sees the same batches and, on the same kind of device, drops the same units. So
// they end with the same parameters, up to rounding.
double images_per_second(world& comm, const trainer& trainer, const dataset& data,
                         const options& options, int epoch) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 * epoch + comm.rank()));
    hvd::sharded_sampler sampler(data.size(), comm, {.seed = 1});
    sampler.begin_epoch({.epoch = static_cast<std::uint64_t>(epoch)});
    const std::size_t steps = sampler.size() / options.batch;  // the trainers weigh ranks alike
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t step = 0; step < steps; ++step) {
        const auto mine = sampler.batch(step, options.batch);
        trainer.step([&] {
            const batch b = gather(data, mine, trainer.device);
            return torch::nll_loss(trainer.net->forward(b.images), b.labels);
        });
    }
    if (trainer.device.is_cuda()) torch::cuda::synchronize(trainer.device.index());
    comm.barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::size_t images = steps * options.batch * static_cast<std::size_t>(comm.size());
    return static_cast<double>(images) / seconds.count();
}

double accuracy(world& comm, const trainer& trainer, const dataset& data) {
    const torch::NoGradGuard no_gradients;
    trainer.net->eval();
    const hvd::sharded_sampler sampler(data.size(), comm,
                                       {.shuffle = false, .uneven = hvd::uneven_samples::keep});
    double right = 0;
    for (std::size_t step = 0; step < sampler.steps(200); ++step) {
        const batch b = gather(data, sampler.batch(step, 200), trainer.device);
        right += trainer.net->forward(b.images).argmax(1).eq(b.labels).sum().item<double>();
    }
    trainer.net->train();
    comm.allreduce(right, hvd::sum);
    return right / static_cast<double>(data.size());
}

// The trainers take turns, epoch by epoch.
void compare(world& comm, const std::vector<trainer>& trainers, const fashion_mnist::data& data,
             const options& options) {
    std::vector<std::vector<double>> rates(trainers.size());
    for (int epoch = 0; epoch < options.epochs; ++epoch)
        for (std::size_t i = 0; i < trainers.size(); ++i)
            rates[i].push_back(images_per_second(comm, trainers[i], data.train, options, epoch));
    for (std::size_t i = 0; i < trainers.size(); ++i) {
        const double right = accuracy(comm, trainers[i], data.test);
        std::ranges::sort(rates[i]);
        if (comm.rank() == 0)
            fmt::print(
                "{} ranks, {}: test accuracy {:.2f} %, {:.0f} images/s (median of {} epochs)\n",
                comm.size(), trainers[i].name, 100 * right, rates[i][rates[i].size() / 2],
                rates[i].size());
    }
    if (trainers.size() < 2 || comm.rank() != 0) return;
    double apart = 0;
    const auto ours = trainers[0].net->parameters(), theirs = trainers[1].net->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i)
        apart = std::max(apart, (ours[i] - theirs[i]).abs().max().item<double>());
    fmt::print("their parameters are at most {:.1e} apart\n", apart);
}

// Names a trainer whose communicator is on the host.
template <class Trainer>
trainer on_the_host(const char* name, std::shared_ptr<cnn> net, std::shared_ptr<Trainer> parallel) {
    return {name, std::move(net), torch::kCPU,
            [parallel](const loss_function& loss) { parallel->step(loss); }};
}

std::vector<trainer> make_trainers(world& comm, const options& options) {
#ifndef TORCH_MNIST_NO_GPUS
    if (options.device == "cuda") return {on_gpus(comm, options.backend, options.rate)};
#endif
    auto net = make_net(torch::kCPU);
    auto ours = std::make_shared<with_hvd<world>>(comm, *net, options.rate);
    std::vector<trainer> trainers = {on_the_host("hvd", std::move(net), std::move(ours))};
#if TORCH_MNIST_C10D
    std::string meeting =
        std::filesystem::temp_directory_path() / fmt::format("torch_mnist-{}", ::getpid());
    comm.broadcast_object(meeting);
    net = make_net(torch::kCPU);
    auto theirs =
        std::make_shared<with_c10d>(meeting, comm.rank(), comm.size(), *net, options.rate);
    trainers.push_back(on_the_host("c10d", std::move(net), std::move(theirs)));
#endif
    return trainers;
}

void run(world& comm, const options& options, const fashion_mnist::data& data) {
    at::set_num_threads(1);  // a rank is one core
    compare(comm, make_trainers(comm, options), data, options);
}

// The reason why there is no GPU to train on. It is empty if there is one.
std::string no_gpus() {
#ifdef TORCH_MNIST_NO_GPUS
    return TORCH_MNIST_NO_GPUS;
#else
    return torch::cuda::is_available() ? "" : "LibTorch finds no GPU here";
#endif
}

std::optional<int> parse(int argc, char** argv, options& result) {
    CLI::App app("Trains a LibTorch module on Fashion-MNIST, with hvd and with c10d in turn.");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", result.epochs)->check(CLI::PositiveNumber);
    app.add_option("--batch", result.batch, "images a step on each rank")
        ->check(CLI::PositiveNumber);
    app.add_option("--limit", result.limit, "use the first N training images (0: all)");
    app.add_option("--lr", result.rate)->check(CLI::PositiveNumber);
    app.add_option("--device", result.device, "where the network is")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--backend", result.backend, "what moves gradients between GPUs")
        ->check(CLI::IsMember({"nccl", "staged"}));
    app.add_option("--data", result.data, "directory of the four IDX files");
    CLI11_PARSE(app, argc, argv);
    return std::nullopt;
}

void say(const std::exception& error) { fmt::print(stderr, "torch_mnist: {}\n", error.what()); }

}  // namespace

int main(int argc, char** argv) try {
    options options;
    if (const auto status = parse(argc, argv, options)) return *status;
    if (options.device == "cuda")
        if (const auto reason = no_gpus(); !reason.empty()) {
            fmt::print(stderr, "torch_mnist: --device cuda: {}\n", reason);
            return 2;
        }
    fashion_mnist::data data{fashion_mnist::load_dataset(options.data, "train"),
                             fashion_mnist::load_dataset(options.data, "t10k")};
    if (options.limit) data.train.limit(options.limit);
    hvd::mpi_environment environment{argc, argv};
    try {
        auto comm = world::world();
        run(comm, options, data);
    } catch (const std::exception& error) {
        say(error);  // now, since the environment aborts the job before this reaches main
        throw;
    }
} catch (const std::exception& error) {
    say(error);
    return EXIT_FAILURE;
}
