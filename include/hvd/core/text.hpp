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

// A part of a message. Numbers go through to_chars: what hvd writes does not depend on the locale.
class text_part {
public:
    text_part(std::string_view text) : outside_(text) {}
    text_part(const char* text) : outside_(text) {}
    text_part(const std::string& text) : outside_(text) {}
    text_part(double number) { set(std::to_chars(digits_, digits_ + sizeof digits_, number).ptr); }

    template <class N>
        requires std::is_integral_v<N>
    text_part(N number) : text_part(wide(number), std::is_signed_v<N>) {}

    void append_to(std::string& whole) const {
        whole += length_ > 0 ? std::string_view(digits_, length_) : outside_;
    }

private:
    template <class N>
    static unsigned long long wide(N number) {
        return static_cast<unsigned long long>(static_cast<std::conditional_t<std::is_signed_v<N>, long long, unsigned long long>>(number));
    }
    text_part(unsigned long long bits, bool is_signed) {
        set(is_signed ? std::to_chars(digits_, digits_ + sizeof digits_, static_cast<long long>(bits)).ptr
                      : std::to_chars(digits_, digits_ + sizeof digits_, bits).ptr);
    }
    void set(const char* end) { length_ = std::size_t(end - digits_); }

    std::string_view outside_;
    std::size_t length_ = 0;
    char digits_[32];
};

[[gnu::cold]] inline std::string joined(std::initializer_list<text_part> parts) {
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
