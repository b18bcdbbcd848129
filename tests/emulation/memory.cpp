// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "streams.hpp"

namespace {

struct allocation {
    std::byte* device_view;
    std::size_t bytes, mapped;
    int device;
};

std::mutex mutex;
std::map<const std::byte*, allocation>& allocations() {
    static std::map<const std::byte*, allocation> all;
    return all;
}

const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE));

cudaError_t allocate(void** pointer, std::size_t bytes, bool seen_by_host = false) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const std::size_t mapped = (bytes + page - 1) / page * page;
    const int file = memfd_create("hvd-emulation", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(mapped)) != 0) return cudaErrorMemoryAllocation;
    void* const host_view = mmap(nullptr, mapped, seen_by_host ? PROT_READ | PROT_WRITE : PROT_NONE,
                                 MAP_SHARED, file, 0);
    void* const device_view = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (host_view == MAP_FAILED || device_view == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::memset(device_view, 0xff, mapped);
    const std::lock_guard lock(mutex);
    allocations()[static_cast<std::byte*>(host_view)] = {
        static_cast<std::byte*>(device_view), bytes, mapped, emulation::device_of_this_thread()};
    emulation::count_object(1);
    *pointer = host_view;
    return cudaSuccess;
}

bool release(void* pointer, bool waits = true) {
    if (pointer == nullptr) return true;
    if (waits) emulation::finish_all_work();
    const std::lock_guard lock(mutex);
    const auto found = allocations().find(static_cast<std::byte*>(pointer));
    if (found == allocations().end()) return false;
    const allocation& memory = found->second;
    munmap(memory.device_view, memory.mapped);
    munmap(pointer, memory.mapped);
    allocations().erase(found);
    emulation::count_object(-1);
    return true;
}

// After harm that stays, memory remains, and is nobody's any more.
cudaError_t not_freed(const void* pointer, int code) {
    if (pointer != nullptr && emulation::is_corrupted()) emulation::count_object(-1);
    return cudaError_t(code);
}

// The device on which CUDA has allocated the memory, or the invalid one for other memory.
int device_of(const void* address) {
    const auto* const first = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex);
    auto found = allocations().upper_bound(first);
    if (found == allocations().begin()) return cudaInvalidDeviceId;
    --found;
    const bool is_inside = std::size_t(first - found->first) < found->second.mapped;
    return is_inside ? found->second.device : cudaInvalidDeviceId;
}
bool is_known(const void* address) { return device_of(address) != cudaInvalidDeviceId; }

}  // namespace

bool emulation::allocate_on_device(void** pointer, std::size_t bytes) {
    return allocate(pointer, bytes) == cudaSuccess;
}

bool emulation::free_on_device(void* pointer, bool waits) { return release(pointer, waits); }

std::byte* emulation::seen_by_device(const void* address, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex);
    auto found = allocations().upper_bound(first);
    if (found == allocations().begin()) return const_cast<std::byte*>(first);
    --found;
    const std::size_t offset = std::size_t(first - found->first);
    if (offset >= found->second.mapped) return const_cast<std::byte*>(first);
    if (offset + bytes > found->second.bytes)
        die("an access of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
            " of device memory of " + std::to_string(found->second.bytes) + " bytes");
    return found->second.device_view + offset;
}

std::byte* emulation::seen_by_kernel(const void* address, std::size_t bytes) {
    if (bytes > 0 && !is_known(address) && answer_of("discrete") != 0)
        die("a kernel uses memory of the host that CUDA does not know");
    return seen_by_device(address, bytes);
}

extern "C" {

// It may wait for the device, where contexts are locked: CUDA makes no promise.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (emulation::contexts_are_locked() && emulation::random_number() % 2 == 0)
        emulation::finish_all_work();
    return emulation::failed(allocate(pointer, bytes));
}

cudaError_t cudaFree(void* pointer) {
    if (const int code = emulation::unsafe(__func__)) return not_freed(pointer, code);
    return emulation::failed(release(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

// Memory that both sides see. The matching call frees it. CUDA does not say if that waits for the
// work of streams.
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (emulation::contexts_are_locked()) emulation::finish_all_work();
    return emulation::failed(allocate(pointer, bytes, true));
}

cudaError_t cudaFreeHost(void* pointer) {
    if (const int code = emulation::unsafe(__func__)) return not_freed(pointer, code);
    const bool waits = emulation::random_number() % 2 == 0;
    return emulation::failed(release(pointer, waits) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    return emulation::failed(allocate(pointer, bytes, true));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    *attributes = {};
    attributes->device = device_of(pointer);
    attributes->type = is_known(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    emulation::enqueue(stream, [=] {
        if (bytes > 0) std::memset(emulation::seen_by_device(to, bytes), value, bytes);
    });
    return cudaSuccess;
}

// The kind says on which sides the memory is. Pinned memory is on both.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (const int code = emulation::faulted(__func__)) return cudaError_t(code);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes > 0 && emulation::answer_of("discrete") != 0 &&
        ((to_device && !is_known(to)) || (from_device && !is_known(from))))
        return emulation::failed(cudaErrorInvalidValue);
    emulation::enqueue(stream, [=] {
        if (kind == cudaMemcpyHostToDevice) emulation::wait_as_slow_copies_do();
        if (bytes > 0)
            std::memmove(emulation::seen_by_device(to, bytes),
                         emulation::seen_by_device(from, bytes), bytes);
    });
    return cudaSuccess;
}

// A copy from pageable memory returns when the data has left it, and one inside the device at once.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    if (const int code = emulation::unsafe(__func__)) return cudaError_t(code);
    if (const cudaError_t no = emulation::refused(cudaStreamLegacy)) return emulation::failed(no);
    if (bytes == 0) return cudaSuccess;
    const bool to_device = is_known(to), from_device = is_known(from);
    if (to_device && !from_device) {
        const auto* const first = static_cast<const std::byte*>(from);
        emulation::enqueue(cudaStreamLegacy, [=, data = std::vector(first, first + bytes)] {
            std::memcpy(emulation::seen_by_device(to, bytes), data.data(), bytes);
        });
        return cudaSuccess;
    }
    emulation::enqueue(cudaStreamLegacy, [=] {
        std::memmove(emulation::seen_by_device(to, bytes), emulation::seen_by_device(from, bytes),
                     bytes);
    });
    if (!to_device) emulation::resolved(cudaStreamLegacy)->finish();
    return cudaSuccess;
}

}  // extern "C"
