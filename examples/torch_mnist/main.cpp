// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Trains a LibTorch module on Fashion-MNIST with hvd. If LibTorch has its own data parallelism, the
// two take turns.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "dataset.hpp"
#include "with_hvd.hpp"
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
    std::filesystem::path data = "/usr/share/datasets/fashion-mnist";
};

struct batch {
    torch::Tensor images, labels;
};

batch gather(const dataset& data, std::span<const sample_index> samples) {
    fashion_mnist::matrix<float> images;
    std::vector<std::uint8_t> labels;
    data.gather(samples, images, labels);
    const auto count = static_cast<std::int64_t>(samples.size());
    return {torch::from_blob(images.data(), {count, 1, 28, 28}).clone(),
            torch::from_blob(labels.data(), {count}, torch::kUInt8).to(torch::kInt64)};
}

// Every trainer sees the same batches and drops the same units. So they end with the same
// parameters, up to rounding.
template <class Trainer>
double images_per_second(world& comm, Trainer& trainer, cnn& net, const dataset& data,
                         const options& options, int epoch) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 * epoch + comm.rank()));
    const auto order = fashion_mnist::shuffled(data.size(), 1, static_cast<std::uint64_t>(epoch));
    const std::size_t global = options.batch * static_cast<std::size_t>(comm.size());
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    std::size_t done = 0;
    for (; done + global <= order.size(); done += global) {
        const auto mine =
            fashion_mnist::shard(std::span(order).subspan(done, global), comm.rank(), comm.size());
        trainer.step([&] {
            const batch b = gather(data, mine);
            return torch::nll_loss(net.forward(b.images), b.labels);
        });
    }
    comm.barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return static_cast<double>(done) / seconds.count();
}

double accuracy(world& comm, cnn& net, const dataset& data) {
    const torch::NoGradGuard no_gradients;
    net.eval();
    std::vector<sample_index> all(data.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<sample_index>(i);
    auto samples =
        fashion_mnist::shard(std::span<const sample_index>(all), comm.rank(), comm.size());
    double right = 0;
    for (; !samples.empty();
         samples = samples.subspan(std::min<std::size_t>(200, samples.size()))) {
        const batch b = gather(data, samples.first(std::min<std::size_t>(200, samples.size())));
        right += net.forward(b.images).argmax(1).eq(b.labels).sum().item<double>();
    }
    net.train();
    comm.allreduce(right, hvd::sum);
    return right / static_cast<double>(data.size());
}

struct contender {
    const char* name;
    cnn& net;
    std::function<double(int)> train_epoch;
    std::vector<double> rates = {};
};

void compare(world& comm, std::vector<contender> contenders, const fashion_mnist::data& data,
             int epochs) {
    for (int epoch = 0; epoch < epochs; ++epoch)
        for (contender& c : contenders) c.rates.push_back(c.train_epoch(epoch));
    for (contender& c : contenders) {
        const double right = accuracy(comm, c.net, data.test);
        std::ranges::sort(c.rates);
        if (comm.rank() == 0)
            fmt::print(
                "{} ranks, {}: test accuracy {:.2f} %, {:.0f} images/s (median of {} epochs)\n",
                comm.size(), c.name, 100 * right, c.rates[c.rates.size() / 2], c.rates.size());
    }
    if (contenders.size() < 2 || comm.rank() != 0) return;
    double apart = 0;
    const auto ours = contenders[0].net.parameters(), theirs = contenders[1].net.parameters();
    for (std::size_t i = 0; i < ours.size(); ++i)
        apart = std::max(apart, (ours[i] - theirs[i]).abs().max().item<double>());
    fmt::print("their parameters are at most {:.1e} apart\n", apart);
}

void run(world& comm, const options& options, const fashion_mnist::data& data) {
    at::set_num_threads(1);  // a rank is one core
    torch::manual_seed(1);
    cnn ours;
    with_hvd hvd_trainer(comm, ours, options.rate);
    std::vector<contender> contenders = {{with_hvd::name, ours, [&](int epoch) {
                                              return images_per_second(comm, hvd_trainer, ours,
                                                                       data.train, options, epoch);
                                          }}};
#if TORCH_MNIST_C10D
    torch::manual_seed(1);
    cnn theirs;
    std::string meeting =
        std::filesystem::temp_directory_path() / fmt::format("torch_mnist-{}", ::getpid());
    comm.broadcast_object(meeting);
    with_c10d c10d_trainer(meeting, comm.rank(), comm.size(), theirs, options.rate);
    contenders.push_back({with_c10d::name, theirs, [&](int epoch) {
                              return images_per_second(comm, c10d_trainer, theirs, data.train,
                                                       options, epoch);
                          }});
#endif
    compare(comm, contenders, data, options.epochs);
}

std::optional<int> parse(int argc, char** argv, options& result) {
    CLI::App app("Trains a LibTorch module on Fashion-MNIST, with hvd and with c10d in turn.");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", result.epochs)->check(CLI::PositiveNumber);
    app.add_option("--batch", result.batch, "images a step on each rank")
        ->check(CLI::PositiveNumber);
    app.add_option("--limit", result.limit, "use the first N training images (0: all)");
    app.add_option("--lr", result.rate)->check(CLI::PositiveNumber);
    app.add_option("--data", result.data, "directory of the four IDX files");
    CLI11_PARSE(app, argc, argv);
    return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) try {
    options options;
    if (const auto status = parse(argc, argv, options)) return *status;
    fashion_mnist::data data{fashion_mnist::load_dataset(options.data, "train"),
                             fashion_mnist::load_dataset(options.data, "t10k")};
    if (options.limit) data.train.limit(options.limit);
    hvd::mpi_environment environment{argc, argv};
    auto comm = world::world();
    run(comm, options, data);
} catch (const std::exception& error) {
    fmt::print(stderr, "torch_mnist: {}\n", error.what());
    return EXIT_FAILURE;
}
