// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "conv2d.hpp"
#include "dense.hpp"
#include "dropout.hpp"
#include "fixtures.hpp"
#include "loss.hpp"
#include "max_pool.hpp"
#include "models.hpp"
#include "relu.hpp"

namespace {

using namespace fashion_mnist;
using fixtures::random_matrix;

/// Returns the derivative of a function by x, from central differences.
template <class Function>
double slope(double& x, Function function, double step = 1e-5) {
    const double before = x;
    x = before + step;
    const double above = function();
    x = before - step;
    const double below = function();
    x = before;
    return (above - below) / (2 * step);
}

std::vector<sample_index> first_samples(Eigen::Index count) {
    std::vector<sample_index> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), sample_index(0));
    return samples;
}

/// Compares all gradients of ⟨direction, layer(input)⟩ with differences.
void check_gradients(layer<double>& layer, matrix<double> input) {
    const auto samples = first_samples(input.cols());
    const pass pass{true, 1, 0, samples};
    matrix<double> output;
    layer.forward(input, output, pass);
    const matrix<double> direction = random_matrix(output.rows(), output.cols(), 99);
    matrix<double> input_gradient;
    layer.backward(input, direction, &input_gradient);
    REQUIRE(input_gradient.rows() == input.rows());
    REQUIRE(input_gradient.cols() == input.cols());

    const auto objective = [&] {
        layer.forward(input, output, pass);
        return output.cwiseProduct(direction).sum();
    };
    const auto check = [&](matrix<double>& value, const matrix<double>& gradient) {
        for (Eigen::Index i = 0; i < value.size(); ++i)
            REQUIRE(gradient(i) == doctest::Approx(slope(value(i), objective)).epsilon(1e-6));
    };
    check(input, input_gradient);
    for (parameter<double>& p : layer.parameters()) {
        CAPTURE(p.name);
        check(p.value, p.gradient);
    }
}

}  // namespace

TEST_CASE("the gradients of a dense layer are its slopes") {
    dense<double> layer("dense", 7, 5, random_stream(1));
    check_gradients(layer, random_matrix(7, 3, 2));
}

TEST_CASE("the gradients of a convolution are its slopes") {
    conv2d<double> layer("conv", {2, 6, 5}, 3, random_stream(1));
    check_gradients(layer, random_matrix(2 * 6 * 5, 2, 2));
}

TEST_CASE("the gradients of a max-pool are its slopes") {
    max_pool<double> layer({3, 6, 4});
    check_gradients(layer, random_matrix(3 * 6 * 4, 2, 2));
}

TEST_CASE("the gradients of a rectifier are its slopes") {
    relu<double> layer;
    check_gradients(layer, random_matrix(20, 3, 2));
}

TEST_CASE("the gradients of dropout are its slopes") {
    dropout<double> layer(0.25, 1);
    check_gradients(layer, random_matrix(20, 3, 2));
}

TEST_CASE("the gradient of softmax and cross entropy is its slope") {
    matrix<double> outputs = 3 * random_matrix(10, 4, 5);
    const std::vector<std::uint8_t> labels{3, 0, 9, 3};
    const auto loss = [&] {
        matrix<double> copy = outputs;
        return softmax_cross_entropy(copy, labels, 1.).loss;
    };
    matrix<double> gradient = outputs;
    softmax_cross_entropy(gradient, labels, 0.5);
    for (Eigen::Index i = 0; i < outputs.size(); ++i)
        CHECK(gradient(i) == doctest::Approx(0.5 * slope(outputs(i), loss)).epsilon(1e-6));
}

TEST_CASE("softmax and cross entropy bear large outputs") {
    matrix<float> outputs = matrix<float>::Constant(10, 1, -1e30f);
    outputs(4, 0) = 1e30f;
    const std::vector<std::uint8_t> labels{4};
    const score score = softmax_cross_entropy(outputs, labels, 1.f);
    CHECK(score.loss == 0);
    CHECK(score.correct == 1);
    CHECK(outputs.allFinite());
}

TEST_CASE("a convolution is the sum over a 3x3 window of all channels") {
    conv2d<double> layer("conv", {2, 4, 3}, 1, random_stream(1));
    const matrix<double>& weight = layer.parameters()[0].value;
    const matrix<double> image = random_matrix(2 * 4 * 3, 1, 3);
    matrix<double> output;
    layer.forward(image, output, {});
    REQUIRE(output.rows() == 2);
    for (Eigen::Index x = 0; x < 2; ++x) {
        double sum = 0;
        for (Eigen::Index dy = 0; dy < 3; ++dy)
            for (Eigen::Index dx = 0; dx < 3; ++dx)
                for (Eigen::Index channel = 0; channel < 2; ++channel)
                    sum += weight(0, (dy * 3 + dx) * 2 + channel) *
                           image((dy * 4 + x + dx) * 2 + channel);
        CHECK(output(x) == doctest::Approx(sum));
    }
}

TEST_CASE("the gradients of a whole model are the slopes of its loss") {
    for (const std::string name : {"mlp", "cnn"}) {
        CAPTURE(name);
        auto model = make_model<double>(name, 1);
        const auto data = fixtures::small_dataset(2);
        const auto samples = first_samples(2);
        const pass pass{true, 1, 0, samples};
        matrix<double> input;
        std::vector<std::uint8_t> labels;
        data.gather(samples, input, labels);
        const auto loss = [&] {
            return softmax_cross_entropy(model.forward(input, pass), labels, 1.).loss;
        };
        matrix<double>& output = model.forward(input, pass);
        softmax_cross_entropy(output, labels, 1.);
        model.backward(input, output, [](const auto&) {});
        for (parameter<double>* p : model.parameters()) {
            CAPTURE(p->name);
            for (std::uint64_t draw = 0; draw < 5; ++draw) {
                const auto i = static_cast<Eigen::Index>(
                    random_stream(7).bits(draw) % static_cast<std::uint64_t>(p->value.size()));
                // The step is small, since a bias of the cnn moves thousands of rectifiers at once.
                const double expected = slope(p->value(i), loss, 1e-8);
                CHECK(p->gradient(i) == doctest::Approx(expected).epsilon(1e-4).scale(1e-2));
            }
        }
    }
}

TEST_CASE("a rank without samples contributes gradients of zero") {
    auto model = make_model<double>("cnn", 1);
    const auto data = fixtures::small_dataset(1);
    matrix<double> input;
    std::vector<std::uint8_t> labels;
    data.gather<double>({}, input, labels);
    for (parameter<double>* p : model.parameters()) p->gradient.setOnes();
    matrix<double>& output = model.forward(input, {true, 1, 0, {}});
    const score score = softmax_cross_entropy(output, labels, 1.);
    model.backward(input, output, [](const auto&) {});
    CHECK(score.samples == 0);
    for (parameter<double>* p : model.parameters()) CHECK(p->gradient.isZero(0));
}

TEST_CASE("the cnn has the parameters of the original") {
    auto model = make_model<float>("cnn", 1);
    Eigen::Index count = 0;
    for (const parameter<float>* p : model.parameters()) count += p->value.size();
    CHECK(count == 320 + 18'496 + 1'179'776 + 1'290);
}
