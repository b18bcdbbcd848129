// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dataset.hpp"
#include "matrix.hpp"
#include "random.hpp"
#include "temporary_directory.hpp"

namespace fixtures {

using hvd_test::temporary_directory;

inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Makes images of noise with a brighter stripe that shows the class.
inline fashion_mnist::dataset small_dataset(std::size_t count) {
    using namespace fashion_mnist;
    const random_stream random(2024);
    std::vector<std::uint8_t> images(count * image_size);
    std::vector<std::uint8_t> labels(count);
    for (std::size_t i = 0; i < count; ++i) {
        labels[i] = static_cast<std::uint8_t>(random.bits(i) % classes);
        for (std::size_t pixel = 0; pixel < image_size; ++pixel) {
            const std::size_t row = pixel / image_side;
            const std::uint64_t noise = random.bits(count + i * image_size + pixel) % 128;
            const std::uint64_t stripe = row / 2 == labels[i] ? 100 : 0;
            images[i * image_size + pixel] = static_cast<std::uint8_t>(noise + stripe);
        }
    }
    return {std::move(images), std::move(labels)};
}

/// Returns numbers that are uniform in [-1, 1).
inline fashion_mnist::matrix<double> random_matrix(Eigen::Index rows, Eigen::Index columns,
                                                   std::uint64_t seed) {
    const fashion_mnist::random_stream random(seed);
    return fashion_mnist::matrix<double>::NullaryExpr(
        rows, columns, [&](Eigen::Index i, Eigen::Index j) {
            return 2 * random.uniform(static_cast<std::uint64_t>(j * rows + i)) - 1;
        });
}

}  // namespace fixtures
