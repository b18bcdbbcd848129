// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <type_traits>

#include "../standard.hpp"

namespace hvd::inline v0::detail {

// An integer of 128 bits in two's complement, for compilers without one. It has what sums and
// means of integers need.
class wide_integer {
public:
    constexpr wide_integer() = default;
    template <class T>
        requires std::is_integral_v<T>
    constexpr wide_integer(T value)
        : low_(std::uint64_t(value)), high_(is_below_0(value) ? ~std::uint64_t(0) : 0) {}

    template <class T>
        requires std::is_integral_v<T>
    constexpr explicit operator T() const {
        return T(low_);
    }
    constexpr std::uint64_t high() const { return high_; }

    constexpr wide_integer operator-() const { return {~low_ + 1, ~high_ + (low_ == 0)}; }
    friend constexpr wide_integer operator+(const wide_integer& a, const wide_integer& b) {
        const std::uint64_t low = a.low_ + b.low_;
        return {low, a.high_ + b.high_ + (low < a.low_)};
    }
    constexpr wide_integer& operator+=(const wide_integer& more) { return *this = *this + more; }
    friend constexpr bool operator<(const wide_integer& a, const wide_integer& b) {
        return a.high_ != b.high_ ? std::int64_t(a.high_) < std::int64_t(b.high_) : a.low_ < b.low_;
    }
    friend constexpr bool operator==(const wide_integer&, const wide_integer&) = default;

    // The divisor is above 0. The quotient is rounded towards zero, as C++ rounds it.
    friend constexpr wide_integer operator/(const wide_integer& value, std::int32_t by) {
        std::uint32_t rest = 0;
        const wide_integer quotient = divide(value < 0 ? -value : value, std::uint32_t(by), rest);
        return value < 0 ? -quotient : quotient;
    }
    friend constexpr wide_integer operator%(const wide_integer& value, std::int32_t by) {
        std::uint32_t rest = 0;
        divide(value < 0 ? -value : value, std::uint32_t(by), rest);
        return value < 0 ? -wide_integer(rest) : wide_integer(rest);
    }

private:
    constexpr wide_integer(std::uint64_t low, std::uint64_t high) : low_(low), high_(high) {}

    template <class T>
    static constexpr bool is_below_0(T value) {
        if constexpr (std::is_signed_v<T>) return value < 0;
        else return false;
    }

    // Divides digits of 32 bits, the highest first, as one does on paper.
    static constexpr wide_integer divide(const wide_integer& value, std::uint32_t by,
                                         std::uint32_t& rest) {
        std::uint64_t half[2] = {value.low_, value.high_};
        for (int i = 4; i-- > 0;) {
            std::uint64_t& place = half[i / 2];
            const int shift = 32 * (i % 2);
            const std::uint64_t digit = std::uint64_t(rest) << 32 | std::uint32_t(place >> shift);
            rest = std::uint32_t(digit % by);
            place = (place & ~(std::uint64_t(0xffffffff) << shift)) | (digit / by) << shift;
        }
        return {half[0], half[1]};
    }

    std::uint64_t low_ = 0, high_ = 0;
};

#if defined(__SIZEOF_INT128__)
__extension__ typedef __int128 widest_integer;
#else
using widest_integer = wide_integer;
#endif

// The upper 64 bits of 128, for an integer of 64 bits or 128.
template <class Wide>
constexpr std::uint64_t upper_half(const Wide& value) {
    if constexpr (std::is_same_v<Wide, wide_integer>) return value.high();
    else if constexpr (sizeof(Wide) > 8) return std::uint64_t(value >> 64);
    else return value < 0 ? ~std::uint64_t(0) : 0;
}

}  // namespace hvd::inline v0::detail
