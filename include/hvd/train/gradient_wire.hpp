// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <vector>

#include "../fusion/codec.hpp"
#include "tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Gradients side by side as 16-bit floats, made and read by a codec of fusion/, which scales in the
// same pass. A codec is for floats; other elements go through them one by one.
template <class Half>
class gradient_wire {
public:
    gradient_wire() = default;
    gradient_wire(std::size_t count, bool error_feedback)
        : elements_(count), residual_(error_feedback ? count : 0) {}

    std::vector<Half>& elements() { return elements_; }

    template <class T>
    void encode(const std::vector<tensor_view<T>>& gradients, double scale) {
        std::size_t at = 0;
        for (const auto& g : gradients) {
            float* const residual = residual_.empty() ? nullptr : residual_.data() + at;
            encode(g.data(), g.size(), elements_.data() + at, scale, residual);
            at += g.size();
        }
    }

    template <class T>
    void decode(const std::vector<tensor_view<T>>& gradients, double scale) const {
        const Half* from = elements_.data();
        for (const auto& g : gradients) {
            decode(from, g.size(), g.data(), scale);
            from += g.size();
        }
    }

private:
    static void encode(const float* from, std::size_t n, Half* to, double scale, float* residual) {
        if (residual == nullptr) cast<Half>::encode(from, n, to, scale);
        else error_feedback<cast<Half>>::encode(from, n, to, scale, residual);
    }

    template <class T>
    static void encode(const T* from, std::size_t n, Half* to, double scale, float* residual) {
        for (std::size_t i = 0; i < n; ++i) {
            const double y = as_double(from[i]) * scale + (residual ? double(residual[i]) : 0);
            to[i] = Half(float(y));
            const double lost = y - double(float(to[i]));
            if (residual) residual[i] = std::isfinite(lost) ? float(lost) : 0;
        }
    }

    static void decode(const Half* from, std::size_t n, float* to, double scale) {
        cast<Half>::decode(from, n, to, scale);
    }

    template <class T>
    static void decode(const Half* from, std::size_t n, T* to, double scale) {
        for (std::size_t i = 0; i < n; ++i) to[i] = from_double<T>(double(float(from[i])) * scale);
    }

    std::vector<Half> elements_;
    std::vector<float> residual_;  // what rounding has taken so far; empty without error feedback
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
