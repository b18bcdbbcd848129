// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "emulation.hpp"

namespace {

struct allocation {
    std::byte* device_view;
    std::size_t bytes, mapped;
};

std::mutex mutex;
std::map<const std::byte*, allocation>& allocations() {
    static std::map<const std::byte*, allocation> all;
    return all;
}

cudaError_t allocate(void** pointer, std::size_t bytes, bool seen_by_host = false) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE)), mapped = (bytes + page - 1) / page * page;
    const int file = memfd_create("hvd-emulation", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(mapped)) != 0) return cudaErrorMemoryAllocation;
    void* const host_view = mmap(nullptr, mapped, seen_by_host ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED, file, 0);
    void* const device_view = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (host_view == MAP_FAILED || device_view == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::memset(device_view, 0xff, mapped);
    const std::lock_guard lock(mutex);
    allocations()[static_cast<std::byte*>(host_view)] = {static_cast<std::byte*>(device_view), bytes, mapped};
    emulation::count_object(1);
    *pointer = host_view;
    return cudaSuccess;
}

bool release(void* pointer) {
    if (pointer == nullptr) return true;
    emulation::finish_all_work();
    const std::lock_guard lock(mutex);
    const auto found = allocations().find(static_cast<std::byte*>(pointer));
    if (found == allocations().end()) return false;
    munmap(found->second.device_view, found->second.mapped);
    munmap(pointer, found->second.mapped);
    allocations().erase(found);
    emulation::count_object(-1);
    return true;
}

}  // namespace

std::byte* emulation::seen_by_device(const void* address, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex);
    auto found = allocations().upper_bound(first);
    if (found == allocations().begin()) return const_cast<std::byte*>(first);
    --found;
    const std::size_t offset = std::size_t(first - found->first);
    if (offset >= found->second.mapped) return const_cast<std::byte*>(first);
    if (offset + bytes > found->second.bytes)
        die("an access of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of device memory of " +
            std::to_string(found->second.bytes) + " bytes");
    return found->second.device_view + offset;
}

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    return allocate(pointer, bytes);
}

cudaError_t cudaFree(void* pointer) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    return release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

// Memory that both sides see; it is given back by the call that goes with it.
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    return allocate(pointer, bytes, true);
}

cudaError_t cudaFreeHost(void* pointer) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    return release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    return allocate(pointer, bytes, true);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    emulation::enqueue(stream, [=] {
        if (bytes > 0) std::memset(emulation::seen_by_device(to, bytes), value, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    emulation::enqueue(stream, [=] {
        if (bytes > 0) std::memmove(emulation::seen_by_device(to, bytes), emulation::seen_by_device(from, bytes), bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (bytes > 0) std::memmove(emulation::seen_by_device(to, bytes), emulation::seen_by_device(from, bytes), bytes);
    return cudaSuccess;
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    return allocate(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* pointer) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    return release(pointer) ? ncclSuccess : ncclInvalidArgument;
}

}  // extern "C"
