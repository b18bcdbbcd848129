// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "emulation.hpp"

namespace {

constexpr int devices = 4;
thread_local int current_device = 0;
thread_local std::array<bool, devices> used{};  // also by objects that end after the thread's own
std::atomic<int> most_used = 0;
int only_visible = -1;

// The devices on which this process has a context. A child of fork() has none of its parent's.
std::array<std::atomic<pid_t>, devices> has_context{};

int visible_devices() { return only_visible < 0 ? devices : 1; }

// The number of a device in the machine.
int in_machine(int device) { return only_visible < 0 ? device : only_visible; }

}  // namespace

int emulation::device_of_this_thread() { return current_device; }
int emulation::most_devices_of_a_thread() { return most_used; }

void emulation::use_context() {
    has_context[std::size_t(current_device)] = getpid();
    if (std::exchange(used[std::size_t(current_device)], true)) return;
    const int own = int(std::count(used.begin(), used.end(), true));
    int most = most_used;
    while (most < own && !most_used.compare_exchange_weak(most, own)) continue;
}

void emulation::forget_contexts() {
    for (auto& context : has_context) context = 0;
}
void emulation::see_only(int device) { only_visible = device; }

// Every thread has its own.
int& emulation::last_error() {
    thread_local int code = cudaSuccess;
    return code;
}

cudaError_t emulation::failed(cudaError_t code) {
    if (code != cudaSuccess) last_error() = code;
    return code;
}

extern "C" {

cudaError_t cudaGetDevice(int* device) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (device < 0 || device >= visible_devices()) return emulation::failed(cudaErrorInvalidDevice);
    current_device = device;
    emulation::use_context();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (const int code = emulation::faulted("cudaGetDeviceProperties")) return cudaError_t(code);
    if (device < 0 || device >= visible_devices()) return emulation::failed(cudaErrorInvalidDevice);
    *properties = {};
    const int slices = emulation::answer_of("slices"), number = in_machine(device);
    properties->uuid.bytes[0] = char(0xa0 + number / slices);
    properties->uuid.bytes[15] = char(number % slices);
    properties->pciBusID = number / slices;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    switch (attribute) {
        case cudaDevAttrPageableMemoryAccess:
            *value = emulation::answer_of("discrete") == 0;
            return cudaSuccess;
        default: return emulation::failed(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *count = visible_devices();
    return cudaSuccess;
}

// The results are those of the driver's own type.
static int state_of_primary_context(int device, unsigned* flags, int* is_active) {
    constexpr int invalid_device = 101;
    if (device < 0 || device >= visible_devices()) return invalid_device;
    *flags = 0;
    *is_active = has_context[std::size_t(device)] == getpid();
    return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    const bool is_known = std::string_view(symbol) == "cuDevicePrimaryCtxGetState";
    *function = is_known ? reinterpret_cast<void*>(&state_of_primary_context) : nullptr;
    if (found != nullptr)
        *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() { return cudaError_t(emulation::last_error()); }
cudaError_t cudaGetLastError() {
    return cudaError_t(std::exchange(emulation::last_error(), int(cudaSuccess)));
}

const char* cudaGetErrorString(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInsufficientDriver:
            return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureImplicit:
            return "operation would make the legacy stream depend on a capturing blocking stream";
        default: return "an error of the emulation";
    }
}

}  // extern "C"
