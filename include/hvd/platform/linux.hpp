// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstddef>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../standard.hpp"

// Linux has calls that POSIX lacks. They stand here and in futex.hpp, each beside what another
// system gets. A program that defines HVD_PLAIN_POSIX does without them on Linux too; it has to
// define it for all its files.
#if defined(__linux__) && !defined(HVD_PLAIN_POSIX)
#define HVD_LINUX 1
#else
#define HVD_LINUX 0
#endif

namespace hvd::inline v0::detail {

// ---- files --------------------------------------------------------------------------------------

// Opens a link itself, so that its owner and its target are those of one link. Other systems open
// none.
#if HVD_LINUX
constexpr int opens_link = O_PATH | O_NOFOLLOW;
#else
constexpr int opens_link = O_NOFOLLOW;
#endif

// Takes pages of a file now. Returns 0, or the error of the system. macOS has no call for it, and
// takes pages of shared memory when they are written.
inline int take_pages_of_file([[maybe_unused]] int file, [[maybe_unused]] std::size_t begin,
                              [[maybe_unused]] std::size_t bytes) {
#if defined(__APPLE__)
    return 0;
#else
    return posix_fallocate(file, off_t(begin), off_t(bytes));
#endif
}

// Lets only its user open a file of shared memory, whatever the umask was when it was made.
// Returns false if the system refused. macOS has fchmod for files of a file system alone.
inline bool keep_to_user([[maybe_unused]] int file) {
#if defined(__APPLE__)
    return true;
#else
    return fchmod(file, 0600) == 0;
#endif
}

// True if a file of shared memory with `bytes`, as it was made, may have `size` now. macOS makes it
// as large as whole pages of the processor.
inline bool is_size_of(std::size_t bytes, std::size_t size) {
#if defined(__APPLE__)
    return size >= bytes;
#else
    return size == bytes;
#endif
}

// ---- memory -------------------------------------------------------------------------------------

// Opens a file without a name, which other processes find among the open files of this one; -1
// where there are none, or the system refused. Tools see what the file is for.
inline int open_unnamed_file([[maybe_unused]] const char* purpose = "hvd") {
#if HVD_LINUX
    return memfd_create(purpose, MFD_CLOEXEC);
#else
    return -1;
#endif
}

// Asks for large pages, which only some systems give.
inline void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

// Takes the pages of a mapping now. Returns 0, ENOMEM, or EINVAL where the system cannot.
inline int take_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
#ifdef MADV_POPULATE_WRITE  // since Linux 5.14
    return madvise(memory, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
#endif
#endif
    return EINVAL;
}

// Gives the pages of a mapping back, shared ones for all processes that have mapped them. The
// addresses stay reserved. Other systems keep the pages until they are unmapped.
inline void give_back_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes,
                            [[maybe_unused]] bool is_shared) {
#if HVD_LINUX
    madvise(memory, bytes, is_shared ? MADV_REMOVE : MADV_DONTNEED);
#endif
}

// Asks that a forked child finds a page filled with zeros. Returns false where the system cannot.
inline bool wipe_in_children([[maybe_unused]] void* page, [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
#ifdef MADV_WIPEONFORK  // since Linux 4.14
    return madvise(page, bytes, MADV_WIPEONFORK) == 0;
#endif
#endif
    return false;
}

// Copies memory of another process, which may end meanwhile. Returns 0, or why the system refuses.
inline int read_memory_of([[maybe_unused]] pid_t process, [[maybe_unused]] const void* from,
                          [[maybe_unused]] void* to, [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
    for (std::size_t done = 0; done < bytes;) {
        const iovec here{static_cast<char*>(to) + done, bytes - done},
            there{static_cast<char*>(const_cast<void*>(from)) + done, bytes - done};
        const ssize_t n = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (n <= 0) return n < 0 ? errno : EFAULT;
        done += std::size_t(n);
    }
    return 0;
#else
    return ENOSYS;
#endif
}

// ---- processors ---------------------------------------------------------------------------------

// Sets a bit for each processor that this thread may run on, or none if the system does not tell.
inline void find_processors([[maybe_unused]] unsigned long* words,
                            [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
    // The system fills a part of the words, or, where they are too few, none.
    sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(words));
#endif
}

// Keeps this thread on the processors whose bits are set. Returns false where the system does not.
inline bool keep_to_processors([[maybe_unused]] const unsigned long* words,
                               [[maybe_unused]] std::size_t bytes) {
#if HVD_LINUX
    return sched_setaffinity(0, bytes, reinterpret_cast<const cpu_set_t*>(words)) == 0;
#else
    return false;
#endif
}

// From now on, the calling thread does not take the processor from another one when it is woken.
inline void wake_without_preempting() {
#if HVD_LINUX
    const sched_param none{};
    sched_setscheduler(0, SCHED_BATCH, &none);
#endif
}

}  // namespace hvd::inline v0::detail
