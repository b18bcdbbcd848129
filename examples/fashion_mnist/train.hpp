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

/// Trains parameters of type Stored, and evaluates. Rank 0 prints the results.
template <class Stored, class Communicator>
void train_stored(Communicator& comm, const options& options, const data& data) {
    const bool chief = comm.rank() == 0;
    trainer<float, Communicator, Stored> trainer(comm, options);
    if (!options.resume.empty()) trainer.resume(options.resume);

    double images = 0;
    double seconds = 0;
    while (trainer.epochs_done() < options.epochs) {
        progress_bar bar(chief && (options.progress || somebody_watches()),
                         trainer.epochs_done() + 1, options.epochs, data.train.size());
        const auto epoch =
            trainer.train_epoch(data.train, [&](std::size_t done) { bar.advance(done); });
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

template <class Communicator>
void train(Communicator& comm, const options& options, const data& data) {
    if (options.float16) train_stored<hvd::float16>(comm, options, data);
    else train_stored<float>(comm, options, data);
}

}  // namespace fashion_mnist
