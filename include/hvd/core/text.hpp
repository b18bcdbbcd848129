// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace hvd {
inline namespace v0 {
namespace detail {

// A part of a message; what hvd writes does not depend on the locale.
class text_part {
public:
    text_part(std::string_view text) : outside_(text) {}
    text_part(const char* text) : outside_(text) {}
    text_part(const std::string& text) : outside_(text) {}
    text_part(double number) { length_ = std::size_t(std::to_chars(digits_, digits_ + sizeof digits_, number).ptr - digits_); }

    template <class N>
        requires std::is_integral_v<N>
    text_part(N number) : text_part(wide(number), std::is_signed_v<N>) {}

    void append_to(std::string& whole) const {
        whole += length_ > 0 ? std::string_view(digits_ + first_, length_) : outside_;
    }

private:
    template <class N>
    static unsigned long long wide(N number) {
        return static_cast<unsigned long long>(static_cast<std::conditional_t<std::is_signed_v<N>, long long, unsigned long long>>(number));
    }
    // From the last digit to the first: to_chars for integers is a table and a kilobyte of code.
    [[gnu::cold, gnu::noinline]] text_part(unsigned long long bits, bool is_signed) {
        const bool negative = is_signed && static_cast<long long>(bits) < 0;
        if (negative) bits = 0 - bits;
        char* first = digits_ + sizeof digits_;
        do *--first = static_cast<char>('0' + bits % 10);
        while ((bits /= 10) != 0);
        if (negative) *--first = '-';
        first_ = std::size_t(first - digits_);
        length_ = sizeof digits_ - first_;
    }

    std::string_view outside_;
    std::size_t first_ = 0;
    std::size_t length_ = 0;
    char digits_[32];
};

[[gnu::cold, gnu::noinline]] inline std::string joined(std::initializer_list<text_part> parts) {
    std::string whole;
    for (const text_part& part : parts) part.append_to(whole);
    return whole;
}

template <class... Parts>
[[gnu::cold]] std::string text(const Parts&... parts) {
    return joined({text_part(parts)...});
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
