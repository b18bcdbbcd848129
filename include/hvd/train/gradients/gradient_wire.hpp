// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../core/concepts.hpp"
#include "../../fusion/codec.hpp"
#include "../tensors.hpp"
#include "options.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// True if the backend reduces the elements that a codec makes. Not every backend can.
template <class Half, class Backend>
constexpr bool reduces_wire =
    reducible<Half, op::sum, Backend> && reducible<Half, op::average, Backend>;

template <class Backend>
constexpr bool reduces_wire_of(gradient_codec codec) {
    if (codec == gradient_codec::float16) return reduces_wire<float16, Backend>;
    return codec == gradient_codec::none || reduces_wire<bfloat16, Backend>;
}

constexpr const char* no_wire_text =
    "this backend does not reduce 16-bit floats, which the codec makes of gradients";

// Calls f with a 16-bit float of the codec's type. It is not called without a codec.
template <class Backend, class F>
void with_wire_type(gradient_codec codec, F f) {
    if constexpr (reduces_wire<float16, Backend>)
        if (codec == gradient_codec::float16) f(float16(0.0f));
    if constexpr (reduces_wire<bfloat16, Backend>)
        if (codec == gradient_codec::bfloat16) f(bfloat16(0.0f));
}

template <class Half, class T>
void encode(const T* from, std::size_t n, Half* to, double scale, float* residual) {
    for (std::size_t i = 0; i < n; ++i) {
        const double y = as_double(from[i]) * scale + (residual ? double(residual[i]) : 0);
        to[i] = Half(float(y));
        const double lost = y - double(float(to[i]));
        if (residual) residual[i] = is_finite(lost) ? float(lost) : 0;
    }
}

template <class Half>
void encode(const float* from, std::size_t n, Half* to, double scale, float* residual) {
    if (residual == nullptr) cast<Half>::encode(from, n, to, scale);
    else error_feedback<cast<Half>>::encode(from, n, to, scale, residual);
}

template <class Half, class T>
void decode(const Half* from, std::size_t n, T* to, double scale) {
    for (std::size_t i = 0; i < n; ++i) to[i] = from_double<T>(double(float(from[i])) * scale);
}

template <class Half>
void decode(const Half* from, std::size_t n, float* to, double scale) {
    cast<Half>::decode(from, n, to, scale);
}

// Gradients side by side as 16-bit floats. A codec of fusion/ writes and reads floats, and scales
// in the same pass. Other elements are converted one by one.
template <class Half>
class gradient_wire {
public:
    gradient_wire() = default;
    explicit gradient_wire(std::size_t count) : elements_(count) {}

    std::vector<Half>& elements() { return elements_; }

    template <class T>
    void encode(const std::vector<tensor_view<T>>& gradients, double scale) {
        Half* to = elements_.data();
        for (const auto& g : gradients) {
            detail::encode(g.data(), g.size(), to, scale, nullptr);
            to += g.size();
        }
    }

    template <class T>
    void decode(const std::vector<tensor_view<T>>& gradients, double scale) const {
        const Half* from = elements_.data();
        for (const auto& g : gradients) {
            detail::decode(from, g.size(), g.data(), scale);
            from += g.size();
        }
    }

private:
    std::vector<Half> elements_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
