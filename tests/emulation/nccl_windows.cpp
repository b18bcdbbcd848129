// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Memory that is registered with NCCL, and its windows.

#include "nccl_comm.hpp"

using namespace emulated_nccl;

namespace {

constexpr std::uintptr_t window_alignment = 4096;
constexpr std::size_t window_granule = std::size_t(2) << 20;
std::map<const std::byte*, std::size_t> window_memory;  // of ncclMemAlloc

// The first place of a window that is free on this rank.
window_place free_place(const ncclComm& comm, std::size_t bytes) {
    const int granules = int((bytes + window_granule - 1) / window_granule);
    window_place found{bytes, 0, granules};
    const auto is_taken = [&](const auto& w) {
        return w.second.place < found.end && found.place < w.second.end;
    };
    for (auto taken = std::find_if(comm.windows.begin(), comm.windows.end(), is_taken);
         taken != comm.windows.end();
         taken = std::find_if(comm.windows.begin(), comm.windows.end(), is_taken))
        found = {bytes, taken->second.end, taken->second.end + granules};
    return found;
}

// Multicast needs a window at one place on all ranks, and nothing in NCCL looks.
void compare_places(const std::vector<clique::came>& ranks) {
    for (const auto& a : ranks)
        if (a.key != ranks[0].key)
            report("a window is at place " + std::to_string(ranks[0].key) + " on rank " +
                   std::to_string(ranks[0].rank) + " and at " + std::to_string(a.key) +
                   " on rank " + std::to_string(a.rank));
}

// NCCL's thread stops the network of the registrations meanwhile.
void not_while_revoking(const ncclComm& comm, const char* name) {
    if (comm.revoked && comm.pending) emulation::die(std::string(name) + " during a revoke");
}

}  // namespace

extern "C" {

// Registers any memory of the device, for this rank alone.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr || handle == nullptr || !on_device(memory)) return ncclInvalidArgument;
    emulation::seen_by_device(memory, bytes);
    const std::lock_guard lock(mutex);
    if (comm->registrations.insert(memory).second) emulation::count_object(1);
    *handle = memory;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    if (handle == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    not_while_revoking(*comm, __func__);
    if (comm->registrations.erase(handle) == 0) return ncclInvalidArgument;
    emulation::count_object(-1);
    return ncclSuccess;
}

// A window is the same for all ranks, which meet to make it. Its memory is of ncclMemAlloc.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes,
                                    ncclWindow_t* window, int) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    not_in_a_group(__func__);
    if (comm == nullptr || window == nullptr) return ncclInvalidArgument;
    if (memory == nullptr || bytes == 0) return ncclSuccess;
    std::unique_lock lock(mutex);
    if (const ncclResult_t no = usable(*comm); no != ncclSuccess) return no;
    const auto* const address = static_cast<const std::byte*>(memory);
    auto owner = window_memory.upper_bound(address);
    const bool owned = owner != window_memory.begin() &&
                       address + bytes <= std::prev(owner)->first + std::prev(owner)->second;
    const window_place opened = free_place(*comm, bytes);
    job work =
        meet(*comm, window_flavour, comm->clique->size, 0, opened.place,
             [=](ncclResult_t ended, const auto& ranks) {
                 if (ended == ncclSuccess) compare_places(ranks);
                 if (ended == ncclSuccess && comm->windows.emplace(memory, opened).second)
                     emulation::count_object(1);
                 write_result(window, ended == ncclSuccess ? reinterpret_cast<ncclWindow_t>(memory)
                                                           : nullptr);
             });
    if (!owned) work.refusal = ncclUnhandledCudaError;
    else if (std::size_t(address - std::prev(owner)->first) % window_alignment != 0)
        work.refusal = ncclInvalidArgument;
    const ncclResult_t state = start(lock, *comm, std::move(work));
    return comm->blocking() ? state : ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    if (const int code = emulation::faulted(__func__)) return ncclResult_t(code);
    if (comm == nullptr) return ncclInvalidArgument;
    if (window == nullptr) return ncclSuccess;
    const std::lock_guard lock(mutex);
    not_while_revoking(*comm, __func__);
    if (comm->windows.erase(window) == 0) return ncclInvalidArgument;
    emulation::count_object(-1);
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
    if (const int code = emulation::unsafe(__func__)) return ncclResult_t(code);
    if (pointer == nullptr) return ncclInvalidArgument;
    if (!emulation::allocate_on_device(pointer, bytes)) return ncclUnhandledCudaError;
    const std::lock_guard lock(mutex);
    if (*pointer != nullptr) window_memory[static_cast<std::byte*>(*pointer)] = bytes;
    return ncclSuccess;
}

// Memory of CUDA's virtual memory management is freed at once. Without it, NCCL calls cudaFree.
ncclResult_t ncclMemFree(void* pointer) {
    if (const int code = emulation::unsafe(__func__)) return ncclResult_t(code);
    {
        const std::lock_guard lock(mutex);
        for (const shared_comm& comm : live)
            if (comm->windows.contains(pointer))
                emulation::die("memory is freed that a window of NCCL has");
        window_memory.erase(static_cast<std::byte*>(pointer));
    }
    const bool waits = emulation::random_number() % 2 == 0;
    return emulation::free_on_device(pointer, waits) ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
