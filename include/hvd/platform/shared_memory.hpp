// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/lean/text.hpp"
#include "available_memory.hpp"
#include "linux.hpp"

namespace hvd::inline v0::detail {

// Memory that processes of one user on one host map together. It is empty if the system refused,
// and says by which error.
class shared_memory {
public:
    // The data that another process needs to open the memory.
    struct ticket {
        char path[48] = "";    // empty: there is nothing to open
        std::uint64_t id = 0;  // unique
        std::uint64_t device = 0, file = 0;
    };

    shared_memory() = default;
    shared_memory(shared_memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(other.bytes_),
          file_(std::exchange(other.file_, -1)),
          ticket_(other.ticket_),
          refusal_(other.refusal_),
          is_shared_(other.is_shared_),
          named_(std::exchange(other.named_, false)) {}
    shared_memory& operator=(shared_memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(file_, other.file_);
        std::swap(ticket_, other.ticket_);
        std::swap(refusal_, other.refusal_);
        std::swap(is_shared_, other.is_shared_);
        std::swap(named_, other.named_);
        return *this;
    }
    ~shared_memory() {
        all_have_it();
        close_file();
        if (data_ != nullptr) munmap(data_, bytes_);
    }

    static shared_memory refused(int code) {
        shared_memory none;
        none.refusal_ = code;
        return none;
    }
    // The error of the system that refused the memory, or 0.
    int refusal() const { return refusal_; }

    static constexpr std::size_t whole_pages(std::size_t bytes) {
        return (bytes + 4095) / 4096 * 4096;
    }
    // Room for a part of a segment that one rank may give back or replace: whole pages, also where
    // pages are as large as 64 KiB.
    static constexpr std::size_t whole_part(std::size_t bytes) {
        return (bytes + 65535) / 65536 * 65536;
    }

    // Makes a file without a name. Other processes find it among the open files of this process, so
    // nothing is left behind however the processes end. With `named` the file has a name that
    // nobody can guess. That serves processes that can't look there: those in another process
    // namespace, or without permission. Where there are no files without a name, it has one anyway.
    static shared_memory create(std::size_t bytes, bool named) {
        shared_memory result;
        std::uint64_t random[2] = {};
        if (getentropy(random, sizeof random) != 0) return refused(errno);
        ticket& t = result.ticket_;
        if (named || !HVD_LINUX) {
            name(t.path, random);
            result.file_ = shm_open(t.path, O_CREAT | O_EXCL | O_RDWR, 0600);
            result.named_ = result.file_ >= 0;
        } else {
            result.file_ = open_unnamed_file();
            store(t.path, text("/proc/", getpid(), "/fd/", result.file_));
        }
        struct stat status{};
        if (result.file_ >= 0 && !may_have_file_of(bytes)) return refused(EFBIG);
        if (result.file_ < 0 || !keep_to_user(result.file_) ||
            ftruncate(result.file_, off_t(bytes)) != 0 || fstat(result.file_, &status) != 0 ||
            !result.map(bytes))
            return refused(errno);
        t.id = random[0] | 1;
        t.device = status.st_dev;
        t.file = status.st_ino;
        return result;
    }

    static shared_memory open(const ticket& t, std::size_t bytes) {
        shared_memory result;
        if (t.path[0] == 0) return result;  // the rank that was to make it was refused
        const bool named = std::string_view(t.path).starts_with("/hvd-");
        result.file_ =
            named ? shm_open(t.path, O_RDWR | O_CLOEXEC, 0) : ::open(t.path, O_RDWR | O_CLOEXEC);
        result.ticket_ = t;
        // Another process may have that process number here, so the file is compared.
        struct stat status{};
        if (result.file_ < 0 || fstat(result.file_, &status) != 0) return refused(errno);
        if (std::uint64_t(status.st_dev) != t.device || std::uint64_t(status.st_ino) != t.file ||
            !is_size_of(bytes, std::size_t(status.st_size)))
            return refused(ENOENT);
        if (!result.map(bytes)) return refused(errno);
        return result;
    }

    // Makes memory for the threads of this process.
    static shared_memory of_this_process(std::size_t bytes) {
        shared_memory result;
        if (bytes == 0) bytes = 1;
        void* const memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return refused(errno);
        prefer_large_pages(memory, bytes);
        result.data_ = memory;
        result.bytes_ = bytes;
        return result;
    }

    // Call it once all processes have opened the file. It removes the name.
    void all_have_it() {
        if (named_) shm_unlink(ticket_.path);
        named_ = false;
    }

    // The mapping stays. make_private() needs the file.
    void close_file() {
        if (file_ >= 0) close(file_);
        file_ = -1;
    }

    // Takes the pages now, so that a lack of memory is a refusal and not a SIGBUS later. The rank
    // that reserves them gets pages near its processor. Call it before close_file(). Returns 0, or
    // the error of the system.
    int reserve(std::size_t begin, std::size_t end) {
        if (begin >= end) return 0;
        if (end - begin > available_memory())
            return ENOMEM;  // the kernel would kill a process instead
        const int error = take_pages(static_cast<std::byte*>(data_) + begin, end - begin);
        return error == EINVAL ? allocate(file_, begin, end) : error;
    }

    // The same for pages that come into the mapping when they are used.
    int reserve_untouched(std::size_t begin, std::size_t end) {
        if (begin < end && end - begin > available_memory()) return ENOMEM;
        return allocate(file_, begin, end);
    }

    // Takes pages of a file where the mapping can't. A signal ends a call of the system, which then
    // has taken nothing: so each call takes a part.
    static int allocate(int file, std::size_t begin, std::size_t end) {
        constexpr std::size_t most = std::size_t(1) << 20;
        while (begin < end) {
            const std::size_t part = end - begin < most ? end - begin : most;
            const int error = take_pages_of_file(file, begin, part);
            if (error != 0 && error != EINTR) return error;
            if (error == 0) begin += part;
        }
        return 0;
    }

    // Leaves the mapping to the end of the process.
    void leave() { data_ = nullptr; }

    // Replaces pages by copies that belong to this process alone, at the same addresses. Whatever
    // other processes write from then on does not come here. Other threads of this process may use
    // the memory meanwhile, and none of their writes is lost: a page is copied by the system, at a
    // write to it. The writes here change nothing, and bring the copies about.
    [[gnu::cold]] void make_private(std::size_t begin, std::size_t end) {
        std::byte* const memory = static_cast<std::byte*>(data_);
        if (file_ < 0 || begin >= end ||
            mmap(memory + begin, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                 file_, off_t(begin)) == MAP_FAILED)
            return;
        // Without memory for all copies at once, each page is copied when it is first written to.
        if (end - begin > available_memory()) return;
        for (std::size_t at = begin; at < end; at += 4096) {
            std::byte value = memory[at];
            __atomic_compare_exchange(memory + at, &value, &value, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
        }
    }

    // Gives pages back to the system, the shared ones for all processes that have mapped them. The
    // addresses stay reserved, and whoever uses them still crashes there.
    [[gnu::cold]] void discard(std::size_t begin, std::size_t end) noexcept {
        if (begin >= end) return;
        give_back_pages(static_cast<std::byte*>(data_) + begin, end - begin, is_shared_);
        close_off(begin, end);
    }
    // The same for pages that make_private() has made, or is about to make.
    [[gnu::cold]] void discard_private(std::size_t begin, std::size_t end) noexcept {
        if (begin >= end) return;
        give_back_pages(static_cast<std::byte*>(data_) + begin, end - begin, false);
        close_off(begin, end);
    }

    explicit operator bool() const { return data_ != nullptr; }
    void* data() const { return data_; }
    const ticket& how_to_open() const { return ticket_; }

private:
    // Writes a name of 29 characters. macOS takes no more than 31.
    static void name(char (&path)[sizeof(ticket::path)], const std::uint64_t (&random)[2]) {
        constexpr char digits[] = "0123456789abcdefghijklmnopqrstuv";
        store(path, text("/hvd-"));
        for (int i = 0; i < 24; ++i) path[5 + i] = digits[random[i / 12] >> (5 * (i % 12)) & 31];
        path[29] = 0;
    }

    // Without memory for another mapping the pages stay readable.
    void close_off(std::size_t begin, std::size_t end) noexcept {
        static_cast<void>(mprotect(static_cast<std::byte*>(data_) + begin, end - begin, PROT_NONE));
    }

    // The system would end a process by SIGXFSZ whose file becomes larger than its limit.
    static bool may_have_file_of(std::size_t bytes) {
        rlimit limit{};
        return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
               bytes <= limit.rlim_cur;
    }

    bool map(std::size_t bytes) {
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (memory == MAP_FAILED) return false;
        prefer_large_pages(memory, bytes);
        data_ = memory;
        bytes_ = bytes;
        is_shared_ = true;
        return true;
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    int file_ = -1;  // open until close_file()
    ticket ticket_;
    int refusal_ = 0;
    bool is_shared_ = false;
    bool named_ = false;  // this process made the name, and it still exists
};

}  // namespace hvd::inline v0::detail
