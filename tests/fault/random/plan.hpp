// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

// A run of random calls in which something fails. A seed decides everything, so that every rank
// knows the whole run, and what it must give.
namespace faults {

// On tcp the ranks are processes without MPI, on tcp_hosts they declare several hosts.
enum class place { threads, node, nodes, hosts, tcp, tcp_hosts };
inline constexpr const char* place_names[] = {"threads", "node", "nodes",
                                              "hosts",   "tcp",  "tcp_hosts"};

// A killed rank and one that exits are gone. A stopped one is stopped by a signal at any
// instruction; on threads only its thread is. `leaves` and `throws` destroy the communicator, the
// latter while an exception unwinds. `cut` pulls the cable of the rank's host. A rank without
// descriptors can open none during the call, one without file size makes no file larger, and one
// without address space maps nothing more.
enum class kind {
    killed,
    stopped,
    delayed,
    without_memory,
    leaves,
    throws,
    exits,
    cut,
    without_descriptors,
    without_file_size,
    without_address_space
};
inline constexpr const char* kind_names[] = {"is killed",
                                             "is stopped",
                                             "is delayed",
                                             "has no memory",
                                             "leaves",
                                             "throws",
                                             "exits",
                                             "has no cable",
                                             "has no descriptors",
                                             "has no file size",
                                             "has no address space"};

// The place of a delay in a call.
enum class point { before, on_begin, on_end, callable };
inline constexpr const char* point_names[] = {"before the call", "in the observer's begin",
                                              "in the observer's end", "in the callable"};

constexpr std::int64_t microsecond = 1000, millisecond = 1000 * microsecond;

struct fault {
    kind what;
    int rank;
    int call;            // the number of the call in which it strikes, or soon after
    std::int64_t after;  // nanoseconds from the begin of the call: signals
    std::int64_t lasts;  // nanoseconds: stops and delays
    int allocation;      // the allocation that fails, counted from the begin of the call
    point where;         // delays
    bool waits;          // the rank comes first to its call, and the signal comes while it waits
};

enum class call {
    allreduce,
    allreduce_fused,
    broadcast,
    broadcast_fused,
    reduce,
    allgather,
    reduce_scatter,
    alltoall,
    gather,
    scatter,
    scan,
    barrier,
    object,
    child,  // makes a communicator, uses it and destroys it
    grow,   // adds room to the arena
};
inline constexpr const char* call_names[] = {
    "allreduce",      "fused allreduce",    "broadcast", "fused broadcast", "reduce", "allgather",
    "reduce_scatter", "alltoall",           "gather",    "scatter",         "scan",   "barrier",
    "objects",        "a new communicator", "arena.grow"};

enum class form { blocking, asynchronous, planned, several };
inline constexpr const char* form_names[] = {"blocking", "asynchronous", "planned",
                                             "several at once"};
enum class memory { plain, arena, mixed };  // mixed: odd ranks have plain memory
inline constexpr const char* memory_names[] = {"plain", "arena", "mixed"};
enum class operation { sum, max, callable };
inline constexpr const char* operation_names[] = {"sum", "max", "callable"};

struct step {
    call what;
    form how;
    memory where;
    operation op;
    std::size_t n;  // elements
    int root;
    int repeats;
    int first;  // the number of its first call
};

// The largest tensor, in floats.
constexpr std::size_t most_elements = 600000;

class dice {
public:
    explicit dice(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {  // splitmix64
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + std::int64_t(next() % std::uint64_t(high - low + 1));
    }
    bool chance(int percent) { return between(0, 99) < percent; }
    // Small numbers as often as large ones.
    std::int64_t any_size(std::int64_t low, std::int64_t high) {
        int doublings = 0;
        while ((low << (doublings + 1)) < high) ++doublings;
        const std::int64_t from = low << between(0, doublings);
        return between(from, from < high / 2 ? 2 * from : high);
    }
    // One of several, each with its weight.
    template <class E>
    E pick(std::initializer_list<std::pair<E, int>> choices) {
        int all = 0;
        for (const auto& c : choices) all += c.second;
        std::int64_t left = between(0, all - 1);
        for (const auto& c : choices)
            if ((left -= c.second) < 0) return c.first;
        return choices.begin()->first;
    }

private:
    std::uint64_t state_;
};

struct plan {
    std::uint64_t seed;
    faults::place place;
    int ranks;
    int node_size = 0;         // 0: as it is
    std::vector<int> hosts;    // ranks of each host
    std::int64_t timeout = 0;  // nanoseconds
    bool has_arena = false;
    bool has_noise = false;       // unauthenticated connections to all ports
    bool unmaps = false;          // plain memory is unmapped after the calls, and not only poisoned
    bool destroys_first = false;  // the communicator is destroyed before memory is poisoned
    std::vector<step> steps;
    std::vector<fault> faults;
    int calls = 0;

