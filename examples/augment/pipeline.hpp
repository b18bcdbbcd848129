// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <hvd/data.hpp>

// The pipeline of worker.cpp and train.cpp: drawn images of stripes in four colours, each turned,
// scaled and lit at random. Every pixel of the result is the mean of many points, so an
// image takes about a millisecond.
namespace augment {

constexpr std::size_t side = 32, channels = 3, kinds = 4;
constexpr std::size_t pixels = side * side * channels;
constexpr std::size_t images = 1024, batch_size = 64, epochs = 2;

// An image, and its kind as the last number.
using sample = std::array<float, pixels + 1>;

// A picture is a function of a place, and costs nothing before it is looked at.
struct picture {
    std::size_t kind = 0;
    float phase = 0;

    float at(float x, float y, std::size_t channel) const {
        const float along = kind % 2 == 0 ? x + y : x - y;
        const float light = channel == kind ? 1.f : 0.5f;  // the last kind is dark in all
        return light * (0.5f + 0.5f * std::sin(9 * along + phase));
    }
};

struct pictures {
    std::size_t size() const { return images; }
    picture read(std::size_t i) const { return {i % kinds, float(i / kinds % 17)}; }
};

// The numbers of one augmentation.
struct change {
    explicit change(hvd::data::random& draws)
        : angle(0.4f * float(draws.uniform() - 0.5)),
          scale(0.8f + 0.4f * float(draws.uniform())),
          light{0.8f + 0.4f * float(draws.uniform()), 0.8f + 0.4f * float(draws.uniform()),
                0.8f + 0.4f * float(draws.uniform())} {}

    float angle, scale;
    std::array<float, channels> light;
};

// The mean of 5 × 5 points of a pixel.
inline float pixel_of(const picture& from, const change& by, std::size_t row, std::size_t column,
                      std::size_t channel) {
    constexpr int points = 5;
    const float c = by.scale * std::cos(by.angle), s = by.scale * std::sin(by.angle);
    float sum = 0;
    for (int i = 0; i < points; ++i)
        for (int j = 0; j < points; ++j) {
            const float y = (float(row) + float(i) / points) / side - 0.5f;
            const float x = (float(column) + float(j) / points) / side - 0.5f;
            sum += from.at(c * x - s * y, s * x + c * y, channel);
        }
    return by.light[channel] * sum / (points * points);
}

inline sample augmented(const picture& from, hvd::data::random& draws) {
    const change by(draws);
    sample image{};
    std::size_t at = 0;
    for (std::size_t row = 0; row < side; ++row)
        for (std::size_t column = 0; column < side; ++column)
            for (std::size_t channel = 0; channel < channels; ++channel)
                image[at++] = pixel_of(from, by, row, column, channel);
    image[at] = float(from.kind);
    return image;
}

inline auto pipeline() {
    namespace data = hvd::data;
    return data::from(pictures()) |
           data::map([](const picture& p, data::random& draws) { return augmented(p, draws); }) |
           data::shuffle({.seed = 3}) | data::batch(batch_size) | data::prefetch(8);
}

}  // namespace augment
