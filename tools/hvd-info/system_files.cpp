// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "system_files.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace hvd_info {
namespace {

bool is_in_list(std::string_view list, std::string_view name) {
    const std::string padded = "," + std::string(list) + ",";
    return padded.find("," + std::string(name) + ",") != std::string::npos;
}

}  // namespace

std::string system_files::read(const std::string& path) const {
    std::ifstream file(root_ + path);
    std::stringstream content;
    content << file.rdbuf();
    std::string text = content.str();
    while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
    return text;
}

long long system_files::kibibytes(const std::string& path, const std::string& key) const {
    const std::string text = "\n" + read(path);
    const std::size_t at = text.find("\n" + key);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + 1 + key.size()) * 1024;
}

std::vector<std::string> system_files::names(const std::string& folder,
                                             const std::string& prefix) const {
    std::vector<std::string> result;
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + folder, failed))
        if (const std::string name = entry.path().filename(); name.starts_with(prefix))
            result.push_back(name);
    std::sort(result.begin(), result.end(), [](const std::string& a, const std::string& b) {
        return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    return result;
}

// A line of /proc/self/cgroup is "4:memory:/path", and of version 2 "0::/path". In a container the
// path may be that of the host, and the folder the container's own.
std::vector<std::string> system_files::control_groups(const std::string& controller) const {
    const bool is_v2 = !read("/sys/fs/cgroup/cgroup.controllers").empty();
    const std::string top = "/sys/fs/cgroup" + (is_v2 ? "" : "/" + controller);
    std::string path = "/";
    std::istringstream lines(read("/proc/self/cgroup"));
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (is_v2 ? controllers.empty() : is_in_list(controllers, controller))
            path = line.substr(second + 1);
    }
    std::vector<std::string> result;
    for (; path.size() > 1; path.erase(path.rfind('/'))) result.push_back(top + path);
    result.push_back(top);
    return result;
}

std::vector<int> numbers_of(const std::string& list) {
    std::vector<int> result;
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        const std::size_t dash = part.find('-');
        const int first = std::atoi(part.c_str());
        const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
        for (int i = first; i <= last; ++i) result.push_back(i);
    }
    return result;
}

std::string bytes_text(double bytes) {
    if (bytes < 0) return "unknown";
    static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
    char text[32];
    std::snprintf(text, sizeof text, bytes < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes,
                  units[unit]);
    return text;
}

}  // namespace hvd_info
