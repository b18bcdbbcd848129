// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "process.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "failure.hpp"
#include "numbers.hpp"

namespace hvdrun {
namespace {

failure cannot_start(const std::string& program, int error) {
    return {error == ENOENT ? 127 : 126, program + ": it cannot be started: " + strerror(error)};
}

// The codes are those of shells.
failure no_program(const std::string& name) {
    struct stat about{};
    if (name.find('/') == std::string::npos || ::stat(name.c_str(), &about) != 0)
        return {127, name + ": there is no such program"};
    return cannot_start(name, S_ISDIR(about.st_mode) ? EISDIR : EACCES);
}

rlimit files_at_start{RLIM_INFINITY, RLIM_INFINITY};

// Everything that the new process needs, made before it is there: in the child of a fork only
// simple system calls are safe.
struct launch {
    launch(const words& program, const environment& variables) {
        for (const std::string& word : program)
            arguments.push_back(const_cast<char*>(word.c_str()));
        arguments.push_back(nullptr);
        for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
        for (std::string& text : texts) all.push_back(text.data());
        all.push_back(nullptr);
        file = find_program(program[0]);
        if (file.empty()) throw no_program(program[0]);
    }

    std::vector<char*> arguments, all;
    std::vector<std::string> texts;
    std::string file;
};

bool ignored_at_start[NSIG] = {};

void unblock_signals() {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become(launch& what, pid_t parent, int death_signal, int in, int out, int err,
                         int told) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, death_signal);
    if (getppid() != parent) _exit(1);  // the parent ended before
    reset_signals();
    if (files_at_start.rlim_cur != RLIM_INFINITY) setrlimit(RLIMIT_NOFILE, &files_at_start);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    execve(what.file.c_str(), what.arguments.data(), what.all.data());
    const int code = errno;
    [[maybe_unused]] const ssize_t n = ::write(told, &code, sizeof code);
    _exit(127);
}

file_descriptor nothing() { return file_descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

pipe_ends make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw failure(1, std::string("no pipe can be made: ") + strerror(errno));
    return {file_descriptor(ends[0]), file_descriptor(ends[1])};
}

bool write_all(int file, const char* data, std::size_t bytes) {
    while (bytes > 0) {
        const ssize_t n = ::write(file, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            pollfd ready{file, POLLOUT, 0};
            ::poll(&ready, 1, -1);
            continue;
        }
        if (n <= 0) return false;
        data += n;
        bytes -= std::size_t(n);
    }
    return true;
}

void never_block(const file_descriptor& end) {
    fcntl(end.number(), F_SETFL, fcntl(end.number(), F_GETFL) | O_NONBLOCK);
}

process start(const words& program, const environment& variables, bool with_input,
              int if_hvdrun_dies) {
    launch what(program, variables);
    pipe_ends in, out = make_pipe(), err = make_pipe(), told = make_pipe();
    if (with_input) in = make_pipe();
    else in.read = nothing();
    const pid_t parent = getpid();
    process made;
    made.id = ::fork();
    if (made.id < 0) throw failure(1, std::string("no process can be started: ") + strerror(errno));
    if (made.id == 0)
        become(what, parent, if_hvdrun_dies, in.read.number(), out.write.number(),
               err.write.number(), told.write.number());
    setpgid(made.id, made.id);  // whoever comes first
    told.write.close();
    int code = 0;
    ssize_t n = 0;
    do n = ::read(told.read.number(), &code, sizeof code);
    while (n < 0 && errno == EINTR);
    if (n == ssize_t(sizeof code)) {
        reap(made.id);
        throw cannot_start(program[0], code);
    }
    if (with_input) never_block(made.input = std::move(in.write));
    never_block(made.output = std::move(out.read));
    never_block(made.errors = std::move(err.read));
    return made;
}

std::string ending::description() const {
    if (signal == 0)
        return (is_cut_off && code == 0 ? "its connection's exit code " : "exit code ") +
               std::to_string(code);
    const char* name = sigabbrev_np(signal);
    return "signal " + std::to_string(signal) +
           (name == nullptr ? "" : std::string(" (SIG") + name + ")");
}

bool has_ended(pid_t id, ending& how) {
    siginfo_t info{};
    if (::waitid(P_PID, id_t(id), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    if (info.si_code == CLD_EXITED) how.code = info.si_status;
    else how.signal = info.si_status;
    return true;
}

void note_ignored_signals() {
    for (int signal = 1; signal < NSIG; ++signal) {
        struct sigaction now{};
        ignored_at_start[signal] =
            ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    }
    ::signal(SIGCHLD, SIG_DFL);  // without it no end of a process is told
    ignored_at_start[SIGCHLD] = false;
    unblock_signals();  // a program that starts hvdrun may have blocked some for itself
}

void reset_signals() {
    for (int signal = 1; signal < NSIG; ++signal)
        ::signal(signal, was_ignored(signal) ? SIG_IGN : SIG_DFL);
    unblock_signals();
}

bool was_ignored(int signal) { return ignored_at_start[signal]; }

std::vector<int> ending_signals() {
    std::vector<int> result;
    for (const int signal : {SIGHUP,  SIGINT,  SIGQUIT,   SIGILL,  SIGTRAP, SIGABRT, SIGBUS,
                             SIGFPE,  SIGUSR1, SIGSEGV,   SIGUSR2, SIGALRM, SIGTERM, SIGSTKFLT,
                             SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGSYS})
        if (!was_ignored(signal)) result.push_back(signal);
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal)
        if (!was_ignored(signal)) result.push_back(signal);
    return result;
}

bool is_of_fault(int signal) {
    for (const int one : {SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS})
        if (signal == one) return true;
    return false;
}

bool inherits_processes() {
    int is_reaper = 0;
    return getpid() == 1 || (prctl(PR_GET_CHILD_SUBREAPER, &is_reaper) == 0 && is_reaper != 0);
}

void reap_inherited(const std::set<pid_t>& own) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        pid_t id = 0;
        if (!read_decimal(entry.path().filename().string(), id) || own.count(id) > 0) continue;
        ::waitpid(id, nullptr, WNOHANG);  // nothing happens if it is no child
    }
}

void reap(pid_t id) {
    while (::waitpid(id, nullptr, 0) < 0 && errno == EINTR) {
    }
}

void allow_many_files() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    files_at_start = limit;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace hvdrun
