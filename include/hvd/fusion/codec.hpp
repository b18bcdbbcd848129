// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../kernel/cast.hpp"

namespace hvd::inline v0 {

/// The codecs, as values: elements of `fuse` and gradients travel as they say.
namespace codec {

/// The type of `hvd::codec::none`.
///
/// A codec is an empty type with these members. `type_of<T>` is the element type on the wire of a
/// tensor of T. `keeps_residual` is true if it needs a float of memory per element from one step to
/// the next. `encode` and `decode` scale in the same pass.
struct none_t {
    template <class T>
    using type_of = T;
    static constexpr bool keeps_residual = false;
};

/// Elements travel as they are. Plans that name no codec have it.
inline constexpr none_t none{};

/// Makes float tensors travel, and be reduced, as 16-bit floats `To` (`hvd::bfloat16` or
/// `hvd::float16`), which halves the bytes. Others travel as they are. It is Horovod's fp16
/// compression (`Compression.fp16`).
///
/// Each element is scaled, then rounded to nearest even. Beyond the range of `To` it becomes an
/// infinity.
/// @code
/// constexpr auto codec = hvd::codec::cast<hvd::bfloat16>;
/// codec.encode(gradient.data(), gradient.size(), wire.data(), 1.0 / size);
/// codec.decode(wire.data(), wire.size(), gradient.data(), 1.0);
/// @endcode
template <class To>
struct cast_t {
    static_assert(sizeof(To) == 2 && hvd::detail::is_float_element<To>,
                  "hvd: codec::cast is to hvd::bfloat16 or hvd::float16");

    template <class T>
    using type_of = std::conditional_t<std::is_same_v<T, float>, To, T>;
    static constexpr bool keeps_residual = false;

    /// Computes to[i] = To(from[i] * scale) for n elements. `to` and `from` do not overlap.
    static void encode(const float* from, std::size_t n, To* to, double scale) {
        hvd::detail::cast_elements_at<float, To>(hvd::detail::best_level(),
                                                 {bytes(from), bytes(to), n, scale});
    }

    /// Computes to[i] = float(from[i]) * scale for n elements. `to` and `from` do not overlap.
    static void decode(const To* from, std::size_t n, float* to, double scale) {
        hvd::detail::cast_elements_at<To, float>(hvd::detail::best_level(),
                                                 {bytes(from), bytes(to), n, scale});
    }

protected:
    static const std::byte* bytes(const void* p) { return static_cast<const std::byte*>(p); }
    static std::byte* bytes(void* p) { return static_cast<std::byte*>(p); }
};

/// Floats travel as `To`: `hvd::codec::cast<hvd::bfloat16>`.
template <class To>
inline constexpr cast_t<To> cast{};

/// A codec that adds, in the next run, what it rounded away in this one.
template <class Codec>
struct error_feedback_t;

/// A cast that keeps its rounding errors and adds them the next time. So small gradients are not
/// lost but late (error feedback, arXiv:1901.09847).
///
/// Every rank keeps a residual of one float per element, all zero at first, which belongs to that
/// tensor and that rank. It encodes y = from * scale + residual. The residual becomes y -
/// decoded(y), or 0 if that is not finite, so that one overflow does not spoil later steps. The
/// residual is in units of the scaled value. A change of the scale between steps must divide it by
/// the old scale and multiply it by the new.
///
/// A reduction of the encoded elements rounds again, which no residual of a plan has. That of the
/// distributed optimizer has it too: there the sum travels in float.
template <class To>
struct error_feedback_t<cast_t<To>> : cast_t<To> {
    static constexpr bool keeps_residual = true;

    /// Encodes n elements as above. `from`, `to` and `residual` do not overlap.
    static void encode(const float* from, std::size_t n, To* to, double scale, float* residual) {
        hvd::detail::cast_elements_at<float, To>(
            hvd::detail::best_level(),
            {cast_t<To>::bytes(from), cast_t<To>::bytes(to), n, scale, residual});
    }
};

/// Nothing is lost, so nothing is kept.
template <>
struct error_feedback_t<none_t> : none_t {};

/// Keeps the rounding errors of a cast: `error_feedback(cast<hvd::bfloat16>)`.
template <class Codec>
constexpr error_feedback_t<Codec> error_feedback(Codec) {
    return {};
}

}  // namespace codec

namespace detail {

template <class Codec>
constexpr bool changes_floats = !std::is_same_v<typename Codec::template type_of<float>, float>;

}  // namespace detail
}  // namespace hvd::inline v0
