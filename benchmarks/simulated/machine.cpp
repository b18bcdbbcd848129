// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The ranks of a simulated machine are actors of SimGrid, which take turns in one thread. The
// linker gives the clock, sleep and yield of the C library to the functions here (--wrap), so that
// hvd's platform/clock.hpp needs no other code for a simulator.
#include "machine.hpp"

#include <sched.h>
#include <time.h>
#include <cstring>
#include <map>
#include <stdexcept>

namespace simulated {

namespace {

std::map<aid_t, rank_state*> states_of_actors;

// Far more than any wait between two events; a timeout is looked at so often.
constexpr double longest_yield = 0.1;
constexpr unsigned most_looks = 1000;

}  // namespace

rank_state*& rank_state::current() {
    static rank_state* none = nullptr;
    none = nullptr;
    if (simgrid::s4u::Actor::is_maestro()) return none;
    const auto found = states_of_actors.find(simgrid::s4u::this_actor::get_pid());
    return found == states_of_actors.end() ? none : found->second;
}

void run(machine& m, const std::function<void(int rank)>& f) {
    int argc = 1;
    char name[] = "simulated";
    char* argv[] = {name, nullptr};
    simgrid::s4u::Engine engine(&argc, argv);
    simgrid::s4u::Engine::set_config("contexts/factory:raw");
    simgrid::s4u::Engine::set_config("contexts/stack-size:256");
    simgrid::s4u::NetZone* const zone = simgrid::s4u::create_full_zone("machine");
    simgrid::s4u::Host* const host = zone->create_host("host", 1e9);
    zone->seal();
    int ended = 0;
    for (int rank = 0; rank < m.what.ranks; ++rank)
        simgrid::s4u::Actor::create("rank", host, [&m, &f, &ended, rank] {
            rank_state& mine = m.states[std::size_t(rank)];
            states_of_actors[simgrid::s4u::this_actor::get_pid()] = &mine;
            f(rank);
            states_of_actors.erase(simgrid::s4u::this_actor::get_pid());
            ++ended;
        });
    engine.run();
    if (ended != m.what.ranks) throw std::runtime_error("simulated: some ranks wait for ever");
}

}  // namespace simulated

extern "C" {

int __real_clock_gettime(clockid_t clock, timespec* time);
int __real_nanosleep(const timespec* span, timespec* left);
int __real_sched_yield();
int __real_sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t* set);

// All ranks share one processor, so that none spins after it has begun a call: it would drive its
// other communicators meanwhile, as threads do.
int __wrap_sched_getaffinity(pid_t, size_t bytes, cpu_set_t* set) {
    std::memset(set, 0, bytes);
    CPU_SET_S(0, bytes, set);
    return 0;
}

int __wrap_sched_yield() {
    simulated::rank_state* const rank = simulated::rank_state::current();
    if (rank == nullptr) return __real_sched_yield();
    rank->wait_until(simulated::now() + simulated::longest_yield);
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, timespec* time) {
    simulated::rank_state* const rank = simulated::rank_state::current();
    if (rank == nullptr) return __real_clock_gettime(clock, time);
    // A rank that looks again and again spins: nothing else would let the time go on.
    rank->looks = rank->looked_at == simulated::now() ? rank->looks + 1 : 0;
    rank->looked_at = simulated::now();
    if (rank->looks > simulated::most_looks) {
        rank->looks = 0;
        rank->wait_until(simulated::now() + 1e-6);
    }
    const double seconds = simulated::now() + 1;  // 0 stands for no time
    time->tv_sec = time_t(seconds);
    time->tv_nsec = long((seconds - double(time->tv_sec)) * 1e9);
    return 0;
}

int __wrap_nanosleep(const timespec* span, timespec* left) {
    simulated::rank_state* const rank = simulated::rank_state::current();
    if (rank == nullptr) return __real_nanosleep(span, left);
    rank->wait_until(simulated::now() + double(span->tv_sec) + double(span->tv_nsec) * 1e-9);
    return 0;
}
}
