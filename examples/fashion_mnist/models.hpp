// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string_view>

#include "model.hpp"

namespace fashion_mnist {

/// "mlp" or "cnn", with parameters drawn from the seed, of `float` or `double`: models.cpp compiles
/// the networks once for all programs. Throws `std::invalid_argument` for another name.
template <class Scalar>
model<Scalar> make_model(std::string_view name, std::uint64_t seed);

}  // namespace fashion_mnist
