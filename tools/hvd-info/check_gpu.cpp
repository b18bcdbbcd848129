// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// GPUs, their driver and NCCL. Nothing of CUDA is linked: the libraries are opened as a program of
// hvd would open them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>
#include <unistd.h>

#include "../hvdrun/shell.hpp"
#include "checks.hpp"
#include "child.hpp"

namespace hvd_info {
namespace {

constexpr int stub_library = 34, no_device = 100;  // of CUresult
constexpr int oldest_nccl = 21901;                 // as nccl_versions.hpp has it

std::string two_numbers(int version, int unit, int part) {
    return std::to_string(version / unit) + "." + std::to_string(version % unit / part);
}
std::string cuda_text(int version) { return two_numbers(version, 1000, 10); }
std::string nccl_text(int version) {
    return two_numbers(version, 10000, 100) + "." + std::to_string(version % 100);
}

class library {
public:
    explicit library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) problem_ = ::dlerror();
    }
    explicit operator bool() const { return handle_ != nullptr; }

    // Calls a function that returns a code of CUDA or NCCL; -1 if there is none.
    template <class... Arguments>
    int call(const char* name, Arguments... arguments) const {
        void* const found = handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
        if (found == nullptr) return -1;
        return reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
    }
    std::string path_of(const char* name) const {
        Dl_info about{};
        void* const found = handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
        return found != nullptr && ::dladdr(found, &about) != 0 ? about.dli_fname : "";
    }

    const std::string& problem() const { return problem_; }

private:
    void* handle_;
    std::string problem_;
};

// The driver, as far as it works. `devices` is what a program sees.
struct driver {
    library cuda{"libcuda.so.1"};
    int version = 0, devices = 0;
};

void judge_start(check_report& report, driver& d, int gpus) {
    const int code = d.cuda.call("cuInit", 0u);
    d.cuda.call("cuDriverGetVersion", &d.version);
    const std::string path = d.cuda.path_of("cuInit");
    report.add("libcuda.so.1", path);
    if (code == stub_library || path.find("/stubs/") != std::string::npos) {
        report.wrong("libcuda.so.1 is the stub for linking (" + path +
                         "), and no driver: every call of CUDA fails",
                     "take the folder stubs out of LD_LIBRARY_PATH and of ld.so.conf, and run "
                     "ldconfig; in a container, start it with the driver: docker run --gpus all");
        return;
    }
    if (code == 0) d.cuda.call("cuDeviceGetCount", &d.devices);
    report.add_common("driver", "CUDA " + cuda_text(d.version));
    if (code != 0 && (code != no_device || gpus > 0))
        report.wrong("the driver does not start: cuInit returns " + std::to_string(code),
                     code == no_device
                         ? "CUDA_VISIBLE_DEVICES, or the container, hides all GPUs: look at both"
                         : "look at nvidia-smi and at dmesg; after an update of the driver, load "
                           "the new module or restart the host");
}

void add_devices(check_report& report, const driver& d) {
    int pairs = 0, reached = 0;
    for (int i = 0; i < d.devices; ++i) {
        char name[128] = "", bus[64] = "";
        int device = 0;
        d.cuda.call("cuDeviceGet", &device, i);
        d.cuda.call("cuDeviceGetName", name, int(sizeof name - 1), device);
        d.cuda.call("cuDeviceGetPCIBusId", bus, int(sizeof bus - 1), device);
        report.add("GPU " + std::to_string(i), std::string(name) + ", " + bus);
        for (int j = 0; j < d.devices; ++j) {
            int can = 0;
            if (i == j || d.cuda.call("cuDeviceCanAccessPeer", &can, i, j) != 0) continue;
            ++pairs;
            reached += can != 0 ? 1 : 0;
        }
    }
    if (pairs == 0) return;
    report.add("peer access", std::to_string(reached) + " of " + std::to_string(pairs) + " pairs");
    if (reached < pairs)
        report.note("not all GPUs reach each other's memory: NCCL copies between these by the host",
                    "look at nvidia-smi topo -p2p r; in virtual machines the hypervisor has to "
                    "allow it (ACS, IOMMU)");
}

void judge_visibility(check_report& report, const context& c, const driver& d, int gpus) {
    const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    if (chosen != nullptr) report.add("CUDA_VISIBLE_DEVICES", *chosen == 0 ? "(empty)" : chosen);
    if (chosen != nullptr && *chosen != 0 && d.devices == 0 && gpus > 0)
        report.wrong("CUDA_VISIBLE_DEVICES is " + std::string(chosen) +
                         ", which hides all GPUs of this host",
                     "unset it, or set it to numbers from 0 to " + std::to_string(gpus - 1));
    if (chosen != nullptr && d.devices == 1 && gpus > 1)
        report.note("CUDA_VISIBLE_DEVICES shows this process one GPU of " + std::to_string(gpus) +
                        ": MPI, and NCCL of a CUDA before 10.1, have no peer access then",
                    "unset it, and let hvd::pin_device choose by the local rank; otherwise set "
                    "NCCL_P2P_DISABLE=1, and give mpiexec --mca btl_smcuda_use_cuda_ipc 0");
    if (d.devices > 0 && c.place.local_size > d.devices && chosen == nullptr)
        report.note(std::to_string(c.place.local_size) + " ranks of this host share " +
                        std::to_string(d.devices) + " GPU(s), and NCCL takes one rank on each",
                    "start a rank a GPU, or take hvd::staged (docs/device.md)");
}

