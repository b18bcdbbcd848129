// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

namespace hvd_info {

// The files of /proc and /sys, or a copy of them in another folder.
class system_files {
public:
    explicit system_files(std::string root) : root_(std::move(root)) {}

    // The content without its last newline, or an empty string.
    std::string read(const std::string& path) const;
    // The bytes that a line "key  123 kB" of a file tells, or -1.
    long long kibibytes(const std::string& path, const std::string& key) const;
    // The names in a folder that begin with `prefix`, in order.
    std::vector<std::string> names(const std::string& folder, const std::string& prefix) const;

    // The folders of this process's control group and of those around it, the innermost first.
    // `controller` is for version 1, which has a tree for each.
    std::vector<std::string> control_groups(const std::string& controller) const;

private:
    std::string root_;
};

// The numbers of a list as the kernel writes it: "0-3,8".
std::vector<int> numbers_of(const std::string& list);

// "256 MiB", or "unknown" for a negative number.
std::string bytes_text(double bytes);

}  // namespace hvd_info
