// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <Eigen/Core>

#include "../core/dtype.hpp"
#include "../core/viewable.hpp"

namespace hvd::inline v0 {

template <>
struct dtype_traits<Eigen::half> : detail::builtin_element<dtype::float16, float> {};
template <>
struct dtype_traits<Eigen::bfloat16> : detail::builtin_element<dtype::bfloat16, float> {};

namespace detail {

template <class X>
concept eigen_plain = std::is_base_of_v<Eigen::DenseBase<X>, X> && requires(X& x) {
    x.data();
    x.outerStride();
};

template <class X>
concept eigen_owner = std::is_base_of_v<Eigen::PlainObjectBase<X>, X>;

// Eigen copies an expression that does not fit a Ref of const into the Ref itself.
template <class X>
constexpr bool eigen_may_own = eigen_owner<X>;
template <class T, int Options, class Stride>
constexpr bool eigen_may_own<Eigen::Ref<const T, Options, Stride>> = true;

// True if the type guarantees that there are no gaps. A type with a dynamic stride does not.
template <class X>
constexpr bool eigen_without_gaps =
    eigen_owner<X> ||
    (X::InnerStrideAtCompileTime == 1 &&
     (X::IsVectorAtCompileTime || (X::OuterStrideAtCompileTime != Eigen::Dynamic &&
                                   X::OuterStrideAtCompileTime == X::InnerSizeAtCompileTime)));
template <class P, int Options>
constexpr bool eigen_without_gaps<Eigen::Map<P, Options, Eigen::Stride<0, 0>>> = true;

}  // namespace detail

/// Eigen's matrices, vectors, maps, references and blocks with direct access are tensors.
///
/// Vectors have one dimension. Matrices have two, slowest first: the columns of a column-major
/// matrix (Eigen's default) are the rows of the tensor. A type is contiguous if it owns its memory,
/// or if it is a map or vector without gaps. The others are strided.
template <detail::eigen_plain X>
struct view_traits<X> {
    static constexpr bool borrowed = !detail::eigen_may_own<X>;

    template <class M>
    static auto view(M& m) {
        using T = std::remove_pointer_t<decltype(m.data())>;
        if constexpr (X::IsVectorAtCompileTime) {
            const extents<1> shape = {std::size_t(m.size())};
            if constexpr (detail::eigen_without_gaps<X>) return tensor_view<T>(m.data(), shape);
            else
                return tensor_view<T, host, 1, strided>(m.data(), shape,
                                                        {std::ptrdiff_t(m.innerStride())});
        } else {
            const extents<2> shape = {std::size_t(m.outerSize()), std::size_t(m.innerSize())};
            if constexpr (detail::eigen_without_gaps<X>)
                return tensor_view<T, host, 2>(m.data(), shape);
            else
                return tensor_view<T, host, 2, strided>(
                    m.data(), shape,
                    {std::ptrdiff_t(m.outerStride()), std::ptrdiff_t(m.innerStride())});
        }
    }
};

}  // namespace hvd::inline v0
