// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <limits>
#include <utility>

#include "../../core/lean/finite.hpp"
#include "../../core/tensor_view.hpp"
#include "../../protocol/agreement.hpp"
#include "../sparse/rows.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0 {
namespace detail {
template <class Steps, class T>
class host_gradients;
template <class Comm, class T>
class device_gradients;
}  // namespace detail

struct loss_scale;

/// Options of `clip_by_norm`.
struct clip_options {
    /// throws `hvd::usage_error`, on all ranks, for a norm that is an infinity or NaN
    bool error_if_nonfinite = false;
};

/// The gradients of one step after `synchronize()`. They may be read or changed, and are then
/// handed to `apply`. They are equal on all ranks, except those of local parameters. With Adasum
/// they differ, since ranks combine their steps instead. Dropping the object drops the step. It
/// does not outlive its optimizer. Horovod: `synchronize`, `skip_synchronize`.
template <class T, class Space = host>
class [[nodiscard(
    "hvd: synchronized gradients change nothing until they are applied")]] synchronized_gradients {
public:
    synchronized_gradients(synchronized_gradients&& other) noexcept
        : rank_(other.rank_),
          tensors_(other.tensors_),
          shared_(other.shared_),
          parts_(other.parts_),
          max_norm_(other.max_norm_),
          factor_(other.factor_),
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
    friend class detail::host_gradients;
    template <class, class>
    friend class detail::device_gradients;
    template <class U>
    friend void clip_by_norm(synchronized_gradients<U, device>&, double);
    template <class U>
    friend double clip_by_norm(synchronized_gradients<U>&, double, const clip_options&);
    template <class U>
    friend double global_norm(const synchronized_gradients<U>&);
    friend loss_scale;

    // `parts` are those of the shared tensors, on the host.
    synchronized_gradients(int rank, std::span<const tensor_view<T, Space>> tensors,
                           std::span<const tensor_view<T, Space>> shared,
                           std::span<const detail::gradient_parts<T, Space>> parts, bool& open)
        : rank_(rank), tensors_(tensors), shared_(shared), parts_(parts), open_(&open) {
        open = true;
    }

    int rank_;
    std::span<const tensor_view<T, Space>> tensors_, shared_;
    std::span<const detail::gradient_parts<T, Space>> parts_;
    double max_norm_ = std::numeric_limits<double>::infinity();  // for a step on the device
    double factor_ = 1;                                          // that the step multiplies them by
    bool* open_;
};

/// The Euclidean norm of all shared gradients together. It is the same number on all ranks. Local
/// gradients do not count.
template <class T>
double global_norm(const synchronized_gradients<T>& gradients) {
    double squares = 0;
    for (const auto& parts : gradients.parts_)
        parts.for_each([&](const tensor_view<T>& part) {
            for (const T& x : detail::elements(part))
                squares += detail::as_double(x) * detail::as_double(x);
        });
    return std::sqrt(squares) * gradients.factor_;
}

namespace detail {
inline void check_max_norm(int rank, double max_norm) {
    if (is_nan(max_norm) || !(max_norm >= 0))
        refuse(rank, "gradients are to be clipped to a norm of ", max_norm,
               ", and that is at least 0");
}

// The factor that brings a norm down to `max_norm`, as PyTorch's clip_grad_norm_ has it: a norm
// that is NaN makes all gradients NaN, and an infinite one makes zeros of those that are finite.
inline double clip_factor(double norm, double max_norm) {
    if (!is_finite(max_norm)) return 1;
    if (is_nan(norm)) return norm;
    if (!is_finite(norm)) return 0;
    return norm > max_norm ? max_norm / norm : 1;
}
}  // namespace detail

/// Scales the shared gradients so that their norm is at most `max_norm`, and returns their norm
/// before. Local gradients stay as they are.
///
/// A norm that is not finite does what it does in PyTorch: a NaN makes all shared gradients NaN, an
/// infinity makes the finite ones zeros and the infinite ones NaN. So `skip_nonfinite` and a
/// `loss_scale` still leave the step out. An infinite `max_norm` clips nothing.
/// @throws hvd::usage_error for a `max_norm` that is negative or NaN, and as the options say.
template <class T>
double clip_by_norm(synchronized_gradients<T>& gradients, double max_norm,
                    const clip_options& o = {}) {
    detail::check_max_norm(gradients.rank(), max_norm);
    const double norm = global_norm(gradients);
    if (o.error_if_nonfinite && !detail::is_finite(norm))
        detail::refuse(gradients.rank(), "the norm of the gradients is ", norm,
                       ", and clip_by_norm has .error_if_nonfinite");
    const double factor = detail::clip_factor(norm, max_norm);
    for (const auto& parts : gradients.parts_)
        parts.for_each([&](const tensor_view<T>& part) { detail::scale(part, factor); });
    return norm;
}

/// Makes `apply` clip gradients on the device, without waiting on the host: it measures the norm of
/// the shared gradients over all ranks, and the step takes each scaled down so that the norm is at
/// most `max_norm`. The gradients themselves stay as they are. It is for hvd's own optimizers,
/// whose `gradient_norm(stream)` reads the norm afterwards. A norm that is not finite does the same
/// as on the host. There are no options: `gradient_norm(gradients, stream)` lets the host look
/// before.
/// @throws hvd::usage_error for a `max_norm` that is negative or NaN.
/// @snippet tests/train/device_snippets.cpp clip_by_norm
template <class T>
void clip_by_norm(synchronized_gradients<T, device>& gradients, double max_norm) {
    detail::check_max_norm(gradients.rank(), max_norm);
    if (max_norm < gradients.max_norm_) gradients.max_norm_ = max_norm;
}

}  // namespace hvd::inline v0
