// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../standard.hpp"

namespace hvd::inline v0::detail {

// The size of a message whose endpoint can't tell it.
constexpr std::size_t unknown_size = SIZE_MAX;

// An endpoint may provide memory, which it keeps as long as a message may use it. Data in it
// needs no copy on its way. provide(old, bytes) returns it, in the place of what it gave before or
// of nullptr.
template <class Endpoint>
concept provides_memory = requires(Endpoint& l, std::byte* old, std::size_t bytes) {
    { l.provide(old, bytes) } -> std::convertible_to<std::byte*>;
};

// Memory of a transport whose content is sent and received.
template <class Endpoint>
class message_memory {
public:
    explicit message_memory(Endpoint& endpoint) : endpoint_(endpoint) {}

    // Makes room, while no message uses the memory. Its content is lost. @throws std::bad_alloc
    void reserve(std::size_t bytes) {
        if (bytes <= bytes_) return;
        if constexpr (provides_memory<Endpoint>) {
            data_ = endpoint_.provide(data_, bytes);
        } else {
            own_.resize(bytes);
            data_ = own_.data();
        }
        bytes_ = bytes;
    }

    std::byte* data() const { return data_; }

private:
    Endpoint& endpoint_;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::vector<std::byte> own_;
};

}  // namespace hvd::inline v0::detail
