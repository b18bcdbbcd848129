// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "board.hpp"
#include "plan.hpp"

namespace faults {

// The number of allocations until one fails, while a call of hvd is under way. Threads are ranks
// that have numbers of their own. In a process the progress thread's allocations count too.
#if defined(HVD_TEST_BACKEND_MPI) || defined(HVD_TEST_BACKEND_TCP)
inline std::atomic<long> allocations_left{0};
inline std::atomic<bool> in_call{false};
#else
inline thread_local std::atomic<long> allocations_left{0};
inline thread_local std::atomic<bool> in_call{false};
#endif
inline thread_local column* own_column = nullptr;
inline std::atomic<column*> column_of_process{nullptr};

inline bool memory_is_refused() {
    if (!in_call || allocations_left == 0 || --allocations_left > 0) return false;
    column* const mine = own_column != nullptr ? own_column : column_of_process.load();
    mine->struck = now();
    return true;
}

// Makes the faults of one rank strike. It is made and used by the thread that is the rank.
class striker {
public:
    striker(const plan& all, const board& shown, int rank)
        : mine_(shown.of(rank)), on_threads_(all.place == place::threads) {
        for (const fault& f : all.faults)
            if (f.rank == rank) fault_ = f;
        if (fault_ && fault_->what == kind::cut) {
            const call what = all.step_of(fault_->call).what;
            waits_for_cut_ = what == call::child || what == call::grow;
        }
        own_column = &mine_;
        if (!on_threads_) column_of_process = &mine_;
        current() = this;
        if (!fault_ || !is_signal()) return;
        struct sigaction action{};
        action.sa_handler = [](int) {
            const int before = errno;
            if (current() != nullptr) current()->strike();
            errno = before;
        };
        action.sa_flags = SA_RESTART;
        sigaction(SIGUSR1, &action, nullptr);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGUSR1;
        event._sigev_un._tid = pid_t(syscall(SYS_gettid));
        if (timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) std::abort();
        has_timer_ = true;
    }

    striker(const striker&) = delete;
    striker& operator=(const striker&) = delete;
    ~striker() {
        disarm();
        current() = nullptr;
    }

    // No fault strikes any more.
    void disarm() {
        if (has_timer_) timer_delete(timer_);
        has_timer_ = false;
        allocations_left = 0;
        limit_descriptors(false);
        lift_limits();
        fault_.reset();
    }

    void enter(int number) {
        number_ = number;
        limit_descriptors(false);
        lift_limits();
        if (!fault_ || fault_->call != number) return;
        if (fault_->what == kind::without_memory) allocations_left = fault_->allocation;
        if (fault_->what == kind::without_descriptors) {
            mine_.struck = now();
            limit_descriptors(true);
        }
        // The messages of hvd go to a file, too, which is small.
        if (fault_->what == kind::without_file_size) limit(RLIMIT_FSIZE, 1 << 20);
        if (fault_->what == kind::without_address_space) limit(RLIMIT_AS, mapped_bytes());
        if (fault_->what == kind::cut) {
            mine_.struck = now();
            mine_.cut = 1;
            while (waits_for_cut_ && mine_.cut == 1) rest(100'000);
        }
        if (!has_timer_) return;
        itimerspec when{};
        when.it_value = {fault_->after / 1'000'000'000, fault_->after % 1'000'000'000};
        timer_settime(timer_, 0, &when, nullptr);
    }

    // The test itself maps memory and writes files.
    void lift_limits() {
        if (limited_) setrlimit(*limited_, &before_);
        limited_.reset();
    }

    // Called at each place where a rank may be delayed.
    void pass(point where) {
        if (!fault_ || fault_->what != kind::delayed || fault_->call != number_ ||
            fault_->where != where || mine_.struck != 0)
            return;
        mine_.struck = now();
        rest(fault_->lasts);
    }

    // The way in which this rank goes away in this call, if it does.
    std::optional<kind> departure() {
        if (!fault_ || fault_->call != number_) return {};
        const kind what = fault_->what;
        if (what != kind::leaves && what != kind::throws && what != kind::exits) return {};
        mine_.struck = now();
        return what;
    }

private:
    static striker*& current() {
        static thread_local striker* own = nullptr;
        return own;
    }

    // None that is not open now.
    void limit_descriptors(bool wanted) {
        if (std::exchange(is_limited_, wanted) == wanted) return;
        if (!wanted) {
            setrlimit(RLIMIT_NOFILE, &descriptors_);
            for (const int filler : fillers_) close(filler);
            return fillers_.clear();
        }
        getrlimit(RLIMIT_NOFILE, &descriptors_);
        int end = 0;
        for (int n = 0; n < 1000; ++n)
            if (fcntl(n, F_GETFD) >= 0) end = n + 1;
        while (int(fillers_.empty() ? -1 : fillers_.back()) < end)  // no gaps
            fillers_.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
        const rlimit few{rlim_t(fillers_.back()) + 1, descriptors_.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
    }

    void limit(__rlimit_resource what, rlim_t most) {
        mine_.struck = now();
        getrlimit(what, &before_);
        const rlimit few{most, before_.rlim_max};
        setrlimit(what, &few);
        limited_ = what;
    }
    static rlim_t mapped_bytes() {
        char text[200] = {};
        const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        if (read(file, text, sizeof text - 1) <= 0) std::abort();
        close(file);
        return std::strtoull(text, nullptr, 10) * rlim_t(sysconf(_SC_PAGESIZE));
    }

    bool is_signal() const { return fault_->what == kind::killed || fault_->what == kind::stopped; }

    // In a signal handler, at any instruction of the rank.
    void strike() {
        if (!fault_ || mine_.struck != 0) return;
        const std::int64_t time = now();
        mine_.struck = time;
        if (fault_->what == kind::killed) kill(getpid(), SIGKILL);
        if (on_threads_) {
            timespec left{fault_->lasts / 1'000'000'000, fault_->lasts % 1'000'000'000};
            while (nanosleep(&left, &left) != 0 && errno == EINTR) {
            }
        } else {
            mine_.wakes = time + fault_->lasts;
            kill(getpid(), SIGSTOP);
        }
        mine_.resumed = now();
    }

    column& mine_;
    const bool on_threads_;
    std::optional<fault> fault_;
    // MPI waits for ever where a cable is pulled while it makes a communicator
    // (docs/reference/errors.md).
    bool waits_for_cut_ = false;
    int number_ = -1;
    timer_t timer_{};
    bool has_timer_ = false;
    bool is_limited_ = false;
    std::vector<int> fillers_;
    rlimit descriptors_{}, before_{};
    std::optional<__rlimit_resource> limited_;
};

// The observer of a communicator, which passes on where calls begin and end.
struct delaying_observer {
    striker* own = nullptr;
    template <class Event>
    void on_begin(const Event&) {
        if (own != nullptr) own->pass(point::on_begin);
    }
    template <class Event>
    void on_end(const Event&, bool) {
        if (own != nullptr) own->pass(point::on_end);
    }
};

}  // namespace faults

// The compiler takes an inlined one for a mistake: new and free do not belong together.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    if (faults::memory_is_refused()) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
// AddressSanitizer has its own, whose memory the deletes below may not free.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return faults::memory_is_refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
