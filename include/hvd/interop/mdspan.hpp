// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <concepts>
#include <version>

#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

#include "../core/viewable.hpp"

namespace hvd::inline v0 {

/// True if a layout policy of mdspan is row-major without gaps, so that no packing is needed. It is
/// true for `std::layout_right`. Specialise it for the layout of another implementation of mdspan.
template <class LayoutPolicy>
constexpr bool is_row_major = false;

#ifdef __cpp_lib_mdspan
template <>
constexpr bool is_row_major<std::layout_right> = true;
#endif

/// A view with pointer, extents and strides, as `std::mdspan` is. Kokkos' mdspan and others fit as
/// well. The accessor gives a plain pointer, and the layout always has strides.
template <class M>
concept mdspan_like = requires(const M& m, std::size_t d) {
    requires element<std::remove_cv_t<typename M::element_type>>;
    typename M::layout_type;
    { m.data_handle() } -> std::same_as<typename M::element_type*>;
    { m.extent(d) } -> std::convertible_to<std::size_t>;
    { m.stride(d) } -> std::convertible_to<std::ptrdiff_t>;
    requires std::bool_constant<M::is_always_strided()>::value;
    requires(M::rank() > 0);
};

/// An mdspan is a tensor of its own shape. It is a strided tensor unless its layout is
/// `is_row_major`.
template <mdspan_like M>
struct view_traits<M> {
    static constexpr bool borrowed = true;

    static auto view(const M& m) {
        constexpr std::size_t rank = M::rank();
        extents<rank> shape{};
        std::array<std::ptrdiff_t, rank> steps{};
        for (std::size_t d = 0; d < rank; ++d) {
            shape[d] = std::size_t(m.extent(d));
            steps[d] = std::ptrdiff_t(m.stride(d));
        }
        if constexpr (is_row_major<typename M::layout_type>)
            return hvd::view(m.data_handle(), shape);
        else return hvd::view(m.data_handle(), shape, steps);
    }
};

}  // namespace hvd::inline v0
