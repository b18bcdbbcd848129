// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/hvd.hpp>

#include <cstddef>
#include <memory_resource>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradient_tensors.hpp"

namespace bench {

inline const std::vector<std::string> gradient_sets{
    "resnet50", "resnet101", "vgg16", "inception_v3_aux", "inception_v3_noaux", "1000x1KiB"};

/// Returns the number of elements of each gradient tensor of a model, in layer order. `limit` (0:
/// none) cuts the list short.
inline std::vector<std::size_t> gradient_counts(const std::string& set, std::size_t limit = 0) {
    std::vector<std::size_t> counts;
    if (set == "1000x1KiB") {
        counts.assign(1000, 1024 / sizeof(float));
    } else {
        const auto sets = nlohmann::json::parse(gradient_tensors);
        for (const auto& shape : sets.at(set)) {
            std::size_t count = 1;
            for (const auto& extent : shape) count *= extent.get<std::size_t>();
            counts.push_back(count);
        }
    }
    if (limit > 0 && limit < counts.size()) counts.resize(limit);
    return counts;
}

inline std::size_t total(const std::vector<std::size_t>& counts) {
    std::size_t sum = 0;
    for (const std::size_t n : counts) sum += n;
    return sum;
}

/// A model's gradients, each in its own tensor.
class gradients {
public:
    gradients(const std::vector<std::size_t>& counts, std::pmr::memory_resource* memory) {
        tensors_.reserve(counts.size());
        for (const std::size_t n : counts) tensors_.emplace_back(n, 0.0f, memory);
    }

    std::vector<std::pmr::vector<float>>& tensors() { return tensors_; }

    std::vector<hvd::tensor_view<float>> views() {
        std::vector<hvd::tensor_view<float>> result;
        for (auto& t : tensors_) result.push_back(hvd::view(t.data(), t.size()));
        return result;
    }

private:
    std::vector<std::pmr::vector<float>> tensors_;
};

}  // namespace bench
