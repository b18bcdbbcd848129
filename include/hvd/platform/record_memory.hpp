// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "../core/lean/atomic.hpp"
#include "linux.hpp"

namespace hvd::inline v0::detail {

// The first page of a file of records. A copy that was written to a disk has its time.
struct record_file_head {
    static constexpr char magic_of_hvd[8] = {'h', 'v', 'd', 'c', 'a', 'l', 'l', 's'};
    static constexpr std::uint32_t present_version = 1;

    char magic[8];
    std::uint32_t version, page_bytes;
    std::int64_t process;
    std::int64_t written;  // nanoseconds of the steady clock; 0: the process still writes
};

// Each record begins with this. Further pages belong to it.
struct record_head {
    enum kind : std::uint32_t { none, calls, tensors };

    std::uint32_t type, pages;
    std::uint64_t key;  // equal on the ranks of one communicator, and of no other
    std::int32_t rank, size;
    char label[16];
};

// Memory for what this process records of its calls. It is a file without a name. Other programs
// find it among the open files of the process, also while the process is stopped or hangs, and need
// no more rights than for that. A page that nobody has used takes no memory.
class record_memory {
public:
    static constexpr std::size_t page = 4096, most_pages = 2048;

    constexpr record_memory() = default;

    // Takes pages in a row, filled with zeros; null if there are none. Threads may take at once.
    [[gnu::cold]] std::byte* take(std::size_t pages) noexcept {
        const lock held(*this);
        if (base_ == nullptr && !open()) return nullptr;
        std::size_t free = 0;
        for (std::size_t i = 1; i < most_pages; ++i) {
            free = used_[i] ? 0 : free + 1;
            if (free == pages) return claim(i + 1 - pages, pages);
        }
        return nullptr;
    }

    // A forked child has no part in the records of its parent.
    [[gnu::cold]] void give_back(std::byte* record, std::size_t pages) noexcept {
        if (owner_.load() != getpid()) return;
        const lock held(*this);
        if (base_ == nullptr || record < base_ || record >= base_ + most_pages * page) return;
        std::memset(record, 0, sizeof(record_head));
        for (std::size_t i = 0; i < pages; ++i) used_[std::size_t(record - base_) / page + i] = 0;
    }

    // The descriptor of the file, -1 if there is none. It may be asked in a handler of a signal.
    int file() const noexcept { return owner_.load() == getpid() ? file_ : -1; }
    // So many pages were in use at some time.
    std::size_t pages_ever() const noexcept { return ever_.load(); }

private:
    // The holder of the lock may not exist in a forked child, which begins anew.
    class lock {
    public:
        explicit lock(record_memory& memory) noexcept : memory_(memory) {
            const int me = getpid();
            for (int owner = memory.owner_.load(); owner != me; owner = memory.owner_.load())
                if (owner != nobody && memory.owner_.compare_exchange(owner, nobody))
                    memory.begin_anew(me);
            while (memory.locked_.exchange(true)) sched_yield();
        }
        ~lock() { memory_.locked_.store(false); }
        lock(const lock&) = delete;
        lock& operator=(const lock&) = delete;

    private:
        record_memory& memory_;
    };

    static constexpr int nobody = -1;  // a thread is at it

    void begin_anew(int me) noexcept {
        if (file_ >= 0) close(file_);
        file_ = -1;
        base_ = nullptr;
        std::memset(used_, 0, sizeof used_);
        ever_.store(0);
        locked_.store(false);
        owner_.store(me);
    }

    bool open() noexcept {
        constexpr std::size_t bytes = most_pages * page;
        rlimit limit{};
        const bool may = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
                         bytes <= limit.rlim_cur;  // it would be a signal
        if (!may || (file_ = open_unnamed_file("hvd-calls")) < 0) return false;
        void* const memory =
            ftruncate(file_, off_t(bytes)) != 0
                ? MAP_FAILED
                : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (memory == MAP_FAILED) {
            close(file_);
            file_ = -1;
            return false;
        }
        base_ = static_cast<std::byte*>(memory);
        record_file_head head{{}, record_file_head::present_version, page, getpid(), 0};
        std::memcpy(head.magic, record_file_head::magic_of_hvd, sizeof head.magic);
        std::memcpy(memory, &head, sizeof head);
        ever_.store(1);
        return true;
    }

    std::byte* claim(std::size_t first, std::size_t pages) noexcept {
        for (std::size_t i = 0; i < pages; ++i) used_[first + i] = 1;
        if (first + pages > ever_.load()) ever_.store(first + pages);
        std::byte* const record = base_ + first * page;
        std::memset(record, 0, pages * page);
        return record;
    }

    atomic<int> owner_{0};
    atomic<bool> locked_{false};
    int file_ = -1;
    std::byte* base_ = nullptr;
    atomic<std::size_t> ever_{0};
    unsigned char used_[most_pages] = {};
};

// All parts of a program record in one file.
[[gnu::visibility("default")]] inline constinit record_memory records_of_process;

}  // namespace hvd::inline v0::detail
