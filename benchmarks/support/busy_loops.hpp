// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace bench {

/// Endless loops beside the ranks, as another job on the machine: processes that may run on every
/// core. They end with this object, and also if the thread that made it ends in another way.
class busy_loops {
public:
    explicit busy_loops(int number) {
        const pid_t parent = getpid();
        for (int i = 0; i < number; ++i) {
            const pid_t child = fork();
            if (child == 0) loop(parent);
            if (child < 0) throw std::runtime_error("bench: fork failed");
            children_.push_back(child);
        }
    }
    busy_loops(const busy_loops&) = delete;
    busy_loops& operator=(const busy_loops&) = delete;
    ~busy_loops() {
        for (const pid_t child : children_) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
        }
    }

private:
    [[noreturn]] static void loop(pid_t parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);  // it has ended before
        cpu_set_t all;
        CPU_ZERO(&all);
        for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
        sched_setaffinity(0, sizeof all, &all);
        for (volatile bool more = true; more;) {
        }
        _exit(0);
    }

    std::vector<pid_t> children_;
};

}  // namespace bench
