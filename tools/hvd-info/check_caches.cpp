// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The cores that share a cache, and how long a cache line takes from one core to another.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "affinity.hpp"
#include "checks.hpp"

namespace hvd_info {
namespace {

using core_list = std::vector<int>;

// The cores that share the cache of a level with a core, itself among them.
core_list sharing(const system_files& files, int core, const std::string& level) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cache";
    for (const std::string& name : files.names(folder, "index")) {
        const std::string cache = folder + "/" + name;
        if (files.read(cache + "/level") == level && files.read(cache + "/type") != "Instruction")
            return numbers_of(files.read(cache + "/shared_cpu_list"));
    }
    return {};
}

// "0-7", or "0,64" where the numbers do not follow one another.
std::string list_text(const core_list& cores) {
    std::string text;
    for (std::size_t first = 0, last = 0; first < cores.size(); first = ++last) {
        while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
        text += (text.empty() ? "" : ",") + std::to_string(cores[first]);
        if (last > first) text += "-" + std::to_string(cores[last]);
    }
    return text;
}

// "0-1 2-3", the groups of cores that share a cache.
std::string groups_text(const system_files& files, const core_list& own, const std::string& level) {
    std::map<core_list, bool> groups;
    for (const int core : own)
        if (const core_list group = sharing(files, core, level); !group.empty())
            groups[group] = true;
    std::string text;
    int shown = 0;
    for (const auto& [group, _] : groups) {
        if (++shown > 8) return text + " and " + std::to_string(groups.size() - 8) + " more";
        text += (text.empty() ? "" : " ") + list_text(group);
    }
    return text;
}

// Two threads hand one line to and fro. Returns nanoseconds for one way, the least of some tries.
double line_time(int first, int second) {
    constexpr int ways = 2000, tries = 5;
    alignas(128) std::atomic<int> line{0};
    const auto play = [&](int core, int mine) {
        keep_to(core);
        double least = 1e9;
        for (int t = 0; t < tries; ++t) {
            const auto begin = std::chrono::steady_clock::now();
            for (int i = t * ways + mine; i < (t + 1) * ways; i += 2) {
                int looks = 0;
                while (line.load(std::memory_order_acquire) != i)
                    if (++looks % 4096 == 0) std::this_thread::yield();
                line.store(i + 1, std::memory_order_release);
            }
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            least = std::min(least, took.count() / ways * 1e9);
        }
        return least;
    };
    double result = 0;
    std::thread one([&] { result = play(first, 0); });
    std::thread other([&] { play(second, 1); });
    one.join();
    other.join();
    return result;
}

// The first core with the nearest and with the farthest other one, as the caches tell: neighbours
// of L2, of L3, and those without a common cache. Where the system tells no cache, any other core.
std::vector<std::pair<std::string, int>> partners(const system_files& files, const core_list& own) {
    std::vector<std::pair<std::string, int>> result;
    const core_list near = sharing(files, own[0], "2"), far = sharing(files, own[0], "3");
    const auto has = [](const core_list& all, int core) {
        return std::find(all.begin(), all.end(), core) != all.end();
    };
    bool has_l2 = false, has_l3 = false, has_none = false;
    for (const int core : own) {
        if (core == own[0]) continue;
        bool& is_found = has(near, core) ? has_l2 : has(far, core) ? has_l3 : has_none;
        if (std::exchange(is_found, true)) continue;
        result.emplace_back(has(near, core)               ? ", by a common L2"
                            : has(far, core)              ? ", by a common L3"
                            : near.empty() && far.empty() ? ""
                                                          : ", by no common cache",
                            core);
    }
    return result;
}

}  // namespace

check_report check_caches(const context& c) {
    check_report report{"caches", {}, {}};
    const core_list own = allowed_cores();
    for (const char* level : {"2", "3"})
        if (const std::string groups = groups_text(c.files, own, level); !groups.empty())
            report.add(std::string("cores that share L") + level, groups);
    // Other ranks of the host measure at the same time, on the same cores.
    if (own.size() < 2 || c.place.local_rank > 0) return report;
    for (const auto& [how, core] : partners(c.files, own)) {
        char text[96];
        std::snprintf(text, sizeof text, "%.0f ns one way%s", line_time(own[0], core), how.c_str());
        report.add("line " + std::to_string(own[0]) + " to " + std::to_string(core), text);
    }
    return report;
}

}  // namespace hvd_info
