// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "../../platform/thread.hpp"

namespace hvd::inline v0::detail {

// Bytes that something is about to be written over. They are not filled with zeros first, which
// takes as long as half of a copy.
class byte_buffer {
public:
    byte_buffer() = default;
    explicit byte_buffer(std::size_t bytes)
        : data_(bytes > 0 ? std::make_unique_for_overwrite<std::byte[]>(bytes) : nullptr),
          size_(bytes),
          room_(bytes) {}
    byte_buffer(byte_buffer&& other) noexcept { swap(other); }
    byte_buffer& operator=(byte_buffer&& other) noexcept {
        swap(other);
        return *this;
    }

    std::byte* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    operator std::span<const std::byte>() const { return {data_.get(), size_}; }

    // Takes the size if there is room for it, and not twice as much.
    bool fits(std::size_t bytes) {
        if (bytes > room_ || bytes < room_ / 2) return false;
        size_ = bytes;
        return true;
    }

private:
    void swap(byte_buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(room_, other.room_);
    }

    std::unique_ptr<std::byte[]> data_;
    std::size_t size_ = 0, room_ = 0;
};

// Large buffers that were read, for those that come next: their pages are there already.
class spare_buffers {
public:
    byte_buffer take(std::size_t bytes) {
        if (bytes >= least) {
            const lock_guard held(mutex_);
            for (byte_buffer& spare : spares_)
                if (spare.fits(bytes)) return std::exchange(spare, byte_buffer());
        }
        return byte_buffer(bytes);
    }
    void give_back(byte_buffer buffer) {
        if (buffer.size() < least) return;
        const lock_guard held(mutex_);
        spares_[next_++ % most] = std::move(buffer);
    }

private:
    static constexpr std::size_t least = 65536, most = 4;

    mutex mutex_;
    byte_buffer spares_[most];
    std::size_t next_ = 0;
};

}  // namespace hvd::inline v0::detail
