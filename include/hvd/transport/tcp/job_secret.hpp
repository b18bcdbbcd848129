// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>

#include "handshake.hpp"

namespace hvd::inline v0::detail {

// The secret of a job as text: 64 hexadecimal digits. Errors never show it.
constexpr std::size_t secret_digits = 2 * sizeof(shared_secret);

inline shared_secret new_secret() {
    shared_secret made;
    fill_random(-1, made.data(), made.size());
    return made;
}

inline message hex_of(const shared_secret& secret) {
    char digits[secret_digits + 1] = {};
    for (std::size_t i = 0; i < secret.size(); ++i) {
        digits[2 * i] = "0123456789abcdef"[int(secret[i]) >> 4];
        digits[2 * i + 1] = "0123456789abcdef"[int(secret[i]) & 15];
    }
    return message(digits);
}

// `where` names the source in an error. @throws usage_error
inline shared_secret secret_from_hex(std::string_view digits, std::string_view where) {
    const auto value = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    bool valid = digits.size() == secret_digits;
    for (const char c : digits) valid = valid && value(c) >= 0;
    if (!valid)
        throw usage_error(-1,
                          text("hvd: ", where, " has no secret of a job: it takes ", secret_digits,
                               " hexadecimal digits, and not ", digits.size(), " characters"));
    shared_secret made;
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = std::byte(value(digits[2 * i]) << 4 | value(digits[2 * i + 1]));
    return made;
}

// Reads the secret from a file, which nobody but its owner may read. @throws usage_error
inline shared_secret secret_from_file(const char* path) {
    const descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (!file || ::fstat(file.number(), &status) != 0)
        throw usage_error(
            -1, text("hvd: the secret's file ", path, " can't be read: ", strerror(errno)));
    if ((status.st_mode & 077) != 0)
        throw usage_error(-1,
                          text("hvd: the secret's file ", path,
                               " may be read or written by other users: it needs the mode 600"));
    char digits[secret_digits + 3];
    const ssize_t n = ::read(file.number(), digits, sizeof digits);
    std::string_view read(digits, n > 0 ? std::size_t(n) : 0);
    while (!read.empty() && (read.back() == '\n' || read.back() == '\r')) read.remove_suffix(1);
    return secret_from_hex(read, path);
}

// A secret that serves one purpose alone: a connection of another purpose does not know it.
inline shared_secret derived_secret(const shared_secret& secret, std::uint64_t purpose) {
    std::byte number[8];
    for (int i = 0; i < 8; ++i) number[i] = std::byte(purpose >> (8 * i));
    return hmac_sha256(secret, number);
}

// Connections for the membership of an elastic job know another secret than those of its ranks.
inline shared_secret membership_secret(const shared_secret& of_job) {
    return derived_secret(of_job, 0x656c6173746963);
}

// A secret of one connection between two ranks. None of another purpose is made of as many bytes.
inline shared_secret connection_secret(const shared_secret& secret, int connecting, int accepting,
                                       std::uint64_t context) {
    std::byte said[24];
    std::memcpy(said, "encrypts", 8);
    for (std::size_t i = 0; i < 4; ++i) {
        said[8 + i] = std::byte(std::uint32_t(connecting) >> (8 * i));
        said[12 + i] = std::byte(std::uint32_t(accepting) >> (8 * i));
    }
    for (std::size_t i = 0; i < 8; ++i) said[16 + i] = std::byte(context >> (8 * i));
    return hmac_sha256(secret, said);
}

}  // namespace hvd::inline v0::detail