    plan(std::uint64_t number, faults::place where, int patience);

    int host_of(int rank) const {
        int host = 0;
        while (rank >= hosts[std::size_t(host)]) rank -= hosts[std::size_t(host++)];
        return host;
    }

    // Ranks do not come at the same time: some wait a while before a call.
    std::int64_t idle_before(int rank, int number) const {
        dice d(seed * 1000003 + std::uint64_t(number) * 8 + std::uint64_t(rank));
        for (const fault& f : faults)
            if (f.waits && f.call == number)
                return rank == f.rank ? 0 : d.between(1000, 3000) * microsecond;
        return d.chance(25) ? d.any_size(20, 3000) * microsecond : 0;
    }

    // The step that has the call of this number.
    const step& step_of(int number) const {
        const step* its = &steps.front();
        for (const step& s : steps)
            if (s.first <= number) its = &s;
        return *its;
    }

    // True if the fault takes so long that others may give up. A stop is either much shorter than
    // the timeout or longer.
    bool is_harmful(const fault& f) const {
        if (f.what != kind::stopped && f.what != kind::delayed) return true;
        return timeout > 0 && f.lasts > timeout / 2;
    }
    // The time for which ranks do nothing.
    std::int64_t pauses() const {
        std::int64_t all = 0;
        for (const fault& f : faults) all += f.lasts;
        return all;
    }
    bool is_on_tcp() const { return place == place::tcp || place == place::tcp_hosts; }
    bool ends_a_process() const {
        for (const fault& f : faults)
            if (f.what == kind::killed || f.what == kind::exits || f.what == kind::cut) return true;
        return false;
    }
    std::string text() const;

private:
    bool calls_callable(int number) const {
        const step& its = step_of(number);
        return its.op == operation::callable && its.how != form::several &&
               (its.what == call::allreduce || its.what == call::reduce ||
                its.what == call::reduce_scatter);
    }
    void add_step(dice& d);
    void add_fault(dice& d, int rank);
};

// On a busy machine all that is long takes `patience` times as long.
inline plan::plan(std::uint64_t number, faults::place where, int patience)
    : seed(number), place(where) {
    dice d(number * 8 + std::uint64_t(where));
    ranks = int(d.pick<int>({{2, 3}, {3, 4}, {4, 3}}));
    if (place == place::hosts || place == place::tcp_hosts) {
        const int two = ranks / 2;
        hosts = d.chance(30) && ranks > 2 ? std::vector<int>(std::size_t(ranks), 1)
                                          : std::vector<int>{ranks - two, two};
    } else {
        hosts = {ranks};
    }
    if (place == place::nodes) node_size = ranks == 2 || d.chance(25) ? 1 : 2;
    if (place == place::threads && d.chance(15)) node_size = 1;
    // Between nodes only the timeout tells of some failures.
    if (place == place::nodes || place == place::hosts || node_size > 0 || d.chance(75))
        timeout = d.between(250, 500) * patience * millisecond;
    has_noise = is_on_tcp() && d.chance(60);
    has_arena = d.chance(80);
    unmaps = d.chance(40);
    destroys_first = d.chance(40);
    const std::int64_t count = d.between(3, 6);
    for (std::int64_t i = 0; i < count; ++i) add_step(d);
    // All ranks meet at the end.
    steps.push_back(
        {call::barrier, form::blocking, memory::plain, operation::sum, 0, 0, 1, calls++});
    if (d.chance(5)) return;
    const int first = int(d.between(0, ranks - 1));
    add_fault(d, first);
    if (d.chance(25)) add_fault(d, (first + 1 + int(d.between(0, ranks - 2))) % ranks);
}

inline void plan::add_step(dice& d) {
    step s{};
    s.what = d.pick<call>({{call::allreduce, 36},
                           {call::allreduce_fused, 14},
                           {call::broadcast, 6},
                           {call::broadcast_fused, 4},
                           {call::reduce, 6},
                           {call::allgather, 7},
                           {call::reduce_scatter, 7},
                           {call::alltoall, 5},
                           {call::gather, 4},
                           {call::scatter, 4},
                           {call::scan, 4},
                           {call::barrier, 3},
                           {call::object, 4},
                           {call::child, 4},
                           {call::grow, has_arena ? 3 : 0}});
    s.how = d.pick<form>(
        {{form::blocking, 50}, {form::asynchronous, 20}, {form::planned, 20}, {form::several, 10}});
    s.where = !has_arena
                  ? memory::plain
                  : d.pick<memory>({{memory::arena, 60}, {memory::plain, 25}, {memory::mixed, 15}});
    s.op =
        d.pick<operation>({{operation::sum, 60}, {operation::max, 15}, {operation::callable, 25}});
    const int size = d.pick<int>({{0, 30}, {1, 30}, {2, 20}, {3, 20}});
    constexpr std::int64_t from[] = {1, 600, 60000, 200000},
                           to[] = {600, 60000, 200000, std::int64_t(most_elements)};
    s.n = std::size_t(d.any_size(from[size], to[size]));
    if (s.n < std::size_t(ranks)) s.n = std::size_t(ranks);
    s.root = int(d.between(0, ranks - 1));
    constexpr int repeats[] = {60, 12, 4, 2};
    s.repeats =
        s.what == call::child || s.what == call::grow || s.what == call::object ? 2 : repeats[size];
    s.first = calls;
    calls += s.repeats;
    steps.push_back(s);
}

inline void plan::add_fault(dice& d, int rank) {
    fault f{};
    // Open MPI ends the process of a rank whose peer on another host died, so that it can't tell.
    const int dies = place == place::threads || place == place::hosts ? 0 : 10,
              cut = place == place::hosts ? 15 : 0, limits = is_on_tcp() ? 20 : 0;
    f.what = d.pick<kind>({{kind::killed, 2 * dies},
                           {kind::exits, dies},
                           {kind::stopped, 40},
                           {kind::delayed, 12},
                           {kind::without_memory, 16},
                           {kind::leaves, 5},
                           {kind::throws, 5},
                           {kind::cut, cut},
                           {kind::without_descriptors, limits},
                           {kind::without_file_size, limits / 2},
                           {kind::without_address_space, limits / 2}});
    f.rank = rank;
    const step& at = steps[std::size_t(d.between(0, std::int64_t(steps.size()) - 1))];
    f.call = at.first + int(d.between(0, at.repeats - 1));
    f.after = d.any_size(1, 4000) * microsecond;
    f.waits = d.chance(50);
    if (f.waits) f.after = d.between(1, 3000) * microsecond;
    f.allocation = int(d.any_size(1, 12));
    const bool has_callable = calls_callable(f.call);
    f.where = d.pick<point>({{point::before, 3},
                             {point::on_begin, 2},
                             {point::on_end, 2},
                             {point::callable, has_callable ? 8 : 0}});
    if (f.what == kind::stopped || f.what == kind::delayed) {
        const std::int64_t most = timeout > 0 ? timeout / 3 : 200 * millisecond;
        f.lasts = timeout > 0 && d.chance(80) ? timeout * 3 / 2 + d.between(0, 400) * millisecond
                                              : d.any_size(100 * microsecond, most);
    }
    faults.push_back(f);
}

inline std::string plan::text() const {
    std::string all = std::to_string(ranks) + " ranks on " + place_names[int(place)];
    if (node_size > 0) all += ", nodes of " + std::to_string(node_size);
    if (hosts.size() > 1) {
        all += ", hosts of";
        for (const int n : hosts) all += " " + std::to_string(n);
    }
    all += timeout > 0 ? ", a timeout of " + std::to_string(timeout / millisecond) + " ms"
                       : ", no timeout";
    if (has_noise) all += ", noise at all ports";
    all += unmaps ? ", memory is unmapped" : ", memory is poisoned";
    all += destroys_first ? " after its communicator is destroyed\n" : "\n";
    for (const step& s : steps)
        all += "  calls " + std::to_string(s.first) + " to " +
               std::to_string(s.first + s.repeats - 1) + ": " + call_names[int(s.what)] + ", " +
               form_names[int(s.how)] + ", " + memory_names[int(s.where)] + ", " +
               operation_names[int(s.op)] + ", " + std::to_string(s.n) + " elements, root " +
               std::to_string(s.root) + "\n";
    for (const fault& f : faults) {
        all += "  rank " + std::to_string(f.rank) + " " + kind_names[int(f.what)] + " in call " +
               std::to_string(f.call);
        if (f.what == kind::stopped || f.what == kind::killed)
            all += ", " + std::to_string(f.after / microsecond) + " us after its begin";
        if (f.waits) all += ", before the other ranks have come";
        if (f.what == kind::delayed) all += std::string(", ") + point_names[int(f.where)];
        if (f.what == kind::without_memory)
            all += ", at allocation " + std::to_string(f.allocation);
        if (f.lasts > 0) all += ", for " + std::to_string(f.lasts / microsecond) + " us";
        all += "\n";
    }
    return all;
}

}  // namespace faults
