// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include <hvd/train.hpp>

#include "layer.hpp"

namespace fashion_mnist {

/// The parameters and gradients as the optimizer has them: those of the model itself, or copies of
/// 16 bits (mixed precision). The model computes with the values of the copies.
template <class Scalar, class Stored>
class stored_parameters {
public:
    static constexpr bool are_copies = !std::is_same_v<Scalar, Stored>;

    /// Registers all with the optimizer. They stay where they are.
    template <class Optimizer>
    stored_parameters(const std::vector<parameter<Scalar>*>& parameters, Optimizer& optimizer)
        : parameters_(parameters), copies_(are_copies ? parameters.size() : 0) {
        for (parameter<Scalar>* p : parameters)
            if constexpr (are_copies) {
                copy& c = copies_[p->number];
                c.value.resize(static_cast<std::size_t>(p->value.size()));
                c.gradient.resize(c.value.size());
                convert(p->value.data(), c.value);
                optimizer.register_parameter(p->name, as_rows(c.value.data(), *p),
                                             as_rows(c.gradient.data(), *p));
            } else {
                optimizer.register_parameter(p->name, as_rows(p->value.data(), *p),
                                             as_rows(p->gradient.data(), *p));
            }
    }

    /// Call it when the model has a gradient, before the optimizer takes it.
    void take_gradient(const parameter<Scalar>& p) {
        if constexpr (are_copies) convert(p.gradient.data(), copies_[p.number].gradient);
    }

    /// Call it when the optimizer has changed the values.
    void give_values() {
        if constexpr (are_copies)
            for (parameter<Scalar>* p : parameters_)
                std::ranges::transform(copies_[p->number].value, p->value.data(),
                                       [](Stored x) { return static_cast<Scalar>(x); });
    }

private:
    struct copy {
        std::vector<Stored> value, gradient;
    };

    static void convert(const Scalar* from, std::vector<Stored>& to) {
        std::transform(from, from + to.size(), to.begin(),
                       [](Scalar x) { return static_cast<Stored>(x); });
    }

    // A file's tensors are row-major. A column-major matrix is its transpose in row-major order:
    // inputs × outputs.
    template <class T>
    static auto as_rows(T* data, const parameter<Scalar>& p) {
        return hvd::view(data, hvd::shape(p.value.cols(), p.value.rows()));
    }

    std::vector<parameter<Scalar>*> parameters_;
    std::vector<copy> copies_;
};

/// SGD for parameters of Scalar, or for those of 16 bits with masters in float.
template <class Scalar, class Stored>
using sgd_of =
    std::conditional_t<std::is_same_v<Scalar, Stored>, hvd::optimizers::sgd<Scalar>,
                       hvd::optimizers::float_masters<
                           std::conditional_t<std::is_same_v<Scalar, Stored>, hvd::float16, Stored>,
                           hvd::optimizers::sgd<float>>>;

template <class Scalar, class Stored>
sgd_of<Scalar, Stored> make_sgd(double momentum) {
    sgd_of<Scalar, Stored> result;
    result.momentum = static_cast<Scalar>(momentum);
    return result;
}

}  // namespace fashion_mnist
