// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "models.hpp"

#include <stdexcept>
#include <string>

#include "conv2d.hpp"
#include "dense.hpp"
#include "dropout.hpp"
#include "max_pool.hpp"
#include "relu.hpp"

namespace fashion_mnist {
namespace {

/// Makes a network with 784 inputs, 128 hidden units and 10 classes.
template <class Scalar>
model<Scalar> make_mlp(std::uint64_t seed) {
    const auto random = [seed](int number) {
        return random_stream(purpose::initial_parameters, seed, number);
    };
    model<Scalar> model("mlp");
    model.template add<dense<Scalar>>("dense1", image_size, 128, random(1));
    model.template add<relu<Scalar>>();
    model.template add<dense<Scalar>>("dense2", 128, classes, random(2));
    return model;
}

/// Makes the network of Keras' and Horovod's MNIST examples: two convolutions, a max-pool and two
/// dense layers.
template <class Scalar>
model<Scalar> make_cnn(std::uint64_t seed) {
    const auto random = [seed](int number) {
        return random_stream(purpose::initial_parameters, seed, number);
    };
    const image_shape image{1, image_side, image_side};
    model<Scalar> model("cnn");
    const auto& conv1 = model.template add<conv2d<Scalar>>("conv1", image, 32, random(1));
    model.template add<relu<Scalar>>();
    const auto& conv2 =
        model.template add<conv2d<Scalar>>("conv2", conv1.output_shape(), 64, random(2));
    model.template add<relu<Scalar>>();
    const auto& pool = model.template add<max_pool<Scalar>>(conv2.output_shape());
    model.template add<dropout<Scalar>>(0.25, 1);
    model.template add<dense<Scalar>>("dense1", pool.output_shape().size(), 128, random(3));
    model.template add<relu<Scalar>>();
    model.template add<dropout<Scalar>>(0.5, 2);
    model.template add<dense<Scalar>>("dense2", 128, classes, random(4));
    return model;
}

}  // namespace

template <class Scalar>
model<Scalar> make_model(std::string_view name, std::uint64_t seed) {
    if (name == "mlp") return make_mlp<Scalar>(seed);
    if (name == "cnn") return make_cnn<Scalar>(seed);
    throw std::invalid_argument("there is no model \"" + std::string(name) + '"');
}

template model<float> make_model(std::string_view, std::uint64_t);
template model<double> make_model(std::string_view, std::uint64_t);

}  // namespace fashion_mnist
