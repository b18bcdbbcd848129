// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "guard.hpp"

#include <cerrno>
#include <climits>
#include <csignal>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "failure.hpp"
#include "process.hpp"

namespace hvdrun {
namespace {

// A group that comes or goes, or the path of a file. It is written at once, as a whole.
struct notice {
    char what = 0;
    pid_t group = 0;
    char path[480] = "";
};
static_assert(sizeof(notice) <= PIPE_BUF);

bool is_there(const std::set<pid_t>& groups) {
    for (const pid_t group : groups)
        if (::kill(-group, 0) == 0) return true;
    return false;
}

void end_groups(const std::set<pid_t>& groups, double patience) {
    for (const pid_t group : groups) ::kill(-group, SIGTERM);
    for (int i = 0; i < int(patience * 50) && is_there(groups); ++i) {
        const timespec short_time{0, 20'000'000};
        ::nanosleep(&short_time, nullptr);
    }
    for (const pid_t group : groups) ::kill(-group, SIGKILL);
}

[[noreturn]] void watch_over(int line, double patience) {
    std::set<pid_t> groups;
    std::string file;
    bool ended = false;
    for (notice told; ::read(line, &told, sizeof told) == ssize_t(sizeof told);) {
        if (told.what == '+') groups.insert(told.group);
        else if (told.what == '-') groups.erase(told.group);
        else if (told.what == 'f') file = told.path;
        else ended = true;
    }
    if (ended) _exit(0);
    if (!file.empty()) ::unlink(file.c_str());
    end_groups(groups, patience);
    _exit(0);
}

// The guard keeps nobody's pipes open, and no signal of a terminal ends it.
void be_alone(int line) {
    setpgid(0, 0);
    ::signal(SIGPIPE, SIG_IGN);
    for (const int signal : ending_signals())
        ::signal(signal, is_of_fault(signal) ? SIG_DFL : SIG_IGN);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; ++i) dup2(nothing, i);
    for (int i = 3; i < 256; ++i)
        if (i != line) ::close(i);
}

}  // namespace

guard::guard(double patience) {
    pipe_ends ends = make_pipe();
    id_ = ::fork();
    if (id_ < 0) throw failure(1, "no process can be started");
    if (id_ == 0) {
        ends.write.close();
        be_alone(ends.read.number());
        watch_over(ends.read.number(), patience);
    }
    line_ = std::move(ends.write);
}

guard::~guard() {
    tell('e', 0);
    line_.close();
    reap(id_);
}

void guard::watch_file(const std::string& path) {
    notice told{'f', 0, ""};
    if (path.size() >= sizeof told.path) return;
    path.copy(told.path, path.size());
    write_all(line_.number(), reinterpret_cast<const char*>(&told), sizeof told);
}

void guard::tell(char what, pid_t group) {
    const notice told{what, group, ""};
    write_all(line_.number(), reinterpret_cast<const char*>(&told), sizeof told);
}

}  // namespace hvdrun
