// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "../core/lean/text.hpp"
#include "linux.hpp"

#if HVD_LINUX
#include <sys/syscall.h>
#endif

namespace hvd::inline v0::detail {

// The data that /proc has about a process. It is all zeros where the system does not tell.
struct process_status {
    char state = 0;             // Z: it has ended, and its parent has not asked about it yet
    long threads = 0;           // with more than one, only its first thread has ended
    std::uint64_t started = 0;  // in ticks since the system started

    [[gnu::cold]] static process_status of([[maybe_unused]] std::int64_t process) {
        process_status status;
#if HVD_LINUX
        char path[32], line[1024];
        store(path, text("/proc/", process, "/stat"));
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return status;
        const ssize_t n = read(file, line, sizeof line - 1);
        close(file);
        line[n > 0 ? n : 0] = 0;
        // The name of the program comes second, in parentheses, and may have any characters.
        const char* at = std::strrchr(line, ')');
        if (at == nullptr || at[1] != ' ') return status;
        status.state = at[2];
        for (int field = 3; field <= 22 && at != nullptr; ++field) {
            at = std::strchr(at + 1, ' ');
            if (at != nullptr && field == 20) status.threads = std::strtol(at, nullptr, 10);
            if (at != nullptr && field == 22) status.started = std::strtoull(at, nullptr, 10);
        }
#endif
        return status;
    }

    bool is_over() const { return (state == 'Z' || state == 'X') && threads <= 1; }
};

// Looks whether another process of this host still runs. A process that was killed keeps its number
// until its parent asks about it. Afterwards another process may get that number, but it was
// started at another time.
//
// The first look opens a file that stands for the process. It stays open until forget(), so that
// further looks cost one call of the system.
class process_watch {
public:
    process_watch() = default;
    process_watch(const process_watch&) = delete;
    process_watch& operator=(const process_watch&) = delete;
    ~process_watch() { forget(); }

    // `started` is what process_status of this process had, in the process itself; 0: unknown.
    [[gnu::cold]] bool has_ended(std::int64_t process, std::uint64_t started) {
        if (ended_) return true;
        if (file_ < 0) open(process, started);
        if (ended_) return true;
        if (file_ < 0) return ended_ = looks_ended(process, started);
        pollfd look{file_, POLLIN, 0};
        return ended_ = poll(&look, 1, 0) > 0;
    }

    void forget() noexcept {
        if (file_ >= 0) close(std::exchange(file_, -1));
    }

    // Where there is no such file: before Linux 5.3, on other systems, or with too many open files.
    [[gnu::cold]] static bool looks_ended(std::int64_t process, std::uint64_t started) {
        if (kill(pid_t(process), 0) != 0 && errno == ESRCH) return true;
        const process_status status = process_status::of(process);
        return status.is_over() || is_another(status, started);
    }

private:
    static bool is_another(const process_status& status, std::uint64_t started) {
        return started != 0 && status.started != 0 && status.started != started;
    }

    // The file stands for the process that has the number now. If that one was started at the right
    // time, it is the right one, since that lives then.
    void open([[maybe_unused]] std::int64_t process, [[maybe_unused]] std::uint64_t started) {
#if HVD_LINUX
#ifdef SYS_pidfd_open  // since Linux 5.3
        file_ = int(syscall(SYS_pidfd_open, pid_t(process), 0));
        if (file_ < 0) ended_ = errno == ESRCH;
        else ended_ = is_another(process_status::of(process), started);
#endif
#endif
    }

    int file_ = -1;
    bool ended_ = false;
};

}  // namespace hvd::inline v0::detail
