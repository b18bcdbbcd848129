// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "../../comm/serializer.hpp"

namespace hvd::inline v0::detail {

// The bytes of a batch in order. Small pieces are copies, large ones are read where they lie in the
// batch, which has to stay until they are sent.
class gathered_bytes {
public:
    static constexpr std::size_t least_referenced = 4096;

    // Others append to it.
    std::vector<std::byte>& copies() { return copies_; }

    void add(const void* data, std::size_t bytes) {
        if (bytes < least_referenced) return put(copies_, data, bytes);
        pieces_.push_back({copies_.size(), {static_cast<const std::byte*>(data), bytes}});
        referenced_ += bytes;
    }

    std::size_t size() const { return copies_.size() + referenced_; }

    // Calls `use(copy, piece)` for the bytes in order, in pairs of a copied and a referenced piece.
    // It ends early if `use` returns false.
    template <class F>
    bool in_pairs(const F& use) const {
        const std::span<const std::byte> copies = copies_;
        std::size_t done = 0;
        for (const piece& p : pieces_) {
            if (!use(copies.subspan(done, p.at - done), p.bytes)) return false;
            done = p.at;
        }
        return use(copies.subspan(done), std::span<const std::byte>());
    }

    void copy_to(std::byte* to) const {
        const auto copy = [&to](std::span<const std::byte> bytes) {
            if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
            to += bytes.size();
        };
        in_pairs([&](auto first, auto second) { return copy(first), copy(second), true; });
    }

private:
    struct piece {
        std::size_t at;  // its place among the copies
        std::span<const std::byte> bytes;
    };

    std::vector<std::byte> copies_;
    std::vector<piece> pieces_;
    std::size_t referenced_ = 0;
};

}  // namespace hvd::inline v0::detail
