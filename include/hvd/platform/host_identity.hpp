// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "../standard.hpp"
#include "linux.hpp"

namespace hvd::inline v0::detail {

// The number that the kernel drew when it booted, or nothing where there is no /proc.
struct boot_number {
    boot_number() {
#if HVD_LINUX
        const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        is_known = read(file, text, sizeof text) > 0;
        close(file);
#endif
    }
    char text[127] = {};
    bool is_known = false;
};

class host_hash {
public:
    template <std::size_t N>
    host_hash& add(const char (&text)[N]) {
        for (const char c : text)
            value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
        return *this;
    }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 0xcbf29ce484222325u;  // FNV-1a
};

// A number for the machine that a process runs on, equal for all its processes. It is a hash of
// the machine's name and of the number that the kernel drew when it booted: machines of one name
// differ by the second, and where there is no /proc the name remains.
inline std::uint64_t host_identity() {
    char name[128] = {};
    gethostname(name, sizeof name);
    return host_hash().add(name).add(boot_number().text).value();
}

// A number for the network that a process sees, equal for those that reach each other by the
// loopback address. Containers of one machine have several. 0 where the system does not tell it.
inline std::uint64_t network_identity() {
#if HVD_LINUX
    char name[128] = {}, network[64] = {};
    gethostname(name, sizeof name);
    const boot_number boot;
    if (boot.is_known && readlink("/proc/self/ns/net", network, sizeof network) > 0)
        return host_hash().add(name).add(boot.text).add(network).value();
#endif
    return 0;
}

}  // namespace hvd::inline v0::detail
