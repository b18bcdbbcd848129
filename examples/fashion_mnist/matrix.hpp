// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <Eigen/Dense>

namespace fashion_mnist {

/// A batch has one column per sample. A weight has one row per output.
template <class Scalar>
using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

}  // namespace fashion_mnist
