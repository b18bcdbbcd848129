// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "../standard.hpp"
#include "linux.hpp"

namespace hvd::inline v0::detail {

// Returns the first number after `key` in a small system file, or `otherwise` if there is none.
inline std::uint64_t number_in(const char* path, std::string_view key, std::uint64_t otherwise) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return otherwise;
    char content[2048] = {};
    const bool is_read = read(file, content, sizeof content - 1) > 0;
    close(file);
    if (!is_read) return otherwise;
    const std::string_view all = content;
    const std::size_t at = all.find(key);
    if (at == all.npos) return otherwise;
    const std::size_t digit = all.find_first_not_of(" \t", at + key.size());
    if (digit == all.npos || all[digit] < '0' || all[digit] > '9') return otherwise;
    return std::strtoull(all.data() + digit, nullptr, 10);
}

// The bytes that a control group uses. The files in its cache do not count, since the kernel drops
// them when memory is requested.
inline std::uint64_t memory_in_use() {
    constexpr const char* parts = "/sys/fs/cgroup/memory.stat";
    const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current", "", 0);
    const std::uint64_t cached =
        number_in(parts, "\ninactive_file ", 0) + number_in(parts, "\nactive_file ", 0);
    return used > cached ? used - cached : 0;
}

// The bytes that this process may still use: the lesser of the machine's free memory and the rest
// of its control group's limit. Only Linux tells; elsewhere no limit is known.
inline std::uint64_t available_memory() {
#if HVD_LINUX
    const std::uint64_t kibibytes = number_in("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    const std::uint64_t limit =
        number_in("/sys/fs/cgroup/memory.max", "", UINT64_MAX);  // "max" means no limit
    const std::uint64_t used = memory_in_use();
    const std::uint64_t machine = kibibytes * 1024, group = limit > used ? limit - used : 0;
    return machine < group ? machine : group;
#else
    return UINT64_MAX;
#endif
}

}  // namespace hvd::inline v0::detail
