// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Learns vectors of words from Perl's documentation: two tables, of which each batch changes a few
// rows.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <hvd/hvd.hpp>
#include <hvd/train.hpp>

#include "skip_gram.hpp"

namespace {

using namespace word2vec;

// Finds the folder where Debian's perl-doc puts it, for any version of Perl.
std::filesystem::path documentation_of_perl() {
    const std::filesystem::path versions = "/usr/share/perl";
    if (exists(versions))
        for (const auto& version : std::filesystem::directory_iterator(versions))
            if (exists(version.path() / "pod/perlfunc.pod")) return version.path() / "pod";
    return versions / "pod";
}

struct options {
    std::filesystem::path data = documentation_of_perl();
    std::size_t limit = 0;
    int epochs = 3;
    std::size_t batch = 256;
    double rate = 0.05;
    std::uint32_t least = 10;
    int threads = 0;
    std::vector<std::string> words = {"hash", "string", "file", "regex", "integer", "socket"};
    skip_gram::settings model;
};

template <class Communicator>
void train(Communicator& comm, const options& options, const corpus& corpus) {
    const bool chief = comm.rank() == 0;
    if (chief) fmt::print("{} words, {} different ones\n", corpus.text.size(), corpus.words.size());
    skip_gram model(corpus, options.model);
    // A row's gradient is the sum over its pairs, as if they came one after the other.
    hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{}, {.op = hvd::sum});
    const auto vectors = optimizer.register_sparse("vectors", model.vectors(),
                                                   model.vectors_gradient(), model.dimensions());
    const auto contexts = optimizer.register_sparse("contexts", model.contexts(),
                                                    model.contexts_gradient(), model.dimensions());
    hvd::broadcast_parameters(optimizer);

    hvd::sharded_sampler sampler(corpus.text.size(), comm);
    const std::size_t mine =
        std::max<std::size_t>(1, options.batch / static_cast<std::size_t>(comm.size()));
    for (int epoch = 0; epoch < options.epochs; ++epoch) {
        const auto start = std::chrono::steady_clock::now();
        sampler.begin_epoch({.epoch = static_cast<std::uint64_t>(epoch)});
        optimizer.begin_epoch(sampler.epoch());
        model.loss = model.pairs = 0;
        for (std::size_t step = 0; step < sampler.steps(mine); ++step) {
            model.backward(sampler.batch(step, mine), sampler.epoch());
            optimizer.gradient_ready(contexts, model.context_rows);
            optimizer.gradient_ready(vectors, model.vector_rows);
            const double done = sampler.epoch_after(step, mine) / options.epochs;
            optimizer.optimizer().rate = static_cast<float>(options.rate * (1 - 0.9 * done));
            optimizer.step();
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::array sums{model.loss, model.pairs};
        comm.allreduce(sums, hvd::sum);
        if (chief)
            fmt::print("{} ranks: epoch {}, loss {:.3f}, {:.0f} words/s\n", comm.size(), epoch + 1,
                       sums[0] / sums[1],
                       static_cast<double>(corpus.text.size()) / seconds.count());
    }

    for (const std::string& word : options.words) {
        const std::size_t number = corpus.find(word);
        if (!chief || number == corpus.words.size()) continue;
        std::string line = word + ':';
        for (const std::size_t near : model.neighbours(number, 6)) line += ' ' + corpus.words[near];
        fmt::print("{}\n", line);
    }
}

std::optional<int> parse(int argc, char** argv, options& result) {
    CLI::App app("Learns word vectors from Perl's documentation, on any number of ranks.");
    app.option_defaults()->always_capture_default();
    app.add_option("--data", result.data, "directory of .pod files, of the package perl-doc");
    app.add_option("--limit", result.limit, "use the first N words (0: all)");
    app.add_option("--epochs", result.epochs)->check(CLI::PositiveNumber);
    app.add_option("--batch", result.batch, "words a step on all ranks together")
        ->check(CLI::PositiveNumber);
    app.add_option("--lr", result.rate, "falls to a tenth")->check(CLI::PositiveNumber);
    app.add_option("--least", result.least, "leave out words seen less often");
    app.add_option("--dimensions", result.model.dimensions)->check(CLI::PositiveNumber);
    app.add_option("--window", result.model.window)->check(CLI::PositiveNumber);
    app.add_option("--rows", result.model.rows,
                   "rows of the tables, if more than the words: their steps cost nothing");
    app.add_option("--threads", result.threads,
                   "ranks as threads of this process (0: MPI's world)");
    app.add_option("--words", result.words, "whose nearest neighbours are printed")->delimiter(',');
    CLI11_PARSE(app, argc, argv);
    return std::nullopt;
}

void say(const std::exception& error) { fmt::print(stderr, "word2vec: {}\n", error.what()); }

}  // namespace

int main(int argc, char** argv) try {
    options options;
    if (const auto status = parse(argc, argv, options)) return *status;
    const corpus corpus = read_corpus(options.data, options.least, options.limit);
#if HVD_HAS_MPI
    if (options.threads == 0) {
        hvd::mpi_environment environment{argc, argv};
        try {
            auto world = hvd::communicator<hvd::mpi>::world();
            train(world, options, corpus);
        } catch (const std::exception& error) {
            say(error);  // now, since the environment aborts the job before this reaches main
            throw;
        }
        return EXIT_SUCCESS;
    }
#endif
    hvd::run_threads(std::max(options.threads, 1),
                     [&](hvd::communicator<hvd::threads>& comm) { train(comm, options, corpus); });
} catch (const std::exception& error) {
    say(error);
    return EXIT_FAILURE;
}
