// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "../standard.hpp"

namespace hvd::inline v0::data {

/// Samples of one size in one buffer, one after the other.
template <class T, class Allocator = std::allocator<T>>
struct rows {
    std::vector<T, Allocator> values;
    std::size_t width = 0;  ///< elements of a sample

    std::size_t size() const { return width == 0 ? 0 : values.size() / width; }
    const T* operator[](std::size_t sample) const { return values.data() + sample * width; }
};

/// Samples of different sizes in one buffer, one after the other.
template <class T, class Allocator = std::allocator<T>>
struct ragged_rows {
    using offset_allocator =
        typename std::allocator_traits<Allocator>::template rebind_alloc<std::size_t>;

    std::vector<T, Allocator> values;
    /// The place of each sample's first element, and of the end.
    std::vector<std::size_t, offset_allocator> offsets = {0};

    std::size_t size() const { return offsets.size() - 1; }
};

/// The batch of a `data::batch` without a function of the user: `data::rows` of `std::array`s of
/// numbers, and a vector of all other samples.
struct default_collate {
    template <class T>
    std::vector<T> operator()(std::vector<T> samples) const {
        return samples;
    }

    template <class T, std::size_t N>
        requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)  // their vectors have bits
    rows<T> operator()(const std::vector<std::array<T, N>>& samples) const {
        rows<T> batch{{}, N};
        batch.values.reserve(samples.size() * N);
        for (const auto& sample : samples)
            batch.values.insert(batch.values.end(), sample.begin(), sample.end());
        return batch;
    }
};

/// The type of `data::concatenate`.
struct concatenate_t {
    template <class Sample>
    auto operator()(const std::vector<Sample>& samples) const {
        ragged_rows<typename Sample::value_type> batch;
        for (const Sample& sample : samples) {
            batch.values.insert(batch.values.end(), sample.begin(), sample.end());
            batch.offsets.push_back(batch.values.size());
        }
        return batch;
    }
};
/// Makes `data::ragged_rows` of samples that are vectors or texts:
/// `data::batch(128, data::concatenate)`.
inline constexpr concatenate_t concatenate;

}  // namespace hvd::inline v0::data
