// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/elastic.hpp>

#include "train.hpp"

namespace fashion_mnist {

/// Trains on ranks that come and go. With --global-batch the result is that of a fixed number of
/// ranks, up to rounding.
inline void train_elastic(const options& options, const data& data) {
    training<float> kept(options);
    auto values = kept.values();
    hvd::elastic::state state(values, kept.optimizer, kept.progress);
    if (!options.keep.empty()) state.persist_in(options.keep.string());
    hvd::elastic::run(state, [&](auto& comm) {
        trainer trainer(comm, options, kept);
        train_to_the_end(comm, trainer, options, data, [&](std::size_t images) {
            trainer.keep_optimizer();
            state.commit({.samples = std::int64_t(images)});
        });
    });
}

}  // namespace fashion_mnist
