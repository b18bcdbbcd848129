// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <csignal>

#include <hvd/platform/process.hpp>

namespace process_tests {

using namespace hvd::detail;

namespace {

pid_t child_that_waits() {
    const pid_t child = fork();
    if (child != 0) return child;
    for (;;) pause();
}

// Waits until the child is a zombie, and leaves it one.
void await_end(pid_t child) {
    siginfo_t info;
    CHECK(waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT) == 0);
}

}  // namespace

TEST_CASE("a process has ended from the moment on that it is killed, also if nobody reaps it") {
    const pid_t child = child_that_waits();
    const std::uint64_t started = process_status::of(child).started;
    CHECK(started > 0);
    process_watch kept;
    CHECK(!kept.has_ended(child, started));
    CHECK(!process_watch::looks_ended(child, started));
    kill(child, SIGSTOP);
    CHECK(!kept.has_ended(child, started));
    CHECK(!process_watch::looks_ended(child, started));
    kill(child, SIGKILL);
    await_end(child);
    CHECK(kill(child, 0) == 0);  // the number is still there
    process_watch late;
    CHECK(kept.has_ended(child, started));
    CHECK(late.has_ended(child, started));
    CHECK(process_watch::looks_ended(child, started));
    CHECK(waitpid(child, nullptr, 0) == child);
    process_watch too_late;
    CHECK(kept.has_ended(child, started));
    CHECK(too_late.has_ended(child, started));
    CHECK(process_watch::looks_ended(child, started));
}

TEST_CASE("another process that has got the number is not taken for the one that ended") {
    const pid_t child = child_that_waits();
    const std::uint64_t started = process_status::of(child).started;
    process_watch watch, unknown;
    CHECK(watch.has_ended(child, started - 1));
    CHECK(process_watch::looks_ended(child, started - 1));
    CHECK(!unknown.has_ended(child, 0));
    CHECK(!process_watch::looks_ended(child, 0));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

TEST_CASE("a watch closes its file") {
    const pid_t child = child_that_waits();
    const std::uint64_t started = process_status::of(child).started;
    const int next = dup(0);
    close(next);
    process_watch watch;
    for (int i = 0; i < 3; ++i) {
        CHECK(!watch.has_ended(child, started));
        watch.forget();
        const int again = dup(0);
        CHECK(again == next);
        close(again);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
}

}  // namespace process_tests
