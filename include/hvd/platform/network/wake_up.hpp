// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/lean/atomic.hpp"
#include "../linux.hpp"
#include "socket.hpp"

#if HVD_LINUX
#include <sys/eventfd.h>
#endif

namespace hvd::inline v0::detail {

// Wakes a thread that sleeps in poll(). While a wake-up is pending, a further one costs only an
// atomic operation.
class wake_up {
public:
    explicit wake_up(int rank) {
#if HVD_LINUX
        read_end_ = descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!read_end_) throw_system(rank, "eventfd", errno);
#else
        int ends[2];
        if (::pipe(ends) != 0) throw_system(rank, "pipe", errno);
        read_end_ = descriptor(ends[0]);
        write_end_ = descriptor(ends[1]);
        for (const int end : ends) {
            fcntl(end, F_SETFD, FD_CLOEXEC);
            fcntl(end, F_SETFL, O_NONBLOCK);
        }
#endif
    }

    int number() const { return read_end_.number(); }

    void wake() noexcept {
        if (pending_.exchange(true)) return;
        const std::uint64_t one = 1;
        const int end = write_end_ ? write_end_.number() : read_end_.number();
        [[maybe_unused]] const ssize_t n = ::write(end, &one, sizeof one);
    }

    // The thread that was woken calls it, before it looks what there is to do.
    void take() noexcept {
        std::uint64_t all = 0;
        [[maybe_unused]] const ssize_t n = ::read(read_end_.number(), &all, sizeof all);
        pending_.exchange(false);
    }

private:
    descriptor read_end_, write_end_;
    atomic<bool> pending_{false};
};

}  // namespace hvd::inline v0::detail
