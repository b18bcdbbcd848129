// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "options.hpp"
#include "trainer.hpp"

namespace fashion_mnist {

inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

/// Trains epochs on rank 0 alone and on all ranks in turn, so that both see the same machine. The
/// batch of a rank is the same in both. Rank 0 prints the share of perfect speed-up.
template <class Communicator>
void measure_scaling(Communicator& comm, const options& options, const data& data) {
    auto chief = comm.subset({0});
    training<float> of_one(options), of_all(options);
    std::optional<trainer<float, Communicator>> alone;
    if (chief) alone.emplace(chief, options, of_one);
    trainer<float, Communicator> together(comm, options, of_all);

    const auto nothing = [](std::size_t, std::size_t) {};
    std::vector<double> one, all;
    for (int round = 0; round <= options.epochs; ++round) {
        comm.barrier();
        if (alone) one.push_back(alone->train_epoch(data.train, nothing).rate());
        comm.barrier();
        all.push_back(together.train_epoch(data.train, nothing).rate());
    }
    if (!alone) return;
    one.erase(one.begin());  // the first round warms up
    all.erase(all.begin());
    fmt::print(
        "scaling efficiency {:.1f} % (medians of {} interleaved epochs each: "
        "1 rank {:.0f} images/s, {} ranks {:.0f} images/s)\n",
        100 * median(all) / (comm.size() * median(one)), options.epochs, median(one), comm.size(),
        median(all));
}

}  // namespace fashion_mnist
