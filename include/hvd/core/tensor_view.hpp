// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "../fwd.hpp"
#include "memory.hpp"

namespace hvd::inline v0 {

/// The extents of a tensor, slowest dimension first.
template <std::size_t Rank>
using extents = std::array<std::size_t, Rank>;

/// The extents of a tensor, slowest first: `hvd::shape(rows, columns)`.
template <std::integral... N>
constexpr extents<sizeof...(N)> shape(N... extent) {
    return {static_cast<std::size_t>(extent)...};
}

/// Steps between neighbours in each dimension, in elements: `hvd::strides(row_pitch, 1)`.
template <std::integral... N>
constexpr std::array<std::ptrdiff_t, sizeof...(N)> strides(N... step) {
    return {static_cast<std::ptrdiff_t>(step)...};
}

namespace detail {

// Multiplies extents and the size of an element; the result is SIZE_MAX where it would wrap round.
constexpr std::size_t product(const std::size_t* factors, std::size_t n) {
    std::size_t result = 1;
    for (std::size_t i = 0; i < n; ++i)
        if (__builtin_mul_overflow(result, factors[i], &result)) result = SIZE_MAX;
    return result;
}

template <std::size_t Rank, class Layout>
struct view_strides {};

template <std::size_t Rank>
struct view_strides<Rank, strided> {
    std::array<std::ptrdiff_t, Rank> steps{};
};

}  // namespace detail

/// A tensor in somebody else's memory: a pointer, extents and, for strided views, strides.
/// It is trivially copyable and never owns the memory. The memory must outlive every call (and
/// every pending asynchronous call) that uses it. `T` may be const. `Space` says who can read the
/// memory. A view on the host without strides is a range of its elements.
template <class T, class Space, std::size_t Rank, class Layout>
class tensor_view : detail::view_strides<Rank, Layout> {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using space = Space;
    using layout = Layout;

    constexpr tensor_view() = default;

    constexpr tensor_view(T* data, extents<Rank> shape) noexcept
        requires std::same_as<Layout, contiguous>
        : data_(data), extents_(shape) {}

    constexpr tensor_view(T* data, extents<Rank> shape,
                          std::array<std::ptrdiff_t, Rank> distances) noexcept
        requires std::same_as<Layout, strided>
        : detail::view_strides<Rank, Layout>{distances}, data_(data), extents_(shape) {}

    /// Makes a view that only reads.
// nvcc warns of a conversion to the type itself before it looks at the constraint.
#ifdef __CUDACC__
#pragma nv_diag_suppress 554
#endif
    constexpr operator tensor_view<const T, Space, Rank, Layout>() const noexcept
        requires(!std::is_const_v<T>)
    {
        if constexpr (std::same_as<Layout, strided>) return {data_, extents_, this->steps};
        else return {data_, extents_};
    }
#ifdef __CUDACC__
#pragma nv_diag_default 554
#endif

    constexpr T* data() const noexcept { return data_; }
    static constexpr std::size_t rank() noexcept { return Rank; }
    constexpr const extents<Rank>& shape() const noexcept { return extents_; }
    constexpr std::size_t extent(std::size_t dimension) const noexcept {
        return extents_[dimension];
    }

    /// The number of elements. It is `SIZE_MAX` where the number exceeds `std::size_t`; every call
    /// refuses such a tensor.
    constexpr std::size_t size() const noexcept {
        std::size_t result = 1;
        for (const std::size_t extent : extents_)
            if (__builtin_mul_overflow(result, extent, &result)) result = SIZE_MAX;
        return result;
    }

    /// Step between neighbours in one dimension, in elements.
    constexpr std::ptrdiff_t stride(std::size_t dimension) const noexcept {
        if constexpr (std::same_as<Layout, strided>) {
            return this->steps[dimension];
        } else {
            std::ptrdiff_t step = 1;
            for (std::size_t d = Rank; d-- > dimension + 1;) step *= std::ptrdiff_t(extents_[d]);
            return step;
        }
    }

    /// The elements as they lie in memory, of a view on the host without strides.
    constexpr T* begin() const noexcept
        requires(std::is_same_v<Space, host> && std::is_same_v<Layout, contiguous>)
    {
        return data_;
    }
    constexpr T* end() const noexcept
        requires(std::is_same_v<Space, host> && std::is_same_v<Layout, contiguous>)
    {
        return data_ + size();
    }
    constexpr std::span<T> span() const noexcept {
        constexpr bool on_host = std::is_same_v<Space, host>,
                       in_one_piece = std::is_same_v<Layout, contiguous>;
        static_assert(on_host,
                      "hvd: the host can't read a view of device memory: copy the elements first");
        static_assert(in_one_piece,
                      "hvd: the elements of a view with strides are not one piece of memory");
        return {data_, size()};
    }

    /// Element i of a view of one dimension on the host.
    constexpr T& operator[](std::size_t i) const noexcept {
        constexpr bool on_host = std::is_same_v<Space, host>, is_vector = Rank == 1;
        static_assert(on_host,
                      "hvd: the host can't read a view of device memory: copy the elements first");
        static_assert(is_vector,
                      "hvd: [] takes a view of one dimension; span()[i] is an element of others");
        return data_[std::ptrdiff_t(i) * stride(0)];
    }

private:
    T* data_ = nullptr;
    extents<Rank> extents_{};
};

/// `count` elements at `data`, which must outlive the calls that use the view.
template <class T>
constexpr tensor_view<T> view(T* data, std::size_t count) noexcept {
    return {data, {count}};
}

/// A row-major tensor of the given shape at `data`.
template <class T, std::size_t Rank>
constexpr tensor_view<T, host, Rank> view(T* data, extents<Rank> shape) noexcept {
    return {data, shape};
}

/// A tensor with a step (in elements) per dimension; collectives pack it.
template <class T, std::size_t Rank>
constexpr tensor_view<T, host, Rank, strided> view(
    T* data, extents<Rank> shape, std::array<std::ptrdiff_t, Rank> steps) noexcept {
    return {data, shape, steps};
}

/// `count` elements of device memory at `data`.
template <class T>
constexpr tensor_view<T, device> device_view(T* data, std::size_t count) noexcept {
    return {data, {count}};
}

/// A row-major tensor of the given shape in device memory.
template <class T, std::size_t Rank>
constexpr tensor_view<T, device, Rank> device_view(T* data, extents<Rank> shape) noexcept {
    return {data, shape};
}

static_assert(std::is_trivially_copyable_v<tensor_view<float>>);
static_assert(std::is_trivially_copyable_v<tensor_view<float, device, 3, strided>>);
static_assert(sizeof(tensor_view<float>) == 2 * sizeof(void*));

}  // namespace hvd::inline v0

//! @cond
template <class T, class Space, std::size_t Rank, class Layout>
inline constexpr bool std::ranges::enable_borrowed_range<hvd::tensor_view<T, Space, Rank, Layout>> =
    true;
//! @endcond
