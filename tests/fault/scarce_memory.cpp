// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "scarce_memory.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace scarce_memory_tests {

// The allocations that are left to this rank, or -1.
#if defined(HVD_TEST_BACKEND_MPI)
static std::atomic<long> left = -1;  // also for the progress thread
static std::atomic<bool> failed = false, lasting = false, of_all_kinds = false;
#else
static thread_local long left = -1;
static thread_local bool failed = false, lasting = false, of_all_kinds = false;
#endif

static thread_local hvd_test::memory_supply* supply = nullptr;

static bool is_refused() {
    if (supply != nullptr) return supply->is_spent();
    if (left < 0 || left-- > 0) return false;
    if (lasting) left = 0;
    return failed = true;
}

static void* allocated(std::size_t bytes, std::size_t alignment) {
    if (is_refused()) throw std::bad_alloc();
    const std::size_t padded = (bytes + alignment - 1) / alignment * alignment;
    if (void* const memory = std::aligned_alloc(alignment, padded)) return memory;
    throw std::bad_alloc();
}

}  // namespace scarce_memory_tests

using scarce_memory_tests::allocated;

void* operator new(std::size_t bytes) { return allocated(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocated(bytes, std::size_t(alignment));
}
// AddressSanitizer has its own, whose memory the deletes below may not free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
    return allocated(bytes, alignof(std::max_align_t));
} catch (const std::bad_alloc&) {
    return nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#if defined(HVD_TEST_WRAPS_MEMORY)
static bool refuses_all_kinds() {
    using namespace scarce_memory_tests;
    return (supply != nullptr || of_all_kinds) && is_refused();
}

// Pages and texts, where all kinds of memory are scarce. The linker puts these in the places of the
// system's, for hvd and not for MPI.
extern "C" {
void* __real_mmap(void*, std::size_t, int, int, int, off_t);
void* __wrap_mmap(void* at, std::size_t bytes, int rights, int flags, int file, off_t begin) {
    if (!refuses_all_kinds()) return __real_mmap(at, bytes, rights, flags, file, begin);
    errno = ENOMEM;
    return MAP_FAILED;
}
void* __real_realloc(void*, std::size_t);
void* __wrap_realloc(void* memory, std::size_t bytes) {
    return refuses_all_kinds() ? nullptr : __real_realloc(memory, bytes);
}
}
#endif

namespace hvd_test {

scarce_memory::scarce_memory(bool here, long allocations, shortage how, bool all_kinds) {
    scarce_memory_tests::failed = false;
    scarce_memory_tests::lasting = how == shortage::from_then_on;
    scarce_memory_tests::of_all_kinds = all_kinds;
    scarce_memory_tests::left = here ? allocations : -1;
}
scarce_memory::~scarce_memory() { scarce_memory_tests::left = -1; }
bool scarce_memory::has_failed() { return scarce_memory_tests::failed; }

bool memory_supply::is_spent() {
    const long before = left_--;
    if (before > 0 || (before < 0 && how_ == shortage::once)) return false;
    return has_failed_ = true;
}
void memory_supply::give_to_this_thread(memory_supply* own) { scarce_memory_tests::supply = own; }

}  // namespace hvd_test
