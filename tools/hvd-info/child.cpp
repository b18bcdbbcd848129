// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "child.hpp"

#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd_info {
namespace {

struct pipe_pair {
    int ends[2] = {-1, -1};
    bool is_open = ::pipe2(ends, O_CLOEXEC) == 0;
    int reading() const { return ends[0]; }
    int writing() const { return ends[1]; }
    void close(int& end) {
        if (end >= 0) ::close(end);
        end = -1;
    }
    ~pipe_pair() {
        close(ends[0]);
        close(ends[1]);
    }
};

[[noreturn]] void become_child(const std::function<int()>& f, const pipe_pair& in,
                               const pipe_pair& out, const pipe_pair& err) {
    ::dup2(in.reading(), 0);
    ::dup2(out.writing(), 1);
    ::dup2(err.writing(), 2);
    int code = 1;
    try {
        code = f();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(code);
}

// Moves what is ready. Returns false once both outputs have ended.
bool exchange(pipe_pair& in, pipe_pair& out, pipe_pair& err, std::string& pending, child_end& end,
              int milliseconds) {
    if (pending.empty()) in.close(in.ends[1]);
    pollfd all[] = {
        {out.reading(), POLLIN, 0}, {err.reading(), POLLIN, 0}, {in.writing(), POLLOUT, 0}};
    ::poll(all, 3, milliseconds);
    if (all[2].revents != 0) {
        const ssize_t n =
            ::write(in.writing(), pending.data(), std::min<std::size_t>(pending.size(), 4096));
        pending.erase(0, n > 0 ? std::size_t(n) : pending.size());
    }
    char bytes[4096];
    for (int i = 0; i < 2; ++i) {
        if (all[i].revents == 0) continue;
        const ssize_t n = ::read(all[i].fd, bytes, sizeof bytes);
        if (n > 0) (i == 0 ? end.output : end.errors).append(bytes, std::size_t(n));
        else i == 0 ? out.close(out.ends[0]) : err.close(err.ends[0]);
    }
    return out.reading() >= 0 || err.reading() >= 0;
}

}  // namespace

std::string child_end::reason() const {
    std::string said = errors;
    while (!said.empty() && (said.back() == '\n' || said.back() == '-')) said.pop_back();
    said = said.substr(said.rfind('\n') + 1);
    if (is_late) return "no answer in time";
    const std::string how = signal != 0 ? std::string("ended by ") + strsignal(signal)
                                        : "exit code " + std::to_string(code);
    return said.empty() ? how : how + ", \"" + said + "\"";
}

child_end in_child(const std::function<int()>& f, double seconds, const std::string& input) {
    using clock = std::chrono::steady_clock;
    const auto limit = clock::now() + std::chrono::duration<double>(seconds);
    child_end end;
    pipe_pair in, out, err;
    std::fflush(nullptr);
    const pid_t child = in.is_open && out.is_open && err.is_open ? ::fork() : -1;
    if (child < 0) {
        end.code = 1;
        end.errors = "no process could be started";
        return end;
    }
    if (child == 0) become_child(f, in, out, err);
    in.close(in.ends[0]);
    out.close(out.ends[1]);
    err.close(err.ends[1]);
    ::fcntl(in.writing(), F_SETFL, O_NONBLOCK);
    std::string pending = input;
    const auto at_broken_pipes = std::signal(SIGPIPE, SIG_IGN);  // it may end before it has read
    while (!end.is_late && exchange(in, out, err, pending, end, 50))
        end.is_late = clock::now() > limit;
    std::signal(SIGPIPE, at_broken_pipes);
    if (end.is_late) ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    end.signal = WIFSIGNALED(status) && !end.is_late ? WTERMSIG(status) : 0;
    return end;
}

}  // namespace hvd_info
