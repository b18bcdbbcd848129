// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <Eigen/Core>

#include "../core/dtype.hpp"
#include "../core/viewable.hpp"

namespace hvd {
inline namespace v0 {

template <> struct dtype_traits<Eigen::half> : detail::builtin_element<dtype::float16, float> {};
template <> struct dtype_traits<Eigen::bfloat16> : detail::builtin_element<dtype::bfloat16, float> {};

namespace detail {

template <class X>
concept eigen_plain = std::is_base_of_v<Eigen::DenseBase<X>, X> && requires(X& x) { x.data(); x.outerStride(); };

template <class X>
concept eigen_owner = std::is_base_of_v<Eigen::PlainObjectBase<X>, X>;

// Eigen copies what does not fit a Ref of const into the Ref itself.
template <class X>
constexpr bool eigen_may_own = eigen_owner<X>;
template <class T, int Options, class Stride>
constexpr bool eigen_may_own<Eigen::Ref<const T, Options, Stride>> = true;

}  // namespace detail

/// Eigen's matrices, vectors, maps, references and blocks with direct access are tensors.
///
/// Matrices and arrays that own their memory are taken as one dimension, in storage order: ranks
/// with the same type have the same order. Maps and blocks with gaps are strided, slowest first.
template <detail::eigen_plain X>
struct view_traits<X> {
    static constexpr bool borrowed = !detail::eigen_may_own<X>;

    template <class M>
    static auto view(M& m) {
        using T = std::remove_pointer_t<decltype(m.data())>;
        if constexpr (detail::eigen_owner<X>) {
            return hvd::view(m.data(), std::size_t(m.size()));
        } else {
            constexpr bool inner_is_column = X::IsRowMajor;
            const auto outer = std::size_t(inner_is_column ? m.rows() : m.cols());
            const auto inner = std::size_t(inner_is_column ? m.cols() : m.rows());
            return tensor_view<T, host, 2, strided>(m.data(), {outer, inner},
                                                    {std::ptrdiff_t(m.outerStride()), std::ptrdiff_t(m.innerStride())});
        }
    }
};

}  // namespace v0
}  // namespace hvd
