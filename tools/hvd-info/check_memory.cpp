// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The memory that the ranks of this host may use, and the room in /dev/shm.
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checks.hpp"

namespace hvd_info {
namespace {

constexpr double mebibyte = 1 << 20;
// A rank of a small network with its tensors, and the libraries of a GPU, take about so much.
constexpr double least_for_a_rank = 256 * mebibyte;
// Docker's default. Open MPI and NCCL take several MiB there for each rank.
constexpr double docker_default = 64 * mebibyte, least_shared = 16 * mebibyte;

// The least limit of the control groups around this process, and what may still be used.
struct group_memory {
    double limit = -1, rest = -1;  // -1: no limit
};

// Version 1 writes a huge number where there is no limit. Files in the cache do not count as used:
// the kernel drops them.
group_memory memory_of_group(const system_files& files, double machine) {
    group_memory result;
    for (const std::string& group : files.control_groups("memory"))
        for (const auto& [limit_file, used_file] :
             {std::pair("/memory.max", "/memory.current"),
              std::pair("/memory.limit_in_bytes", "/memory.usage_in_bytes")}) {
            const double limit = std::atof(files.read(group + limit_file).c_str());
            if (limit <= 0 || limit >= machine) continue;  // "max", no such file, or no limit
            double used = std::atof(files.read(group + used_file).c_str());
            const std::string statistics = "\n" + files.read(group + "/memory.stat");
            for (const char* key : {"\ninactive_file ", "\nactive_file "})
                if (const std::size_t at = statistics.find(key); at != std::string::npos)
                    used -= std::atof(statistics.c_str() + at + std::strlen(key));
            const double rest = std::max(0.0, limit - std::max(0.0, used));
            if (result.rest < 0 || rest < result.rest) result = {limit, rest};
        }
    return result;
}

void judge_memory(check_report& report, const context& c) {
    const double machine = double(c.files.kibibytes("/proc/meminfo", "MemTotal:"));
    const double available = double(c.files.kibibytes("/proc/meminfo", "MemAvailable:"));
    const group_memory group = memory_of_group(c.files, machine < 0 ? 1e18 : machine);
    report.add_common("of the host", bytes_text(machine));
    report.add("available", bytes_text(available));
    report.add_common("limit of control group",
                      group.limit < 0
                          ? "none"
                          : bytes_text(group.limit) + ", " + bytes_text(group.rest) + " left");
    const double rest = group.rest < 0 ? available : std::min(available, group.rest);
    if (rest >= 0 && rest <= least_for_a_rank * c.place.local_size)
        report.wrong(
            bytes_text(rest) + " of memory are left for " + std::to_string(c.place.local_size) +
                " rank(s) of this host" +
                (group.limit < 0 ? ""
                                 : ", by a control group's limit of " + bytes_text(group.limit)) +
                ": the kernel kills a rank that takes more",
            group.limit < 0 ? "start fewer ranks, or end other programs of this host"
                            : "raise the limit: docker run --memory, limits.memory of Kubernetes, "
                              "--mem of Slurm");
}

void judge_shared_memory(check_report& report, const system_files& files) {
    struct statvfs about{};
    if (::statvfs("/dev/shm", &about) != 0 || ::access("/dev/shm", W_OK) != 0) {
        report.wrong(
            "/dev/shm is not there, or cannot be written: Open MPI, MPICH and NCCL share "
            "memory by it",
            "mount it: mount -t tmpfs shm /dev/shm; docker run has it by default");
        return;
    }
    const double size = double(about.f_blocks) * double(about.f_frsize);
    const double left = double(about.f_bavail) * double(about.f_frsize);
    report.add_common("/dev/shm", bytes_text(size));
    report.add("left in /dev/shm", bytes_text(left));
    const bool has_gpu = !files.names("/proc/driver/nvidia/gpus", "").empty();
    const std::string remedy =
        left < size / 2 && size > docker_default
            ? "remove the files there that ended programs have left"
            : "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: "
              "Memory at /dev/shm";
    if (left < least_shared || (has_gpu && left <= docker_default))
        report.wrong("/dev/shm has room for " + bytes_text(left) +
                         ": Open MPI, MPICH and NCCL need several MiB a rank there",
                     remedy);
    else if (left <= docker_default)
        report.note("/dev/shm has room for " + bytes_text(left) +
                        ", which is enough for hvd itself; NCCL and loaders of processes need more",
                    remedy);
}

std::string chosen_of(const std::string& list) {  // "always [madvise] never"
    const std::size_t open = list.find('['), close = list.find(']');
    return close == std::string::npos ? "" : list.substr(open + 1, close - open - 1);
}

}  // namespace

check_report check_memory(const context& c) {
    check_report report{"memory", {}, {}};
    judge_memory(report, c);
    judge_shared_memory(report, c.files);
    const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
    const std::string pages = chosen_of(c.files.read(folder + "enabled"));
    const std::string shared = chosen_of(c.files.read(folder + "shmem_enabled"));
    report.add_common("large pages",
                      pages + (shared.empty() ? "" : ", of shared memory " + shared));
    if (pages == "never")
        report.note("large pages are off: large tensors take more time in shared memory",
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
        report.add("open files", files.rlim_cur == RLIM_INFINITY
                                     ? "no limit"
                                     : "at most " + std::to_string(files.rlim_cur));
    return report;
}

}  // namespace hvd_info
