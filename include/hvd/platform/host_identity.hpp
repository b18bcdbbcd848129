// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

#include "../standard.hpp"
#include "linux.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A number for the machine that a process runs on, equal for all its processes. It is a hash of
// the machine's name and of the number that the kernel drew when it booted: machines of one name
// differ by the second, and where there is no /proc the name remains.
inline std::uint64_t host_identity() {
    char text[256] = {};
    gethostname(text, 128);
#if HVD_LINUX
    const int boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (boot >= 0) {
        [[maybe_unused]] const ssize_t n = read(boot, text + 128, 127);
        close(boot);
    }
#endif
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
