// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "dropout.hpp"
#include "fixtures.hpp"

namespace {

using namespace fashion_mnist;

matrix<float> masks(std::uint64_t seed, std::uint64_t epoch, std::uint64_t layer_number,
                    std::vector<sample_index> samples) {
    dropout<float> layer(0.25, layer_number);
    const matrix<float> ones = matrix<float>::Ones(200, static_cast<Eigen::Index>(samples.size()));
    matrix<float> output;
    layer.forward(ones, output, {true, seed, epoch, samples});
    return output;
}

}  // namespace

TEST_CASE("a dropout mask is the same in every split and order of a batch") {
    const matrix<float> whole = masks(1, 2, 1, {10, 11, 12, 13, 14});
    CHECK(masks(1, 2, 1, {10, 11}) == whole.leftCols(2));
    CHECK(masks(1, 2, 1, {12, 13, 14}) == whole.rightCols(3));
    CHECK(masks(1, 2, 1, {14, 13, 12, 11, 10}) == whole.rowwise().reverse());
}

TEST_CASE("a dropout mask is another for another seed, epoch, layer or sample") {
    const matrix<float> mask = masks(1, 2, 1, {10});
    CHECK(masks(2, 2, 1, {10}) != mask);
    CHECK(masks(1, 3, 1, {10}) != mask);
    CHECK(masks(1, 2, 2, {10}) != mask);
    CHECK(masks(1, 2, 1, {11}) != mask);
}

TEST_CASE("dropout drops the part it should and keeps the mean") {
    std::vector<sample_index> samples(100);
    std::iota(samples.begin(), samples.end(), sample_index(0));
    const matrix<float> output = masks(1, 0, 1, samples);  // 20 000 units
    const double dropped = static_cast<double>((output.array() == 0).count()) / 20'000;
    CHECK(dropped > 0.23);
    CHECK(dropped < 0.27);
    CHECK(output.maxCoeff() == doctest::Approx(4. / 3));
}

TEST_CASE("dropout does nothing in evaluation") {
    dropout<double> layer(0.5, 1);
    const matrix<double> input = fixtures::random_matrix(20, 3, 1);
    matrix<double> output;
    layer.forward(input, output, {});
    CHECK(output == input);
}
