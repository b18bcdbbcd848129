// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/tensor_view.hpp"
#include "object_name.hpp"

namespace hvd::inline v0 {

/// Turns a T into bytes and back. Specialise it for your types, or include
/// `hvd/interop/boost_serialization.hpp` for everything that Boost.Serialization can write.
///
/// `write` appends to the buffer. `read` takes the bytes that `write` had appended from the front
/// of `bytes`, and leaves the rest in `bytes`. It exists for trivially copyable types, strings, and
/// vectors of serializable elements. Receiving never runs code of the sender. A bool that is
/// neither true nor false is refused; members of structs are taken as they come.
///
/// An address means nothing to another process: pointers, views, spans and references have none,
/// and neither have structs and arrays of them, as far as a compiler can see into these. It sees
/// the first 32 members of aggregates, those of members too.
template <class T>
struct serializer;

namespace detail {

template <class T>
constexpr bool is_address =
    std::is_pointer_v<T> || std::is_member_pointer_v<T> || std::is_null_pointer_v<T>;
template <class T>  // std::reference_wrapper, without its header
    requires requires(const T& x) {
        { x.get() } -> std::same_as<typename T::type&>;
    }
constexpr bool is_address<T> = true;
template <class T, class Space, std::size_t Rank, class Layout>
constexpr bool is_address<tensor_view<T, Space, Rank, Layout>> = true;

// They stand for members of an aggregate in its initialisation. An aggregate that is a member is
// initialised by its members, since none of them becomes one.
struct any_address {
    template <class T>
        requires(is_address<T>)
    operator T() const;
};
template <std::size_t>
struct any_member {
    template <class T>
        requires(!std::is_aggregate_v<T> || std::is_empty_v<T>)
    operator T() const;
};

template <class T, class Last, std::size_t... Before>
constexpr bool has_members(std::index_sequence<Before...>) {
    return requires { T{any_member<Before>{}..., Last{}}; };
}

// True if one of the members of T from the nth on is an address.
template <class T, std::size_t N = 0>
constexpr bool holds_address() {
    using before = std::make_index_sequence<N>;
    if constexpr (is_address<T>) return true;
    else if constexpr (!std::is_aggregate_v<T> || N == 32) return false;
    else if constexpr (has_members<T, any_address>(before())) return true;
    else if constexpr (has_members<T, any_member<N>>(before())) return holds_address<T, N + 1>();
    else return false;
}

[[noreturn]] inline void throw_torn(std::size_t wanted, std::size_t left) {
    throw usage_error(-1, text("hvd: a serialised object ends early: ", wanted, " bytes expected, ",
                               left, " left"));
}

[[noreturn]] inline void throw_no_bool() {
    throw usage_error(-1, "hvd: a serialised bool is neither true nor false");
}

// Takes bytes from a span. It is a template so that a span is instantiated only where objects are
// read: see slice.
template <class Bytes>
Bytes take(Bytes& bytes, std::size_t n) {
    if (n > bytes.size()) throw_torn(n, bytes.size());
    const Bytes front = bytes.first(n);
    bytes = bytes.subspan(n);
    return front;
}

inline void put(std::vector<std::byte>& buffer, const void* data, std::size_t n) {
    if (n == 0) return;
    buffer.resize(buffer.size() + n);
    std::memcpy(buffer.data() + buffer.size() - n, data, n);
}

}  // namespace detail

template <class T>
    requires(std::is_trivially_copyable_v<T> && !std::ranges::enable_borrowed_range<T> &&
             !detail::holds_address<T>())
struct serializer<T> {
    static void write(std::vector<std::byte>& buffer, const T& value) {
        detail::put(buffer, &value, sizeof value);
    }
    static T read(std::span<const std::byte>& bytes) {
        alignas(T) std::byte copy[sizeof(T)];
        std::memcpy(copy, detail::take(bytes, sizeof(T)).data(), sizeof(T));
        if constexpr (std::is_same_v<T, bool>)
            if (std::to_integer<unsigned>(copy[0]) > 1) detail::throw_no_bool();
        return *std::launder(reinterpret_cast<T*>(copy));
    }
};

template <detail::string_like T>
struct serializer<T> {
    static void write(std::vector<std::byte>& buffer, const T& value) {
        serializer<std::uint64_t>::write(buffer, value.size());
        detail::put(buffer, value.data(), value.size());
    }
    static T read(std::span<const std::byte>& bytes) {
        const auto size = std::size_t(serializer<std::uint64_t>::read(bytes));
        const auto text = detail::take(bytes, size);
        return {reinterpret_cast<const char*>(text.data()), text.size()};
    }
};

template <class T>
    requires requires(std::vector<std::byte>& b, const T& value) { serializer<T>::write(b, value); }
struct serializer<std::vector<T>> {
    static void write(std::vector<std::byte>& buffer, const std::vector<T>& value) {
        serializer<std::uint64_t>::write(buffer, value.size());
        for (const T& element : value) serializer<T>::write(buffer, element);
    }
    static std::vector<T> read(std::span<const std::byte>& bytes) {
        const auto size = std::size_t(serializer<std::uint64_t>::read(bytes));
        if (size > bytes.size())
            detail::throw_torn(size, bytes.size());  // an element has at least one byte
        std::vector<T> value;
        value.reserve(size);
        for (std::size_t i = 0; i < size; ++i) value.push_back(serializer<T>::read(bytes));
        return value;
    }
};

/// T has a `serializer`.
template <class T>
concept serializable =
    requires(std::vector<std::byte>& buffer, std::span<const std::byte>& bytes, const T& value) {
        serializer<T>::write(buffer, value);
        { serializer<T>::read(bytes) } -> std::convertible_to<T>;
    };

namespace detail {

template <class T>
constexpr bool has_serializer = serializable<T>;

template <class T>
constexpr bool check_serializable() {
    constexpr bool can = has_serializer<T>;
    static_assert(can,
                  "hvd: no hvd::serializer for this type; specialise it or include "
                  "hvd/interop/boost_serialization.hpp. None is made for addresses, and for what "
                  "holds them");
    return can;
}

}  // namespace detail
}  // namespace hvd::inline v0
