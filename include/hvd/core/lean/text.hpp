// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

// A text that grows. std::string is compiled anew in every file that uses it. <string> alone would
// add 4 % to the time to compile a function with two collectives at -O0, 11 % at -O2, 22 % in the
// compiled form.
class message {
public:
    message() = default;
    message(std::string_view text) { append(text); }
    message(const char* text) : message(std::string_view(text)) {}
    // A literal, for which no memory is needed.
    static message fixed(const char* literal) noexcept {
        message result;
        result.data_ = const_cast<char*>(literal);
        result.size_ = std::strlen(literal);
        result.is_fixed_ = true;
        return result;
    }
    message(message&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          is_fixed_(std::exchange(other.is_fixed_, false)) {}
    message& operator=(message&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(is_fixed_, other.is_fixed_);
        return *this;
    }
    ~message() {
        if (!is_fixed_) std::free(data_);
    }

    message& operator+=(std::string_view text) {
        append(text);
        return *this;
    }

    bool empty() const noexcept { return size_ == 0; }
    const char* c_str() const noexcept { return data_ == nullptr ? "" : data_; }
    operator std::string_view() const noexcept { return {c_str(), size_}; }

private:
    [[gnu::cold, gnu::noinline]] void append(std::string_view text) {
        char* const own = is_fixed_ ? nullptr : data_;
        char* const grown = static_cast<char*>(std::realloc(own, size_ + text.size() + 1));
        if (grown == nullptr) throw std::bad_alloc();
        if (std::exchange(is_fixed_, false)) std::memcpy(grown, data_, size_);
        data_ = grown;
        if (!text.empty()) std::memcpy(data_ + size_, text.data(), text.size());
        data_[size_ += text.size()] = 0;
    }

    char* data_ = nullptr;
    std::size_t size_ = 0;
    bool is_fixed_ = false;
};

// A part of a message. Its text does not depend on the locale. A number is written only when the
// message is joined, so that a part is two words, and a list of parts costs its function little.
class text_part {
public:
    text_part(std::string_view text) : data_(text.data()), size_(text.size()) {}
    text_part(const char* text) : text_part(std::string_view(text)) {}
    text_part(const message& text) : text_part(std::string_view(text)) {}
    text_part(double number) : real_(number), size_(is_real) {}

    template <class N>
        requires std::is_integral_v<N>
    text_part(N number)
        : bits_(static_cast<unsigned long long>(
              static_cast<std::conditional_t<std::is_signed_v<N>, long long, unsigned long long>>(
                  number))),
          size_(std::is_signed_v<N> ? is_signed : is_unsigned) {}

    // The text, which may lie in `digits`.
    [[gnu::cold, gnu::noinline]] std::string_view view(char (&digits)[32]) const {
        char* const end = digits + sizeof digits;
        if (size_ < is_real) return {data_, size_};
        const auto written = size_ == is_real ? std::to_chars(digits, end, real_)
                             : size_ == is_signed
                                 ? std::to_chars(digits, end, static_cast<long long>(bits_))
                                 : std::to_chars(digits, end, bits_);
        return {digits, std::size_t(written.ptr - digits)};
    }

private:
    // Sizes that no text has.
    static constexpr std::size_t is_unsigned = std::size_t(-1), is_signed = std::size_t(-2),
                                 is_real = std::size_t(-3);
    union {
        const char* data_;
        unsigned long long bits_;
        double real_;
    };
    std::size_t size_;
};

using text_parts = std::initializer_list<text_part>;

[[gnu::cold, gnu::noinline]] inline message joined(text_parts parts) {
    message whole;
    char digits[32];
    for (const text_part& part : parts) whole += part.view(digits);
    return whole;
}

// This and the other functions of any number of parts are always inlined: one that is compiled for
// each list of types would cost more than the list.
template <class... Parts>
[[gnu::always_inline]] inline message text(const Parts&... parts) {
    return joined({text_part(parts)...});
}

// The text, or the literal if there is no memory for the text.
[[gnu::cold, gnu::noinline]] inline message joined_or(const char* literal,
                                                      text_parts parts) noexcept try {
    return joined(parts);
} catch (...) {
    return message::fixed(literal);
}

template <class... Parts>
[[gnu::always_inline]] inline message text_or(const char* literal, const Parts&... parts) noexcept {
    return joined_or(literal, {text_part(parts)...});
}

constexpr const char* no_memory_for_text = "a rank has no memory left, not even for a text";

// Copies as much of the value as the field has room for.
template <std::size_t N>
void store(char (&field)[N], std::string_view value) {
    const std::size_t n = value.size() < N ? value.size() : N - 1;
    if (n > 0) std::memcpy(field, value.data(), n);
    field[n] = 0;
}
// The same with the parts of a text, which needs no memory.
template <std::size_t N>
void store_parts(char (&field)[N], text_parts parts) {
    std::size_t n = 0;
    char digits[32];
    for (const text_part& part : parts) {
        const std::string_view fits = part.view(digits).substr(0, N - 1 - n);
        if (!fits.empty()) std::memcpy(field + n, fits.data(), fits.size());
        n += fits.size();
    }
    field[n] = 0;
}

}  // namespace hvd::inline v0::detail
