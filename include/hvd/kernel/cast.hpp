// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "plain.hpp"
#include "simd/lanes.hpp"

namespace hvd::inline v0::detail {

// Casts between element types, with a scale, in one pass. The wider of the two types computes.
struct cast_args {
    const std::byte* from;
    std::byte* to;
    std::size_t count;
    double scale;
    float* residual = nullptr;  // added before an encoding, which leaves the loss here
};

template <class From, class To>
constexpr bool is_cast_vectorized = HVD_KERNEL_VECTORS && is_float_element<From> &&
                                    is_float_element<To> && sizeof(From) <= 4 && sizeof(To) <= 4;

// Encodes y = x * scale + residual. The residual becomes y - decoded(encoded(y)), or 0 where that
// is not finite: an infinity must not come back in every later step.
template <class From, class To>
void cast_from(std::size_t first, const cast_args& args) {
    using A = std::common_type_t<typename dtype_traits<From>::accumulator,
                                 typename dtype_traits<To>::accumulator>;
    const From* const from = reinterpret_cast<const From*>(args.from);
    To* const to = reinterpret_cast<To*>(args.to);
    for (std::size_t i = first; i < args.count; ++i) {
        A x = scaled(static_cast<A>(from[i]), args.scale);
        if (args.residual != nullptr) x = x + static_cast<A>(args.residual[i]);
        to[i] = static_cast<To>(canonical(x));
        if (args.residual == nullptr) continue;
        const float lost = static_cast<float>(x - static_cast<A>(to[i]));
        args.residual[i] = is_finite(lost) ? lost : 0.0f;
    }
}

template <class From, class To>
void cast_plain(const cast_args& args) {
    cast_from<From, To>(0, args);
}

#if HVD_KERNEL_VECTORS

template <class From, class To, int Width>
HVD_KERNEL_BODY void cast_vectors(const cast_args& args) {
    using source = lanes<From, Width>;
    using target = lanes<To, Width>;
    const From* const from = reinterpret_cast<const From*>(args.from);
    To* const to = reinterpret_cast<To*>(args.to);
    float* const residual = args.residual;
    const float scale = float(args.scale);
    std::size_t i = 0;
    for (; args.count - i >= source::block; i += source::block) {
        source x;
        x.load(from + i);
        x.scale(scale);
        if constexpr (source::is_interleaved != target::is_interleaved)
            x.template interleave<source::is_interleaved>();
        target y{x.a, x.b};
        if (residual != nullptr) {
            lanes<float, Width> kept;
            kept.load(residual + i);
            if constexpr (target::is_interleaved) kept.template interleave<false>();
            y.a += kept.a;
            y.b += kept.b;
        }
        lanes<float, Width> lost{y.a, y.b};
        y.make_nans_one();
        y.store(to + i);
        if (residual != nullptr) {
            y.load(to + i);
            lost.a -= y.a;
            lost.b -= y.b;
            lost.drop_specials();
            if constexpr (target::is_interleaved) lost.template interleave<true>();
            lost.store(residual + i);
        }
    }
    cast_from<From, To>(i, args);
}

template <class From, class To>
void cast_baseline(const cast_args& args) {
    cast_vectors<From, To, 16>(args);
}
#if HVD_KERNEL_X86

template <class From, class To>
HVD_KERNEL_AVX2 void cast_avx2(const cast_args& args) {
    cast_vectors<From, To, 32>(args);
}
template <class From, class To>
HVD_KERNEL_AVX512 void cast_avx512(const cast_args& args) {
    cast_vectors<From, To, 64>(args);
}

#endif
#endif

// Computes to = To(From(from) * scale) at a level that this machine runs. `to` and `from` do not
// overlap.
template <class From, class To>
void cast_elements_at([[maybe_unused]] simd_level l, const cast_args& args) {
    if constexpr (is_cast_vectorized<From, To>) HVD_KERNEL_AT(l, cast, From, To)(args);
    else cast_plain<From, To>(args);
}

}  // namespace hvd::inline v0::detail

#ifdef HVD_COMPILED
#include "cast_library.hpp"
#endif
