// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "worker_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace hvd_compute {
namespace {

constexpr int ending_signals[] = {SIGTERM, SIGINT, SIGHUP};
volatile std::sig_atomic_t asked_to_end = 0;

void on_signal(int) { asked_to_end = 1; }

void take_a_rest() {
    const timespec moment{0, 20'000'000};
    ::nanosleep(&moment, nullptr);
}

// Runs in the child. The pipe tells the parent the error.
[[noreturn]] void become(const std::vector<char*>& words, pid_t parent, int error_pipe) {
    for (const int signal : ending_signals) std::signal(signal, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
#if defined(__linux__)
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped process takes no other one
    if (::getppid() != parent) ::_exit(1);
#else
    (void)parent;
#endif
    ::execvp(words[0], words.data());
    const int code = errno;
    [[maybe_unused]] const ssize_t n = ::write(error_pipe, &code, sizeof code);
    ::_exit(127);
}

}  // namespace

worker_process::worker_process(const options& o) {
    ::setenv("HVD_DATA_SERVICE", o.config.c_str(), 1);
    ::setenv("HVD_DATA_DISPATCHER", std::to_string(o.dispatcher()).c_str(), 1);
    std::vector<char*> words;
    for (const std::string& word : o.program) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe for the worker");
    const pid_t parent = ::getpid();
    id_ = ::fork();
    if (id_ == 0) become(words, parent, ends[1]);
    ::close(ends[1]);
    int code = 0;
    const bool failed = id_ < 0 || ::read(ends[0], &code, sizeof code) == sizeof code;
    ::close(ends[0]);
    if (!failed) return;
    if (id_ > 0) ::waitpid(id_, nullptr, 0);
    throw std::runtime_error(o.program[0] +
                             " can't be started: " + std::strerror(id_ < 0 ? errno : code));
}

std::optional<int> worker_process::exit_code() {
    int status = 0;
    if (!code_ && ::waitpid(id_, &status, WNOHANG) == id_)
        code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return code_;
}

int worker_process::end() {
    constexpr int patience = 5 * 50;  // rests: five seconds
    if (!exit_code()) ::kill(id_, SIGTERM);
    for (int rests = 0; !exit_code(); ++rests) {
        if (rests == patience) ::kill(id_, SIGKILL);
        take_a_rest();
    }
    return *code_;
}

void note_signals() {
    struct sigaction action{};
    action.sa_handler = on_signal;
    for (const int signal : ending_signals) ::sigaction(signal, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGCHLD, SIG_DFL);  // where it was ignored, no end of a worker is told
    // The program that starts this one may have blocked some, and workers would inherit that.
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool is_asked_to_end() { return asked_to_end != 0; }

}  // namespace hvd_compute
