// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The cores that the ranks of this host may use.
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "affinity.hpp"
#include "checks.hpp"

namespace hvd_info {
namespace {

// The cores whose time a control group gives, or 0 if it has no limit. The least of those around
// it counts.
double cores_of_quota(const system_files& files) {
    double least = 0;
    const auto take = [&](double quota, double period) {
        const double cores = quota > 0 && period > 0 ? quota / period : 0;
        if (cores > 0 && (least == 0 || cores < least)) least = cores;
    };
    for (const std::string& group : files.control_groups("cpu")) {
        std::istringstream both(files.read(group + "/cpu.max"));  // "200000 100000" or "max 100000"
        double quota = 0, period = 0;
        if (both >> quota >> period) take(quota, period);
        take(std::atof(files.read(group + "/cpu.cfs_quota_us").c_str()),
             std::atof(files.read(group + "/cpu.cfs_period_us").c_str()));
    }
    return least;
}

// "0-15 16-31", the cores of each node.
std::string cores_of_nodes(const system_files& files) {
    const std::string folder = "/sys/devices/system/node";
    std::string text;
    for (const std::string& node : files.names(folder, "node")) {
        if (!text.empty()) text += " ";
        text += files.read(folder + "/" + node + "/cpulist");
    }
    return text;
}

std::string decimal(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", number);
    return text;
}

void judge_ranks(check_report& report, const place_in_job& place, double cores) {
    if (place.local_size <= cores) return;
    report.note(std::to_string(place.local_size) + " ranks share " + decimal(cores) +
                    " cores of this host: each waits for a core at every step",
                "start at most one rank a core, unless it is a test");
}

// Open MPI binds each of two ranks to a core of its own, which suits a trainer without threads.
void judge_one_core(check_report& report, const place_in_job& place, int online) {
    const std::string what = "this process may use one core of " + std::to_string(online) +
                             ": its threads, and those of hvd and of a loader, take turns there";
    const std::string remedy =
        "start it without binding: mpiexec --bind-to none (Open MPI), -bind-to none (MPICH), srun "
        "--cpu-bind=none, or without taskset; hvdrun binds nothing";
    if (place.local_size > 1) report.note(what, remedy);
    else report.wrong(what, remedy);
}

}  // namespace

check_report check_cores(const context& c) {
    check_report report{"cores", {}, {}};
    const int online = int(numbers_of(c.files.read("/sys/devices/system/cpu/online")).size());
    const int own = int(allowed_cores().size());
    const double quota = cores_of_quota(c.files);
    report.add_common("of the host", online == 0 ? "" : std::to_string(online));
    report.add_common("of this process", std::to_string(own));
    report.add_common("quota of control group", quota > 0 ? decimal(quota) + " cores" : "none");
    report.add("cores of NUMA nodes", cores_of_nodes(c.files));
    const std::string loads = c.files.read("/proc/loadavg");
    const double load = std::atof(loads.c_str());
    report.add("load", loads.empty() ? "" : decimal(load) + " in the last minute");
    if (c.place.is_alone() && online > 0 && load > online)
        report.note("other programs keep this host busy: " + decimal(load) + " threads want its " +
                        std::to_string(online) + " cores, and times of the self-test say little",
                    "end them, or measure when they have ended");
    if (own == 1 && online > 1) judge_one_core(report, c.place, online);
    if (quota > 0 && quota < own)
        report.note("the control group gives the time of " + decimal(quota) +
                        " cores, and the process sees " + std::to_string(own) +
                        ": the kernel stops it in each period",
                    "start no more ranks and threads than the quota has cores, or raise it "
                    "(docker run --cpus, limits.cpu of Kubernetes)");
    const double most = quota > 0 && quota < own ? quota : own;
    // Where each rank is bound to cores of its own, the others have more.
    if (own == online || quota > 0) judge_ranks(report, c.place, most);
    return report;
}

}  // namespace hvd_info
