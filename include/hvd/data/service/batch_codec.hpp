// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../comm/serializer.hpp"
#include "../batch_plan.hpp"
#include "../collate.hpp"
#include "gathered_bytes.hpp"

namespace hvd::inline v0::detail {

// Turns batches into bytes and back: numbers as a whole, the batches of data::default_collate and
// data::concatenate, tuples of these, and all that has an hvd::serializer.
template <class T>
struct batch_codec {
    static void write(gathered_bytes& out, const T& value)
        requires serializable<T>
    {
        serializer<T>::write(out.copies(), value);
    }
    static T read(std::span<const std::byte>& bytes)
        requires serializable<T>
    {
        return serializer<T>::read(bytes);
    }
};

// Numbers in a vector with that allocator: one copy of the bytes.
template <class Vector>
Vector read_numbers(std::span<const std::byte>& bytes,
                    const typename Vector::allocator_type& allocator = {}) {
    using T = typename Vector::value_type;
    const std::uint64_t size = serializer<std::uint64_t>::read(bytes);
    if (size > bytes.size() / sizeof(T)) throw_torn(std::size_t(size), bytes.size());
    const std::span<const std::byte> all = take(bytes, std::size_t(size) * sizeof(T));
    if (std::uintptr_t(all.data()) % alignof(T) == 0) {  // no zeros before the copy
        const T* const first = reinterpret_cast<const T*>(all.data());
        return Vector(first, first + size, allocator);
    }
    std::span<const std::byte> rest = all;
    Vector value(allocator);
    value.reserve(std::size_t(size));
    for (std::uint64_t i = 0; i < size; ++i) value.push_back(serializer<T>::read(rest));
    return value;
}

template <class T>
constexpr bool travels_as_bytes =
    serializable<T> && std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>;

template <class T>
    requires travels_as_bytes<T>
struct batch_codec<std::vector<T>> {
    static void write(gathered_bytes& out, const std::vector<T>& value) {
        serializer<std::uint64_t>::write(out.copies(), value.size());
        out.add(value.data(), value.size() * sizeof(T));
    }
    static std::vector<T> read(std::span<const std::byte>& bytes) {
        return read_numbers<std::vector<T>>(bytes);
    }
};

template <class T>
concept has_batch_codec =
    requires(gathered_bytes& out, std::span<const std::byte>& bytes, const T& value) {
        batch_codec<T>::write(out, value);
        { batch_codec<T>::read(bytes) } -> std::convertible_to<T>;
    };

// Vectors of samples that are no plain bytes, each after the other.
template <class T>
    requires(!serializable<std::vector<T>> && has_batch_codec<T>)
struct batch_codec<std::vector<T>> {
    static void write(gathered_bytes& out, const std::vector<T>& value) {
        serializer<std::uint64_t>::write(out.copies(), value.size());
        for (const T& element : value) batch_codec<T>::write(out, element);
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
    static void write(gathered_bytes& out, const data::rows<T>& value) {
        serializer<std::uint64_t>::write(out.copies(), value.width);
        batch_codec<std::vector<T>>::write(out, value.values);
    }
    static data::rows<T> read(std::span<const std::byte>& bytes) {
        data::rows<T> value;
        value.width = std::size_t(serializer<std::uint64_t>::read(bytes));
        value.values = batch_codec<std::vector<T>>::read(bytes);
        return value;
    }
};

// Bytes of large batches may have been changed under way.
template <class Rows>
void check_offsets(const Rows& rows) {
    if (rows.offsets.empty() || rows.offsets.back() > rows.values.size() ||
        !std::is_sorted(rows.offsets.begin(), rows.offsets.end()))
        throw usage_error(-1, "hvd: a batch came whose rows do not lie in its values");
}

template <class T>
struct batch_codec<data::ragged_rows<T>> {
    static void write(gathered_bytes& out, const data::ragged_rows<T>& value) {
        batch_codec<std::vector<std::size_t>>::write(out, value.offsets);
        batch_codec<std::vector<T>>::write(out, value.values);
    }
    static data::ragged_rows<T> read(std::span<const std::byte>& bytes) {
        data::ragged_rows<T> value;
        value.offsets = batch_codec<std::vector<std::size_t>>::read(bytes);
        value.values = batch_codec<std::vector<T>>::read(bytes);
        check_offsets(value);
        return value;
    }
};

template <class... T>
    requires(!serializable<std::tuple<T...>>)
struct batch_codec<std::tuple<T...>> {
    static void write(gathered_bytes& out, const std::tuple<T...>& value) {
        std::apply([&](const T&... each) { (batch_codec<T>::write(out, each), ...); }, value);
    }
    static std::tuple<T...> read(std::span<const std::byte>& bytes) {
        return std::tuple<T...>{batch_codec<T>::read(bytes)...};  // in the order of braces
    }
};

// The bytes of a batch, which has to stay until they are sent.
template <class Batch>
gathered_bytes encoded(const data::made_batch<Batch>& made) {
    gathered_bytes bytes;
    serializer<std::uint64_t>::write(bytes.copies(), made.skipped);
    const std::string_view last = made.last_failure;
    serializer<std::uint64_t>::write(bytes.copies(), last.size());
    put(bytes.copies(), last.data(), last.size());
    batch_codec<Batch>::write(bytes, made.batch);
    return bytes;
}

// Reads the batch itself by `read(bytes)`.
template <class Read>
auto decoded_by(const Read& read, std::span<const std::byte> bytes) {
    const std::uint64_t skipped = serializer<std::uint64_t>::read(bytes);
    const std::uint64_t size = serializer<std::uint64_t>::read(bytes);
    const std::span<const std::byte> last = take(bytes, std::size_t(size));
    message failure(std::string_view(reinterpret_cast<const char*>(last.data()), last.size()));
    return data::made_batch<decltype(read(bytes))>{read(bytes), skipped, std::move(failure)};
}

template <class Batch>
data::made_batch<Batch> decoded_batch(std::span<const std::byte> bytes) {
    return decoded_by([](auto& rest) -> Batch { return batch_codec<Batch>::read(rest); }, bytes);
}

}  // namespace hvd::inline v0::detail
