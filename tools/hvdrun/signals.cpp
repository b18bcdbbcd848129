// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "signals.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <deque>

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.hpp"
#include "process.hpp"

namespace hvdrun {
namespace {

// The handler may run at any moment, so that an entry is atomic and stays where it is.
struct entry {
    std::atomic<pid_t> group{0};
    std::atomic<int> input{-1};
    std::atomic<entry*> next{nullptr};
};

std::deque<entry> entries;
std::atomic<entry*> first{nullptr};
std::atomic<int> asked{0}, wake_end{-1};

constexpr std::size_t most_ends = 4096;  // the last ones
std::atomic<pid_t> ends[most_ends];
std::atomic<std::size_t> number_of_ends{0};

bool is_there(const entry& one) { return ::waitpid(one.group, nullptr, WNOHANG) == 0; }

// The agents of other hosts get a moment to end their ranks and themselves.
void kill_all() {
    for (entry* e = first; e != nullptr; e = e->next) {
        if (e->group == 0 || e->input < 0) continue;
        [[maybe_unused]] const ssize_t n =
            ::write(e->input, kill_all_lines.data(), kill_all_lines.size());
        ::close(e->input);
    }
    const timespec moment{0, 20'000'000};
    for (entry* e = first; e != nullptr; e = e->next)
        for (int i = 0; i < 50 && e->group != 0 && e->input >= 0 && is_there(*e); ++i)
            ::nanosleep(&moment, nullptr);
    for (entry* e = first; e != nullptr; e = e->next)
        if (const pid_t group = e->group; group != 0) ::kill(-group, SIGKILL);
}

std::atomic<bool> is_passed_on[NSIG], has_come[NSIG];

// True for a fault of hvdrun itself, and not for a signal that somebody has sent.
bool is_own_fault(int signal, const siginfo_t* about) {
    return is_of_fault(signal) && (about->si_code > 0 || about->si_pid == ::getpid());
}

void end_by(int signal) {
    ::signal(signal, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
    ::raise(signal);
}

void on_signal(int signal, siginfo_t* about, void*) {
    const int code = errno;
    if (is_own_fault(signal, about)) return end_by(signal);
    if (signal == SIGCHLD) {
        ends[number_of_ends++ % most_ends] = about->si_pid;
    } else if (is_passed_on[signal]) {
        has_come[signal] = true;
    } else if (asked.exchange(signal) != 0) {
        kill_all();
        ::_exit(128 + signal);
    }
    const char byte = 's';
    [[maybe_unused]] const ssize_t n = ::write(wake_end, &byte, 1);
    errno = code;
}

void end_at_once(int signal) { ::_exit(128 + signal); }

}  // namespace

signal_watch::signal_watch(const std::set<int>& passed_on) : ends_(make_pipe()) {
    never_block(ends_.read);
    never_block(ends_.write);
    wake_end = ends_.write.number();
    for (const int signal : passed_on) is_passed_on[signal] = true;
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NOCLDSTOP;
    sigfillset(&action.sa_mask);
    ::sigaction(SIGCHLD, &action, nullptr);
    for (const int signal : ending_signals()) ::sigaction(signal, &action, nullptr);
    for (const int signal : passed_on)
        if (!was_ignored(signal)) ::sigaction(signal, &action, nullptr);
}

signal_watch::~signal_watch() {
    ::signal(SIGCHLD, SIG_DFL);
    std::set<int> passed_on;
    for (int signal = 1; signal < NSIG; ++signal)
        if (is_passed_on[signal]) passed_on.insert(signal);
    ignore_without_ranks(passed_on);
    end_at_signals();
}

void end_at_signals() {
    for (const int signal : ending_signals())
        if (!is_passed_on[signal])
            ::signal(signal, ::getpid() == 1 && !is_of_fault(signal) ? end_at_once : SIG_DFL);
}

void ignore_without_ranks(const std::set<int>& passed_on) {
    for (const int signal : passed_on) ::signal(signal, SIG_IGN);
}

std::vector<int> signal_watch::take_passed_on() {
    std::vector<int> result;
    for (int signal = 1; signal < NSIG; ++signal)
        if (has_come[signal].exchange(false)) result.push_back(signal);
    return result;
}

void signal_watch::take() const {
    char bytes[256];
    while (::read(ends_.read.number(), bytes, sizeof bytes) > 0) {
    }
}

int signal_watch::asked_to_end() { return asked; }

std::size_t signal_watch::order_of_end(pid_t id) {
    const std::size_t all = number_of_ends, first = all > most_ends ? all - most_ends : 0;
    for (std::size_t i = all; i-- > first;)
        if (ends[i % most_ends] == id) return i;
    return all;
}

void signal_watch::kill_at_second(pid_t group, int input) {
    entry& e = entries.emplace_back();
    e.input = input;
    e.group = group;
    e.next = first.load();
    first = &e;
}

void signal_watch::forget(pid_t group) {
    for (entry& e : entries)
        if (e.group == group) e.group = 0;
}

}  // namespace hvdrun
