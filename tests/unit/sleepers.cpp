// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <hvd/threads.hpp>

namespace sleepers_tests {

// Ranks that sleep until a peer wakes them, and the stages of waiting before that.

using namespace hvd::detail;

namespace {

// Sleeping ranks would notice a missed bell only after this time. The watchdog has more patience.
constexpr std::int64_t missed = 20 * tuning::second;

// The memory of the ranks of a node, which threads and forked processes share.
class node {
public:
    explicit node(int ranks)
        : bytes_(shm_region::bytes(ranks, window)),
          memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
          region_(memory_, ranks, window, segments::of_this_process()) {
        if (memory_ == MAP_FAILED) throw std::bad_alloc();
        region_.construct();
    }
    ~node() { munmap(memory_, bytes_); }

    const shm_region& region() const { return region_; }

private:
    static constexpr std::size_t window = 4096;
    std::size_t bytes_;
    void* memory_;
    shm_region region_;
};

// Sleeps until a rank rings, unless that for which it would ring is there.
template <class F>
void sleep_until(const shm_region& region, F over) {
    region.all_sleepers().sleep(missed, over);
}

// Sleeps until a rank has come to a step. Returns the number of times that nobody woke it.
int await(const shm_region& region, int rank, std::uint64_t step) {
    int missed_bells = 0;
    const auto there = [&] { return region.slot(rank).steps[0].step.load() >= step; };
    while (!there()) {
        const time_point begin = now();
        sleep_until(region, there);
        missed_bells += now() - begin >= missed;
    }
    return missed_bells;
}

void come(const shm_region& region, int rank, std::uint64_t step) {
    region.slot(rank).steps[0].step.store(step);
    if (region.all_sleepers().are_there()) region.all_sleepers().ring();
}

// Spends about the time in which a sleeping thread wakes up. Now and then it gives the processor
// away.
void delay(std::mt19937& random) {
    std::atomic<unsigned> spent{0};
    for (const unsigned all = random() % 4096; spent < all;) ++spent;
    if (random() % 64 == 0) sched_yield();
}

// Ranks come to the steps in turns. All others wait for the one whose turn it is, and some fall
// asleep at the moment when it comes. A missed bell stops all of them.
int take_turns(const shm_region& region, int rank, unsigned seed) {
    constexpr std::uint64_t steps = 10000;
    std::mt19937 random(seed + unsigned(rank));
    int missed_bells = 0;
    for (std::uint64_t step = 1; step <= steps; ++step) {
        delay(random);
        const int whose = int(step % std::uint64_t(region.ranks()));
        if (whose == rank) {
            come(region, rank, step);
        } else {
            missed_bells += await(region, whose, step);
        }
    }
    return missed_bells;
}

}  // namespace

TEST_CASE("a bell that rings right after the last look is not missed, nor what came before it") {
    const node n(2);
    const time_point begin = now();
    int looks = 0;
    sleep_until(n.region(), [&] {
        ++looks;
        come(n.region(), 1, 1);
        return false;  // as if it had come a moment later
    });
    sleep_until(n.region(), [&] {
        ++looks;
        return true;
    });
    CHECK(looks == 2);
    CHECK(now() - begin < missed);
}

TEST_CASE("threads that sleep are woken, whenever the others come") {
    for (const int ranks : {2, 3, 4}) {
        const node n(ranks);
        const unsigned seed = std::random_device{}();
        std::atomic<int> missed_bells{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] { missed_bells += take_turns(n.region(), rank, seed); });
        for (std::thread& thread : threads) thread.join();
        CHECK(missed_bells == 0);
    }
}

