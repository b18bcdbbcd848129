// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <hvd/data.hpp>

namespace data_tests {

inline std::vector<int> numbers_below(int n) {
    std::vector<int> all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

// The batches of an epoch on one rank, in order.
template <class Loader>
auto batches_of(Loader& loader, std::uint64_t epoch) {
    std::vector<typename Loader::batch_type> all;
    for (auto& batch : loader.epoch(epoch)) all.push_back(std::move(batch));
    return all;
}

// The samples of each batch, over all ranks in their order.
template <class Pipeline>
std::vector<std::vector<int>> on_all_ranks(const Pipeline& pipeline, int ranks, std::uint64_t epoch,
                                           std::size_t threads = 1) {
    std::vector<std::vector<int>> all;
    for (int rank = 0; rank < ranks; ++rank) {
        hvd::data::loader loader(pipeline, hvd::part{.rank = rank, .size = ranks},
                                 {.threads = threads});
        std::size_t step = 0;
        for (const std::vector<int>& batch : loader.epoch(epoch)) {
            if (step == all.size()) all.emplace_back();
            all[step].insert(all[step].end(), batch.begin(), batch.end());
            ++step;
        }
    }
    return all;
}

}  // namespace data_tests
