// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <utility>

#include "../core/tensor_view.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {

/// The gradients of one step after `synchronize()`: equal on all ranks, to be looked at or changed,
/// and handed to `apply`. Dropping it drops the step. It does not outlive its optimizer. Feature
/// G8.
template <class T>
class [[nodiscard(
    "hvd: synchronized gradients change nothing until they are applied")]] synchronized_gradients {
public:
    synchronized_gradients(synchronized_gradients && other) noexcept
        : tensors_(other.tensors_), open_(std::exchange(other.open_, nullptr)) {}
    synchronized_gradients& operator=(synchronized_gradients&&) = delete;
    ~synchronized_gradients() {
        if (open_ != nullptr) *open_ = false;
    }

    /// One for each parameter, in the order of registration; empty for a frozen one.
    std::span<const tensor_view<T>> tensors() const { return tensors_; }

private:
    template <class, class, class>
    friend class distributed_optimizer;

    synchronized_gradients(std::span<const tensor_view<T>> tensors, bool& open)
        : tensors_(tensors), open_(&open) {
        open = true;
    }

    std::span<const tensor_view<T>> tensors_;
    bool* open_;
};

/// The Euclidean norm of all gradients together.
template <class T>
double global_norm(const synchronized_gradients<T>& gradients) {
    double squares = 0;
    for (const auto& tensor : gradients.tensors())
        for (const T& x : detail::elements(tensor))
            squares += detail::as_double(x) * detail::as_double(x);
    return std::sqrt(squares);
}

/// Scales the gradients so that their norm is at most `largest`; gives the norm they had.
template <class T>
double clip_by_norm(synchronized_gradients<T>& gradients, double largest) {
    const double norm = global_norm(gradients);
    if (norm > largest)
        for (const auto& tensor : gradients.tensors()) detail::scale(tensor, largest / norm);
    return norm;
}

}  // namespace v0
}  // namespace hvd