void judge_cuda(check_report& report, const driver& d) {
    constexpr int compiled = HVD_INFO_CUDA;
    report.add_common("compiled with CUDA", compiled == 0 ? "none" : cuda_text(compiled));
    if (compiled == 0 || d.devices == 0) return;
    if (d.version / 1000 < compiled / 1000)
        report.wrong("the driver is of CUDA " + cuda_text(d.version) +
                         ", older than the toolkit's " + cuda_text(compiled),
                     "install a newer driver, or compile with a toolkit of the driver's version");
    const std::string name = "libcudart.so." + std::to_string(compiled / 1000);
    if (!library(name.c_str()))
        report.note(name + " of the toolkit that hvd was compiled with is not found",
                    "add its folder to LD_LIBRARY_PATH, unless programs link cudart_static");
}

void judge_nccl(check_report& report, const driver& d) {
    const std::string header = HVD_INFO_NCCL;
    const library nccl("libnccl.so.2");
    int version = 0;
    const bool is_found = nccl.call("ncclGetVersion", &version) == 0;
    report.add_common("NCCL of the header", header);
    report.add_common(
        "NCCL of the library",
        is_found ? nccl_text(version) + ", " + nccl.path_of("ncclGetVersion") : "not found");
    if (!is_found && d.devices > 0)
        report.wrong("libnccl.so.2 is not loaded, and hvd::nccl needs it (" + nccl.problem() + ")",
                     "install it (libnccl2), or add its folder to LD_LIBRARY_PATH");
    if (is_found && version < oldest_nccl)
        report.wrong("the NCCL that is found first has version " + nccl_text(version) +
                         ", and hvd needs " + nccl_text(oldest_nccl) + " or later",
                     "remove the old one, or put the folder of the new one first in "
                     "LD_LIBRARY_PATH; environments of conda have one of their own");
    else if (is_found && header != "none" && nccl_text(version) != header)
        report.note("the header of NCCL is of version " + header + ", and the library of " +
                        nccl_text(version) + ": hvd calls only functions that both have",
                    "install the library of the header's version");
}

// A GPU that is cut into instances (MIG) has no peer access.
void judge_instances(check_report& report) {
    if (hvdrun::find_program("nvidia-smi").empty()) return;
    const child_end end = in_child(
        [] {
            ::execlp("nvidia-smi", "nvidia-smi", "--query-gpu=driver_version,mig.mode.current",
                     "--format=csv,noheader", static_cast<char*>(nullptr));
            return 127;
        },
        10);
    if (!end.is_good()) {
        report.note("nvidia-smi fails: " + end.reason(), "look at dmesg, and at the driver");
        return;
    }
    const std::string first = end.output.substr(0, end.output.find('\n'));
    report.add_common("nvidia-smi", "driver " + first.substr(0, first.find(',')));
    if (end.output.find("Enabled") == std::string::npos) return;
    report.add("MIG", "enabled");
    report.note("a GPU is cut into instances (MIG): NCCL joins no two instances of one GPU",
                "give each host's ranks instances of different GPUs, take hvd::staged, or switch "
                "it off: nvidia-smi -mig 0");
}

check_report look(const context& c) {
    check_report report{"gpu", {}, {}};
    const int gpus = int(c.files.names("/proc/driver/nvidia/gpus", "").size());
    driver d;
    if (d.cuda) {
        judge_start(report, d, gpus);
    } else {
        report.add_common("driver", "none");
        if (gpus > 0)
            report.wrong(
                "this host has " + std::to_string(gpus) + " GPU(s), and libcuda.so.1 is not found",
                "install the driver's libraries; in a container: docker run --gpus all, "
                "with NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    }
    add_devices(report, d);
    judge_visibility(report, c, d, gpus);
    judge_cuda(report, d);
    judge_nccl(report, d);
    if (d.cuda) judge_instances(report);
    return report;
}

}  // namespace

// A broken driver may end a process, or hold it for ever.
check_report check_gpu(const context& c) {
    const child_end end = in_child(
        [&] {
            std::fputs(to_text({0, "", {look(c)}}).c_str(), stdout);
            return 0;
        },
        30);
    if (end.is_good()) return from_text(end.output).checks.front();
    check_report report{"gpu", {}, {}};
    report.wrong("the driver of the GPUs, or NCCL, does not start: " + end.reason(),
                 "look at nvidia-smi and at dmesg");
    return report;
}

}  // namespace hvd_info
