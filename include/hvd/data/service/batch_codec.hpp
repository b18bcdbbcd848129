// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../comm/serializer.hpp"
#include "../batch_plan.hpp"
#include "../collate.hpp"

namespace hvd::inline v0::detail {

// Turns batches into bytes and back: numbers as a whole, the batches of data::default_collate and
// data::concatenate, tuples of these, and all that has an hvd::serializer.
template <class T>
struct batch_codec : serializer<T> {};

template <class T>
    requires(serializable<T> && std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>)
struct batch_codec<std::vector<T>> {
    static void write(std::vector<std::byte>& buffer, const std::vector<T>& value) {
        serializer<std::uint64_t>::write(buffer, value.size());
        put(buffer, value.data(), value.size() * sizeof(T));
    }
    static std::vector<T> read(std::span<const std::byte>& bytes) {
        const std::uint64_t size = serializer<std::uint64_t>::read(bytes);
        if (size > bytes.size() / sizeof(T)) throw_torn(std::size_t(size), bytes.size());
        const std::span<const std::byte> all = take(bytes, std::size_t(size) * sizeof(T));
        if constexpr (std::is_default_constructible_v<T>) {
            std::vector<T> value(static_cast<std::size_t>(size));
            if (size > 0) std::memcpy(static_cast<void*>(value.data()), all.data(), all.size());
            return value;
        } else {
            std::span<const std::byte> rest = all;
            std::vector<T> value;
            value.reserve(std::size_t(size));
            for (std::uint64_t i = 0; i < size; ++i) value.push_back(serializer<T>::read(rest));
            return value;
        }
    }
};

template <class T>
concept has_batch_codec =
    requires(std::vector<std::byte>& buffer, std::span<const std::byte>& bytes, const T& value) {
        batch_codec<T>::write(buffer, value);
        { batch_codec<T>::read(bytes) } -> std::convertible_to<T>;
    };

// Vectors of samples that are no plain bytes, each after the other.
template <class T>
    requires(!serializable<std::vector<T>> && has_batch_codec<T>)
struct batch_codec<std::vector<T>> {
    static void write(std::vector<std::byte>& buffer, const std::vector<T>& value) {
        serializer<std::uint64_t>::write(buffer, value.size());
        for (const T& element : value) batch_codec<T>::write(buffer, element);
    }
    static std::vector<T> read(std::span<const std::byte>& bytes) {
        const std::uint64_t size = serializer<std::uint64_t>::read(bytes);
        if (size > bytes.size()) throw_torn(std::size_t(size), bytes.size());
        std::vector<T> value;
        for (std::uint64_t i = 0; i < size; ++i) value.push_back(batch_codec<T>::read(bytes));
        return value;
    }
};

template <class T>
struct batch_codec<data::rows<T>> {
    static void write(std::vector<std::byte>& buffer, const data::rows<T>& value) {
        serializer<std::uint64_t>::write(buffer, value.width);
        batch_codec<std::vector<T>>::write(buffer, value.values);
    }
    static data::rows<T> read(std::span<const std::byte>& bytes) {
        data::rows<T> value;
        value.width = std::size_t(serializer<std::uint64_t>::read(bytes));
        value.values = batch_codec<std::vector<T>>::read(bytes);
        return value;
    }
};

template <class T>
struct batch_codec<data::ragged_rows<T>> {
    static void write(std::vector<std::byte>& buffer, const data::ragged_rows<T>& value) {
        batch_codec<std::vector<std::size_t>>::write(buffer, value.offsets);
        batch_codec<std::vector<T>>::write(buffer, value.values);
    }
    static data::ragged_rows<T> read(std::span<const std::byte>& bytes) {
        data::ragged_rows<T> value;
        value.offsets = batch_codec<std::vector<std::size_t>>::read(bytes);
        value.values = batch_codec<std::vector<T>>::read(bytes);
        return value;
    }
};

template <class... T>
    requires(!serializable<std::tuple<T...>>)
struct batch_codec<std::tuple<T...>> {
    static void write(std::vector<std::byte>& buffer, const std::tuple<T...>& value) {
        std::apply([&](const T&... each) { (batch_codec<T>::write(buffer, each), ...); }, value);
    }
    static std::tuple<T...> read(std::span<const std::byte>& bytes) {
        return std::tuple<T...>{batch_codec<T>::read(bytes)...};  // in the order of braces
    }
};

template <class Batch>
std::vector<std::byte> encoded(const data::made_batch<Batch>& made) {
    std::vector<std::byte> bytes;
    serializer<std::uint64_t>::write(bytes, made.skipped);
    const std::string_view last = made.last_failure;
    serializer<std::uint64_t>::write(bytes, last.size());
    put(bytes, last.data(), last.size());
    batch_codec<Batch>::write(bytes, made.batch);
    return bytes;
}

template <class Batch>
data::made_batch<Batch> decoded_batch(std::span<const std::byte> bytes) {
    const std::uint64_t skipped = serializer<std::uint64_t>::read(bytes);
    const std::uint64_t size = serializer<std::uint64_t>::read(bytes);
    const std::span<const std::byte> last = take(bytes, std::size_t(size));
    message failure(std::string_view(reinterpret_cast<const char*>(last.data()), last.size()));
    return {batch_codec<Batch>::read(bytes), skipped, std::move(failure)};
}

}  // namespace hvd::inline v0::detail
