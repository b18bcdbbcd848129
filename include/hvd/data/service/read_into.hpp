// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory_resource>

#include "../into.hpp"
#include "batch_codec.hpp"

namespace hvd::inline v0::detail {

// Reads what batch_codec<T> wrote into memory of the user, without a copy on the way.
template <class T>
struct codec_into {
    static in_memory<T> read(std::span<const std::byte>& bytes, std::pmr::memory_resource* memory) {
        return part_in_memory<T>::copy(batch_codec<T>::read(bytes), memory);
    }
};

template <class T>
struct codec_into<std::vector<T>> {
    static in_memory<std::vector<T>> read(std::span<const std::byte>& bytes,
                                          std::pmr::memory_resource* memory) {
        if constexpr (travels_as_bytes<T>)
            return read_numbers<in_memory<std::vector<T>>>(bytes, memory);
        else
            return part_in_memory<std::vector<T>>::copy(batch_codec<std::vector<T>>::read(bytes),
                                                        memory);
    }
};

template <class T>
struct codec_into<data::rows<T>> {
    static in_memory<data::rows<T>> read(std::span<const std::byte>& bytes,
                                         std::pmr::memory_resource* memory) {
        const auto width = std::size_t(serializer<std::uint64_t>::read(bytes));
        return {codec_into<std::vector<T>>::read(bytes, memory), width};
    }
};

template <class T>
struct codec_into<data::ragged_rows<T>> {
    static in_memory<data::ragged_rows<T>> read(std::span<const std::byte>& bytes,
                                                std::pmr::memory_resource* memory) {
        auto offsets = codec_into<std::vector<std::size_t>>::read(bytes, memory);
        in_memory<data::ragged_rows<T>> value{codec_into<std::vector<T>>::read(bytes, memory),
                                              std::move(offsets)};
        check_offsets(value);
        return value;
    }
};

template <class... T>
    requires(!serializable<std::tuple<T...>>)
struct codec_into<std::tuple<T...>> {
    static in_memory<std::tuple<T...>> read(std::span<const std::byte>& bytes,
                                            std::pmr::memory_resource* memory) {
        return {codec_into<T>::read(bytes, memory)...};  // in the order of braces
    }
};

}  // namespace hvd::inline v0::detail
