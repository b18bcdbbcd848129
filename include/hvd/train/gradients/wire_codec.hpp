// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../fusion/codec.hpp"
#include "elements.hpp"

namespace hvd::inline v0::detail {

// A codec of gradients, for code that does not know its type. A gradient_codec has the address of
// one, so that programs without codecs compile no kernels of 16-bit floats.
struct wire_codec {
    const element_kind* halves;  // on the wire
    // With a factor in the same pass.
    void (*encode)(const float* from, std::size_t n, std::byte* to, double factor);
    void (*decode)(const std::byte* from, std::size_t n, float* to, double factor);
    // Encodes with residuals: see cast_args.
    void (*encode_with_residuals)(const float* from, std::size_t n, std::byte* to,
                                  float* residuals);
};

template <class Half>
struct wire_codec_of {
    static void encode(const float* from, std::size_t n, std::byte* to, double factor) {
        codec::cast_t<Half>::encode(from, n, reinterpret_cast<Half*>(to), factor);
    }
    static void decode(const std::byte* from, std::size_t n, float* to, double factor) {
        codec::cast_t<Half>::decode(reinterpret_cast<const Half*>(from), n, to, factor);
    }
    static void encode_with_residuals(const float* from, std::size_t n, std::byte* to,
                                      float* residuals) {
        codec::error_feedback_t<codec::cast_t<Half>>::encode(from, n, reinterpret_cast<Half*>(to),
                                                             1, residuals);
    }

    static constexpr wire_codec functions = {&elements_of_type<Half>::kind, &encode, &decode,
                                             &encode_with_residuals};
};

// Elements that are no floats go through doubles, some at a time. f(first, n) is called for each
// part of them.
template <class F>
void in_parts(std::size_t n, F f) {
    constexpr std::size_t most = 256;
    for (std::size_t first = 0; first < n; first += most)
        f(first, n - first < most ? n - first : most);
}
struct doubles_of_part {
    double values[256];
};

// Encodes n elements of a kind, each times a factor.
inline void encode_elements(const wire_codec& codec, const element_kind& kind,
                            const std::byte* from, std::size_t n, std::byte* to, double factor) {
    if (kind.id == dtype::float32)
        return codec.encode(reinterpret_cast<const float*>(from), n, to, factor);
    doubles_of_part part;
    in_parts(n, [&](std::size_t first, std::size_t m) {
        kind.to_doubles(from + first * kind.bytes, m, factor, part.values);
        codec.halves->from_doubles(part.values, m, 1, to + first * codec.halves->bytes);
    });
}

// The reverse.
inline void decode_elements(const wire_codec& codec, const element_kind& kind,
                            const std::byte* from, std::size_t n, std::byte* to, double factor) {
    if (kind.id == dtype::float32)
        return codec.decode(from, n, reinterpret_cast<float*>(to), factor);
    doubles_of_part part;
    in_parts(n, [&](std::size_t first, std::size_t m) {
        codec.halves->to_doubles(from + first * codec.halves->bytes, m, 1, part.values);
        kind.from_doubles(part.values, m, factor, to + first * kind.bytes);
    });
}

// Adds to each loss what a number of the wire loses that becomes an element of 16 bits.
inline void add_losses(const wire_codec& codec, const element_kind& kind, const std::byte* from,
                       std::size_t n, float* losses) {
    doubles_of_part sent, kept;
    in_parts(n, [&](std::size_t first, std::size_t m) {
        std::byte elements[2 * std::size(sent.values)];
        codec.halves->to_doubles(from + first * codec.halves->bytes, m, 1, sent.values);
        kind.from_doubles(sent.values, m, 1, elements);
        kind.to_doubles(elements, m, 1, kept.values);
        for (std::size_t i = 0; i < m; ++i) {
            const float lost = float(sent.values[i]) - float(kept.values[i]);
            if (is_finite(lost)) losses[first + i] += lost;
        }
    });
}

}  // namespace hvd::inline v0::detail