TEST_CASE("the last rank to come wakes all that sleep, also where several come at once") {
    for (const int ranks : {2, 3, 4}) {
        const node n(ranks);
        const shm_region& region = n.region();
        const unsigned seed = std::random_device{}();
        std::atomic<int> missed_bells{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                std::mt19937 random(seed + unsigned(rank));
                for (std::uint64_t step = 1; step <= 5000; ++step) {
                    const auto all_came = [&] {
                        for (int p = 0; p < ranks; ++p)
                            if (region.slot(p).steps[0].step.load() < step) return false;
                        return true;
                    };
                    delay(random);
                    region.slot(rank).steps[0].step.store(step);
                    if (region.all_sleepers().are_there() && all_came())
                        region.all_sleepers().ring();
                    while (!all_came()) {
                        const time_point begin = now();
                        sleep_until(region, all_came);
                        missed_bells += now() - begin >= missed;
                    }
                }
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(missed_bells == 0);
    }
}

TEST_CASE("processes that sleep are woken, whenever the others come") {
    for (const int ranks : {2, 3, 4}) {
        const node n(ranks);
        const unsigned seed = std::random_device{}();
        std::vector<pid_t> children;
        for (int rank = 1; rank < ranks; ++rank) {
            children.push_back(fork());
            if (children.back() == 0) _exit(take_turns(n.region(), rank, seed));
        }
        CHECK(take_turns(n.region(), 0, seed) == 0);
        for (const pid_t child : children) {
            int status = -1;
            waitpid(child, &status, 0);
            CHECK(status == 0);
        }
    }
}

TEST_CASE("a rank that leaves wakes those that sleep until it comes, and they are told") {
    for (const int ranks : {2, 3, 4}) {
        const node n(ranks);
        std::atomic<int> told{0}, asleep{0};
        std::vector<std::thread> threads;
        for (int rank = 1; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                shm_transport transport(n.region(), rank);
                transport.exchange_headers({});
                const time_point begin = now();
                ++asleep;
                while (transport.sleep(missed) != sleep_end::peer_left) {
                }
                told += now() - begin < missed && transport.hopeless();
            });
        while (asleep < ranks - 1) std::this_thread::yield();
        sleep_for(5 * tuning::millisecond);
        n.region().leave(0, "tired");
        for (std::thread& thread : threads) thread.join();
        CHECK(told == ranks - 1);
    }
}

TEST_CASE("a rank that is killed while it sleeps keeps nobody from going on") {
    const node n(3);
    const pid_t child = fork();
    if (child == 0) {
        sleep_until(n.region(), [] { return false; });
        _exit(1);
    }
    sleep_for(20 * tuning::millisecond);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    int missed_bells = 0;
    std::thread other([&] {
        for (unsigned step = 1; step <= 1000; ++step) {
            missed_bells += await(n.region(), 0, step);
            come(n.region(), 1, step);
        }
    });
    for (unsigned step = 1; step <= 1000; ++step) {
        come(n.region(), 0, step);
        CHECK(await(n.region(), 1, step) == 0);
    }
    other.join();
    CHECK(missed_bells == 0);
}

TEST_CASE("a sleep ends in its time though nobody comes") {
    const node n(2);
    shm_transport transport(n.region(), 0);
    transport.exchange_headers({});
    CHECK(transport.sleep(tuning::millisecond) == sleep_end::over);
    CHECK(!transport.ready());
}

TEST_CASE(
    "a thread with a processor spins, then yields, then sleeps; without one it does not spin") {
    for (const bool may_spin : {true, false}) {
        backoff wait(may_spin);
        int sleeps = 0;
        const time_point begin = now();
        time_point first = 0;
        while (sleeps < 3)
            wait.pause([&](std::int64_t most) {
                CHECK(most == tuning::check_interval);
                if (sleeps++ == 0) first = now();
                return sleep_end::over;
            });
        // A process of somebody else may take the processor in the first yield.
        CHECK(first - begin > (may_spin ? tuning::spin_time : 0));
    }
}

TEST_CASE("processes that come again and again are expected to stay longer, and one is not") {
    other_processes others;
    CHECK(others.until == 0);
    time_point time = tuning::second;
    std::int64_t stay = tuning::others_stay;
    for (int i = 0; i < 10; ++i) {
        others.came(time);
        CHECK(others.until == time + stay);
        time += stay + 1;
        stay = std::min(2 * stay, tuning::others_stay_longest);
    }
    CHECK(stay == tuning::others_stay_longest);
    time += 3 * stay;
    others.came(time);
    CHECK(others.until == time + tuning::others_stay);
}

TEST_CASE("while others want the processor, a waiting thread sleeps instead of yielding") {
    other_processes others;
    others.came(now() + missed);
    backoff wait(false, others);
    int sleeps = 0;
    for (int i = 0; i < 10; ++i)
        wait.pause([&](std::int64_t) {
            ++sleeps;
            return sleep_end::over;
        });
    CHECK(sleeps == 10);
}

TEST_CASE("it is time for the checks when a peer has left, and about once in a millisecond") {
    other_processes others;
    others.came(now() + missed);
    backoff left(false, others);
    CHECK(left.pause([](std::int64_t) { return sleep_end::peer_left; }));
    backoff wait(false, others);
    const auto sleep = [](std::int64_t nanoseconds) {
        sleep_for(nanoseconds);
        return sleep_end::over;
    };
    int checks = 0;
    for (int i = 0; i < 10; ++i) checks += wait.pause(sleep);
    CHECK(checks >= 9);
    backoff alone(false, others);  // nobody would wake it
    const time_point begin = now();
    for (checks = 0; checks < 3;) checks += alone.pause();
    CHECK(now() - begin >= 3 * tuning::check_interval);
}

}  // namespace sleepers_tests
