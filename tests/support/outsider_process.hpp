// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <doctest/doctest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include <hvd/platform/clock.hpp>
#include <hvd/platform/network/socket.hpp>

namespace hvd_test {

// Another process, which makes connections to a port of this host and says nothing on them. Start
// it before there are threads. Nobody may listen at first.
class outsider_process {
public:
    outsider_process(std::uint16_t port, int connections) {
        int pipe[2];
        REQUIRE(::pipe(pipe) == 0);
        const pid_t parent = ::getpid();
        id_ = ::fork();
        if (id_ == 0) connect(port, connections, pipe[1], parent);
        ::close(pipe[1]);
        told_ = hvd::detail::descriptor(pipe[0]);
    }
    outsider_process(const outsider_process&) = delete;
    ~outsider_process() {
        ::kill(id_, SIGKILL);
        ::waitpid(id_, nullptr, 0);
    }

    // Waits until all are made.
    void await() {
        char byte = 0;
        CHECK(::read(told_.number(), &byte, 1) == 1);
    }

private:
    [[noreturn]] static void connect(std::uint16_t port, int connections, int told, pid_t parent) {
        using namespace hvd::detail;
        std::vector<descriptor> all;
        while (int(all.size()) < connections && ::getppid() == parent) {
            descriptor made = begin_connect(host_address::loopback(), port);
            pollfd p{made.number(), POLLOUT, 0};
            if (made && ::poll(&p, 1, 5000) == 1 && error_of(made) == 0)
                all.push_back(std::move(made));
            else sleep_for(tuning::millisecond);
        }
        if (::write(told, "c", 1) != 1) ::_exit(1);
        while (::getppid() == parent) sleep_for(100 * tuning::millisecond);
        ::_exit(0);
    }

    pid_t id_;
    hvd::detail::descriptor told_;
};

// This process may have so many descriptors for a while.
class few_descriptors {
public:
    explicit few_descriptors(rlim_t most) {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit few{most, before_.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &few);
    }
    few_descriptors(const few_descriptors&) = delete;
    ~few_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

private:
    rlimit before_{};
};

}  // namespace hvd_test
