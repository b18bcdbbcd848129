// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <utility>

#include "../../core/tensor_view.hpp"
#include "../../protocol/agreement.hpp"
#include "../tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {
template <class Comm, class T>
class gradient_reducer;
template <class Comm, class T>
class device_reducer;
}  // namespace detail

/// The gradients of one step after `synchronize()`. They may be read or changed, and are then
/// handed to `apply`. They are equal on all ranks, except those of local parameters. With Adasum
/// they differ, since ranks combine their steps instead. Dropping the object drops the step. It
/// does not outlive its optimizer. Feature G8.
template <class T, class Space = host>
class [[nodiscard(
    "hvd: synchronized gradients change nothing until they are applied")]] synchronized_gradients {
public:
    synchronized_gradients(synchronized_gradients&& other) noexcept
        : rank_(other.rank_),
          tensors_(other.tensors_),
          shared_(other.shared_),
          open_(std::exchange(other.open_, nullptr)) {}
    synchronized_gradients& operator=(synchronized_gradients&&) = delete;
    ~synchronized_gradients() {
        if (open_ != nullptr) *open_ = false;
    }

    /// One tensor for each parameter, in the order of registration. It is empty for a frozen
    /// parameter.
    std::span<const tensor_view<T, Space>> tensors() const { return tensors_; }

    /// The tensors with empty ones for local parameters. All ranks see the same values here, and
    /// may change them alike.
    std::span<const tensor_view<T, Space>> shared() const { return shared_; }

    /// The rank in the communicator of the gradients.
    int rank() const noexcept { return rank_; }

private:
    template <class, class>
    friend class detail::gradient_reducer;
    template <class, class>
    friend class detail::device_reducer;

    synchronized_gradients(int rank, std::span<const tensor_view<T, Space>> tensors,
                           std::span<const tensor_view<T, Space>> shared, bool& open)
        : rank_(rank), tensors_(tensors), shared_(shared), open_(&open) {
        open = true;
    }

    int rank_;
    std::span<const tensor_view<T, Space>> tensors_, shared_;
    bool* open_;
};

/// The Euclidean norm of all shared gradients together. It is the same number on all ranks. Local
/// gradients do not count.
template <class T>
double global_norm(const synchronized_gradients<T>& gradients) {
    double squares = 0;
    for (const auto& tensor : gradients.shared())
        for (const T& x : detail::elements(tensor))
            squares += detail::as_double(x) * detail::as_double(x);
    return std::sqrt(squares);
}

/// Scales the shared gradients so that their norm is at most `largest`, and returns their norm
/// before. Local gradients stay as they are.
/// @throws hvd::usage_error for a `largest` that is negative or NaN.
template <class T>
double clip_by_norm(synchronized_gradients<T>& gradients, double largest) {
    if (!(largest >= 0))
        detail::refuse(gradients.rank(), "gradients are to be clipped to a norm of ", largest,
                       ", and that is at least 0");
    const double norm = global_norm(gradients);
    if (norm > largest)
        for (const auto& tensor : gradients.shared()) detail::scale(tensor, largest / norm);
    return norm;
}

}  // namespace v0
}  // namespace hvd
