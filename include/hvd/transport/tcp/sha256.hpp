// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "../../standard.hpp"

namespace hvd::inline v0::detail {

// SHA-256 (FIPS 180-4) and HMAC (RFC 2104). A library would be one more thing that every user of
// the headers has to link; tests compare with the vectors of FIPS and of RFC 4231.
using digest256 = std::array<std::byte, 32>;

class sha256 {
public:
    sha256& add(std::span<const std::byte> bytes) {
        for (const std::byte b : bytes) {
            block_[used_++] = std::uint8_t(b);
            if (used_ == 64) compress();
        }
        total_ += bytes.size();
        return *this;
    }

    digest256 finish() {
        const std::uint64_t bits = total_ * 8;
        pad(0x80);
        while (used_ != 56) pad(0);
        for (int i = 7; i >= 0; --i) pad(std::uint8_t(bits >> (8 * i)));
        digest256 result;
        for (std::size_t i = 0; i < 32; ++i)
            result[i] = std::byte(state_[i / 4] >> (24 - 8 * (i % 4)));
        return result;
    }

private:
    void pad(std::uint8_t b) {
        block_[used_++] = b;
        if (used_ == 64) compress();
    }

    static std::uint32_t turned(std::uint32_t x, int n) { return x >> n | x << (32 - n); }

    void compress() {
        static constexpr std::uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
            0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
            0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
            0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
            0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
            0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
            0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
            0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
            0xc67178f2};
        std::uint32_t w[64];
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = std::uint32_t(block_[4 * i]) << 24 | std::uint32_t(block_[4 * i + 1]) << 16 |
                   std::uint32_t(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] +
                   (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
        }
        std::array<std::uint32_t, 8> s = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t x = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                                    ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            const std::uint32_t y = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                                    ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {x + y, s[0], s[1], s[2], s[3] + x, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
        used_ = 0;
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::uint8_t block_[64];
    std::size_t used_ = 0;
    std::uint64_t total_ = 0;
};

class keyed_sha256 {
public:
    explicit keyed_sha256(std::span<const std::byte> key) {
        std::array<std::byte, 64> block{};
        if (key.size() > block.size()) {
            const digest256 shorter = sha256().add(key).finish();
            std::memcpy(block.data(), shorter.data(), shorter.size());
        } else if (!key.empty()) {
            std::memcpy(block.data(), key.data(), key.size());
        }
        inner_.add(xored(block, std::byte(0x36)));
        outer_.add(xored(block, std::byte(0x5c)));
    }
    keyed_sha256& add(std::span<const std::byte> bytes) {
        inner_.add(bytes);
        return *this;
    }
    digest256 finish() { return outer_.add(inner_.finish()).finish(); }

private:
    static std::array<std::byte, 64> xored(std::array<std::byte, 64> block, std::byte with) {
        for (std::byte& b : block) b ^= with;
        return block;
    }

    sha256 inner_, outer_;
};

inline digest256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> text) {
    return keyed_sha256(key).add(text).finish();
}

// The time does not depend on where they differ.
inline bool equal_digests(std::span<const std::byte> a, std::span<const std::byte> b) {
    std::byte differs{};
    for (std::size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
    return a.size() == b.size() && differs == std::byte(0);
}

}  // namespace hvd::inline v0::detail
