// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layer.hpp"

namespace fashion_mnist {

/// Runs layers one after the other.
template <class Scalar>
class model {
public:
    explicit model(std::string name) : name_(std::move(name)) {}

    template <class Layer, class... Arguments>
    Layer& add(Arguments&&... arguments) {
        auto owned = std::make_unique<Layer>(std::forward<Arguments>(arguments)...);
        Layer& added = *owned;
        for (parameter<Scalar>& p : added.parameters()) {
            p.number = parameters_.size();
            parameters_.push_back(&p);
        }
        layers_.push_back(std::move(owned));
        outputs_.resize(layers_.size());
        return added;
    }

    const std::string& name() const { return name_; }
    std::size_t depth() const { return layers_.size(); }
    const std::vector<parameter<Scalar>*>& parameters() const { return parameters_; }

    /// The caller may change the output. The next pass overwrites it.
    matrix<Scalar>& forward(const matrix<Scalar>& input, const pass& pass) {
        const matrix<Scalar>* from = &input;
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            layers_[i]->forward(*from, outputs_[i], pass);
            from = &outputs_[i];
        }
        return outputs_.back();
    }

    /// Call it after `forward` with the same input. It leaves the gradients in the parameters, and
    /// calls `ready(parameter)` for each as soon as its gradient is there.
    template <class Ready>
    void backward(const matrix<Scalar>& input, const matrix<Scalar>& output_gradient, Ready ready) {
        const matrix<Scalar>* gradient = &output_gradient;
        for (std::size_t i = layers_.size(); i-- > 0;) {
            // The gradients of layer i's input and output are in two matrices, which take turns.
            matrix<Scalar>* next = i > 0 ? &gradients_[i % 2] : nullptr;
            layers_[i]->backward(i > 0 ? outputs_[i - 1] : input, *gradient, next);
            for (const parameter<Scalar>& p : layers_[i]->parameters()) ready(p);
            gradient = next;
        }
    }

private:
    std::string name_;
    std::vector<std::unique_ptr<layer<Scalar>>> layers_;
    std::vector<parameter<Scalar>*> parameters_;
    std::vector<matrix<Scalar>> outputs_;
    matrix<Scalar> gradients_[2];
};

}  // namespace fashion_mnist
