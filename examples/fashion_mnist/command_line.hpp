// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "options.hpp"

namespace fashion_mnist {

/// Reads the command line into `result`. A returned value is the exit status of a program that
/// should end.
inline std::optional<int> parse(int argc, char** argv, options& result) {
    CLI::App app("Trains a network on Fashion-MNIST, on any number of ranks.");
    app.option_defaults()->always_capture_default();

    app.add_option("--model", result.model)->check(CLI::IsMember({"mlp", "cnn"}));
    app.add_option("--epochs", result.epochs, "epochs in all")->check(CLI::PositiveNumber);
    auto* batch = app.add_option("--batch", result.batch, "images a step on each rank");
    batch->check(CLI::PositiveNumber);
    auto* global_batch = app.add_option("--global-batch", result.global_batch,
                                        "images a step on all ranks together");
    global_batch->capture_default_str()->excludes(batch);
    app.add_option("--lr", result.rate, "learning rate of one rank")->check(CLI::PositiveNumber);
    app.add_option("--momentum", result.momentum)->check(CLI::Range(0., 1.));
    app.add_option("--decay-after", result.decay_after,
                   "epochs after which the learning rate is a tenth (0: never)")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--clip", result.clip,
                   "scale the gradients so that their norm is at most this (0: never)")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--codec", result.codec, "how gradients travel, with feedback of the rounding")
        ->check(CLI::IsMember({"none", "float16", "bfloat16"}));
    auto* float16 =
        app.add_flag("--float16", result.float16,
                     "parameters and gradients of 16 bits, masters in float, and a scaled loss");
    app.add_flag("--no-scale-lr", result.fixed_rate,
                 "do not multiply the learning rate by the number of ranks");
    app.add_option("--seed", result.seed);
    app.add_option("--data", result.data, "directory of the four IDX files");
    app.add_option("--limit", result.limit, "use the first N training images (0: all)");
    auto* augment =
        app.add_flag("--augment", result.augment, "move and mirror each image at random");
    auto* service = app.add_option("--data-service", result.data_service,
                                   "the config file of a data service whose workers do that");
    service->excludes(augment)->needs(global_batch);
    app.add_flag("--serve", result.serves,
                 "be a worker of a data service, with the options of the trainers")
        ->excludes(service)
        ->needs(global_batch);
    auto* threads = app.add_option("--threads", result.threads,
                                   "ranks as threads of this process (0: MPI's world)");
    threads->check(CLI::NonNegativeNumber);
    auto* elastic = app.add_flag("--elastic", result.elastic,
                                 "ranks come and go while it trains: an elastic job of hvdrun");
    elastic->excludes(threads)->excludes(float16);
    app.add_option("--keep", result.keep,
                   "directory in which an elastic job keeps its state, and from which it goes on")
        ->needs(elastic);
    app.add_option("--checkpoint", result.checkpoint, "write this file after each epoch");
    app.add_option("--resume", result.resume, "go on from this file")->excludes(elastic);
    app.add_flag("--progress", result.progress, "show progress even if nobody watches");
    app.add_flag("--log", result.log, "say after each epoch how well it does on the test images");
    app.add_flag("--scaling", result.scaling,
                 "measure instead: epochs on rank 0 alone and on all ranks in turn")
        ->excludes(elastic);

    CLI11_PARSE(app, argc, argv);
    return std::nullopt;
}

}  // namespace fashion_mnist
