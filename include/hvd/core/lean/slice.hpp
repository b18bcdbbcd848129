// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

// A view of adjacent elements that somebody else owns. It replaces std::span where users don't see
// it. Making a std::span instantiates the concepts of ranges in every file. Spans in the place of
// slices would add 13 % to the time to compile a function with two collectives at -O0, 12 % at -O2,
// 21 % in the compiled form.
template <class T>
class slice {
public:
    constexpr slice() = default;  // as {}: empty
    constexpr slice(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N>
    constexpr slice(T (&elements)[N]) noexcept : slice(elements, N) {}
    template <class C>
        requires std::is_convertible_v<decltype(std::declval<const C&>().data()), T*>
    constexpr slice(const C& elements) noexcept : slice(elements.data(), elements.size()) {}

    constexpr T* data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T* begin() const noexcept { return data_; }
    constexpr T* end() const noexcept { return data_ + size_; }
    constexpr T& operator[](std::size_t i) const noexcept { return data_[i]; }
    constexpr T& front() const noexcept { return data_[0]; }
    constexpr T& back() const noexcept { return data_[size_ - 1]; }
    constexpr slice first(std::size_t n) const noexcept { return {data_, n}; }

    constexpr operator std::span<T>() const noexcept { return std::span<T>(data_, size_); }

private:
    T* data_;
    std::size_t size_;
};

}  // namespace hvd::inline v0::detail
