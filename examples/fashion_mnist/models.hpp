// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string_view>

#include "model.hpp"

namespace fashion_mnist {

/// Makes the model "mlp" or "cnn" of `float` or `double`, with parameters drawn from the seed.
/// models.cpp compiles the networks once for all programs. It throws `std::invalid_argument` for
/// another name.
template <class Scalar>
model<Scalar> make_model(std::string_view name, std::uint64_t seed);

}  // namespace fashion_mnist
