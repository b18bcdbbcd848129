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

/// Trains, calls `on_step(images)` after each step of so many images of this rank, and evaluates.
/// Rank 0 prints the results.
template <class Communicator, class Trainer, class OnStep>
void train_to_the_end(Communicator& comm, Trainer& trainer, const options& options,
                      const data& data, OnStep on_step) {
    const bool chief = comm.rank() == 0;
    double images = 0;
    double seconds = 0;
    while (trainer.epochs_done() < options.epochs) {
        progress_bar bar(chief && (options.progress || somebody_watches()),
                         trainer.epochs_done() + 1, options.epochs, data.train.size());
        const auto epoch = trainer.train_epoch(data.train, [&](std::size_t done, std::size_t own) {
            bar.advance(done);
            on_step(own);
        });
        bar.finish(epoch.training, epoch.rate());
        images += epoch.training.samples;
        seconds += epoch.seconds;
        if (!options.checkpoint.empty()) trainer.save(options.checkpoint);
        if (options.log) log_epoch(comm, trainer.epochs_done(), epoch, trainer.evaluate(data.test));
    }

    const score test = trainer.evaluate(data.test);
    if (!chief) return;
    fmt::print("{} ranks: test accuracy {:.2f} %, {:.0f} images/s\n", comm.size(),
               100 * test.accuracy(), seconds > 0 ? images / seconds : 0);
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
