// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fmt/format.h>

#include "options.hpp"
#include "progress.hpp"
#include "trainer.hpp"

namespace fashion_mnist {

template <class Communicator>
void log_epoch(const Communicator& comm, int number, const epoch_result& epoch, const score& test) {
    if (comm.rank() != 0) return;
    fmt::print(
        "{} ranks: epoch {}, loss {:.4f}, training {:.2f} %, test {:.2f} %, {:.0f} images/s\n",
        comm.size(), number, epoch.training.mean_loss(), 100 * epoch.training.accuracy(),
        100 * test.accuracy(), epoch.rate());
    std::fflush(stdout);
}

/// Trains the epochs that are left on `batches`, and calls `on_step(images)` after each step of so
/// many images of this rank. Returns the images of all ranks in a second.
template <class Communicator, class Trainer, class Batches, class OnStep>
double train_epochs(Communicator& comm, Trainer& trainer, const options& options, const data& data,
                    const Batches& batches, OnStep on_step) {
    const bool shows = comm.rank() == 0 && (options.progress || somebody_watches());
    double images = 0;
    double seconds = 0;
    while (trainer.epochs_done() < options.epochs) {
        progress_bar bar(shows, trainer.epochs_done() + 1, options.epochs, data.train.size());
        const auto epoch = trainer.train_epoch(batches, [&](std::size_t done, std::size_t own) {
            bar.advance(done);
            on_step(own);
        });
        bar.finish(epoch.training, epoch.rate());
        images += epoch.training.samples;
        seconds += epoch.seconds;
        if (!options.checkpoint.empty()) trainer.save(options.checkpoint);
        if (options.log) log_epoch(comm, trainer.epochs_done(), epoch, trainer.evaluate(data.test));
    }
    return seconds > 0 ? images / seconds : 0;
}

/// Trains, and evaluates. Rank 0 prints the results.
template <class Communicator, class Trainer, class OnStep>
void train_to_the_end(Communicator& comm, Trainer& trainer, const options& options,
                      const data& data, OnStep on_step) {
    double rate = 0;
    with_batches(comm, options, data.train, [&](const auto& batches) {
        rate = train_epochs(comm, trainer, options, data, batches, on_step);
    });
    const score test = trainer.evaluate(data.test);
    if (comm.rank() != 0) return;
    fmt::print("{} ranks: test accuracy {:.2f} %, {:.0f} images/s\n", comm.size(),
               100 * test.accuracy(), rate);
}

/// Trains parameters of type Stored.
template <class Stored, class Communicator>
void train_stored(Communicator& comm, const options& options, const data& data) {
    training<float, Stored> kept(options);
    trainer<float, Communicator, Stored> trainer(comm, options, kept);
    if (!options.resume.empty()) trainer.resume(options.resume);
    train_to_the_end(comm, trainer, options, data, [](std::size_t) {});
}

template <class Communicator>
void train(Communicator& comm, const options& options, const data& data) {
    if (options.float16) train_stored<hvd::float16>(comm, options, data);
    else train_stored<float>(comm, options, data);
}

}  // namespace fashion_mnist
