// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

// Bytes that something is about to be written over. They are not filled with zeros first, which
// takes as long as half of a copy.
class byte_buffer {
public:
    byte_buffer() = default;
    explicit byte_buffer(std::size_t bytes)
        : data_(bytes > 0 ? std::make_unique_for_overwrite<std::byte[]>(bytes) : nullptr),
          size_(bytes) {}

    std::byte* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    operator std::span<const std::byte>() const { return {data_.get(), size_}; }

private:
    std::unique_ptr<std::byte[]> data_;
    std::size_t size_ = 0;
};

}  // namespace hvd::inline v0::detail
