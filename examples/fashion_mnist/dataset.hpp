// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "idx.hpp"
#include "matrix.hpp"

namespace fashion_mnist {

inline constexpr std::size_t image_side = 28;
inline constexpr std::size_t image_size = image_side * image_side;
inline constexpr std::size_t classes = 10;

/// A sample is identified by its position in the data set, on every rank.
using sample_index = std::size_t;

/// Writes the pixels of an image into a column, in the scale of the training images.
template <class Scalar>
void normalise(const std::uint8_t* pixels, matrix<Scalar>& input, std::size_t column) {
    using bytes = Eigen::Map<const Eigen::Array<std::uint8_t, Eigen::Dynamic, 1>>;
    constexpr double mean = 0.2860 * 255, deviation = 0.3530 * 255;
    input.col(static_cast<Eigen::Index>(column)).array() =
        (bytes(pixels, image_size).template cast<Scalar>() - Scalar(mean)) * Scalar(1 / deviation);
}

/// Images and labels as bytes. All ranks of a process share them.
class dataset {
public:
    dataset(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels)
        : images_(std::move(images)), labels_(std::move(labels)) {}

    std::size_t size() const { return labels_.size(); }

    /// Keeps the first `count` samples.
    void limit(std::size_t count) {
        if (count >= size()) return;
        labels_.resize(count);
        images_.resize(count * image_size);
    }

    const std::uint8_t* pixels(sample_index i) const { return images_.data() + i * image_size; }
    std::uint8_t label(sample_index i) const { return labels_[i]; }

    /// Copies samples into the columns of `input`, normalised, and their labels into `labels`.
    template <class Scalar>
    void gather(std::span<const sample_index> samples, matrix<Scalar>& input,
                std::vector<std::uint8_t>& labels) const {
        input.resize(image_size, static_cast<Eigen::Index>(samples.size()));
        labels.resize(samples.size());
        for (std::size_t i = 0; i < samples.size(); ++i) {
            normalise(pixels(samples[i]), input, i);
            labels[i] = label(samples[i]);
        }
    }

private:
    std::vector<std::uint8_t> images_;
    std::vector<std::uint8_t> labels_;
};

/// Reads `<name>-images-idx3-ubyte.gz` and `<name>-labels-idx1-ubyte.gz`.
///
/// @throws file_error if a file is missing, truncated or of another format, or if the two do not
/// match.
inline dataset load_dataset(const std::filesystem::path& directory, const std::string& name) {
    const auto image_file = directory / (name + "-images-idx3-ubyte.gz");
    const auto label_file = directory / (name + "-labels-idx1-ubyte.gz");
    idx_array images = read_idx(image_file);
    idx_array labels = read_idx(label_file);
    if (images.shape.size() != 3 || images.shape[1] != image_side || images.shape[2] != image_side)
        throw file_error(image_file, "does not hold images of 28 x 28");
    if (labels.shape.size() != 1) throw file_error(label_file, "does not hold labels");
    if (labels.shape[0] != images.shape[0])
        throw file_error(label_file, std::to_string(labels.shape[0]) + " labels for " +
                                         std::to_string(images.shape[0]) + " images");
    if (std::ranges::any_of(labels.values, [](std::uint8_t label) { return label >= classes; }))
        throw file_error(label_file, "has a label above 9");
    return {std::move(images.values), std::move(labels.values)};
}

struct data {
    dataset train;
    dataset test;
};

}  // namespace fashion_mnist
