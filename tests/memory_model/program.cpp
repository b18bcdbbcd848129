// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Ranks of a node under the memory model of C++: Relacy runs them in many interleavings, in which
// loads may get old values, and reports each access that no order protects. The orders are those of
// hvd's own headers. Each of them is then taken away, and Relacy has to notice it.

#include <cstring>
#include <iostream>
#include <streambuf>
#include <string_view>

#include <hvd/transport/collectives.hpp>
#include <hvd/transport/shm/shm_transport.hpp>

namespace {

using namespace hvd::detail;
using memory_model::now_simulated;
using memory_model::order;

constexpr std::size_t most_tensor_bytes = 80 * 1024;

// The memory of a simulation, which every iteration uses again.
struct node {
    int ranks = 0;
    std::byte* memory = nullptr;
    shm_region* region = nullptr;
    std::byte* tensors = nullptr;

    std::byte* tensor(int rank) const { return tensors + std::size_t(rank) * most_tensor_bytes; }
};
inline node here;

std::size_t window_of(int ranks) { return shm_region::window_for(ranks, 1); }

void run(transport& t, bool sleeps = false) {
    do
        while (!t.ready()) {
            if (sleeps) t.sleep(1);
            else rl::yield(1, RL_INFO);
        }
    while (t.next());
}

void run_call(transport& t, workspace& w, operation& op, bool sleeps = false) {
    t.choose(op);
    make_part(t, w, op);
    t.begin(op);
    run(t, sleeps);
    if (!t.agreed) check_call(t);
    for (std::size_t step = 1; begin_step(t, w, op, step); ++step) run(t, sleeps);
}

std::byte value_of(int rank, std::size_t i) { return std::byte(i * 7 + std::size_t(rank) + 1); }

void fill(std::byte* data, std::size_t bytes, int rank) {
    memory_model::is_written(data, bytes);
    for (std::size_t i = 0; i < bytes; ++i) data[i] = value_of(rank, i);
}
void check(const std::byte* data, std::size_t bytes, int rank) {
    memory_model::is_read(data, bytes);
    for (std::size_t i = 0; i < bytes; i += 61) RL_ASSERT(data[i] == value_of(rank, i));
}

// ---- what ranks do ------------------------------------------------------------------------------

// Small tensors go with the headers through the ring.
struct pieces {
    static void run_rank(shm_transport& t) {
        workspace w(t.size());
        std::byte data[320];
        for (int call = 0; call < 4; ++call) {
            const int root = call % t.size();
            if (t.rank() == root) fill(data, sizeof data, call);
            operation op;
            op.entry.kind = collective::broadcast;
            op.entry.root = root;
            op.entry.count = sizeof data;
            op.in = op.out = data;
            op.has_room = true;
            run_call(t, w, op);
            check(data, sizeof data, call);
        }
    }
};

// Ranks leave calls of which they need no more, and come back to the memory of their first ones.
struct leaving_calls {
    static constexpr std::size_t bytes = 200;

    static operation of(collective kind, int root, std::byte* in, std::byte* out) {
        operation op;
        op.entry.kind = kind;
        op.entry.root = root;
        op.entry.count = bytes;
        op.in = in;
        op.out = out;
        op.may_leave = true;
        return op;
    }
    static void run_rank(shm_transport& t) {
        workspace w(t.size());
        std::byte data[bytes], all[4 * bytes];
        for (int call = 0; call < int(tuning::deposits) + 4; ++call) {
            const int root = call % 5 == 0 ? 1 : 0;
            if (t.rank() == root) fill(data, bytes, call);
            operation down = of(collective::broadcast, root, data, data);
            run_call(t, w, down);
            check(data, bytes, call);
        }
        for (int call = 0; call < int(tuning::deposits) + 4; ++call) {
            fill(data, bytes, t.rank() + call);
            operation up = of(collective::gather, 0, data, all);
            run_call(t, w, up);
            if (t.rank() == 0)
                for (int p = 0; p < t.size(); ++p) check(all + p * bytes, bytes, p + call);
        }
    }
};

// The last rank finds that the first call fails, and no other one needs it there. All are told at
// the first call that nobody leaves.
struct told_later {
    static void run_rank(shm_transport& t) {
        workspace w(t.size());
        std::byte data[200];
        const bool differs = t.rank() == t.size() - 1;
        int failures = 0;
        for (int call = 0; call < 4; ++call) {
            operation op = leaving_calls::of(collective::broadcast, 0, data, data);
            op.may_leave = call < 3;
            if (call == 0 && differs) op.entry.count = 100;
            if (t.rank() == 0) fill(data, sizeof data, call);
            try {
                run_call(t, w, op);
                check(data, sizeof data, call);
            } catch (const hvd::error&) {
                ++failures;
                t.note_failure();
            }
        }
        RL_ASSERT(failures == (differs ? 2 : 1));
    }
};

// The same bell for whom waits for one rank, or for room.
struct sleeping_alone {
    static void run_rank(shm_transport& t) {
        workspace w(t.size());
        std::byte data[200];
        for (int call = 0; call < int(tuning::most_ahead) + 6; ++call) {
            operation op = leaving_calls::of(collective::broadcast, 0, data, data);
            if (t.rank() == 0) fill(data, sizeof data, call);
            run_call(t, w, op, true);
            check(data, sizeof data, call);
        }
    }
};

// Tensors of several windows, chunk by chunk.
struct chunks {
    static void run_rank(shm_transport& t) {
        const std::size_t bytes = 5 * window_of(t.size()) / std::size_t(t.size()) + 100;
        table<block> send{std::size_t(t.size())}, receive{std::size_t(t.size())};
        std::vector<std::byte> in(bytes), out(bytes * std::size_t(t.size()));
        for (int call = 0; call < 2; ++call) {
            fill(in.data(), bytes, t.rank() + call);
            for (int p = 0; p < t.size(); ++p) {
                const std::size_t i = std::size_t(p);
                if (p == t.rank()) continue;
                send[i] = {in.data(), bytes};
                receive[i] = {out.data() + i * bytes, bytes};
            }
            t.alltoallv(send.data(), receive.data());
            run(t);
            for (int p = 0; p < t.size(); ++p)
                if (p != t.rank()) check(receive[std::size_t(p)].data, bytes, p + call);
        }
    }
};

// Reduces bytes, and tells the simulation so.
void add_bytes(const reduce_args& a) {
    for (int r = 0; r < a.ranks; ++r) memory_model::is_read(a.inputs[r], a.count);
    memory_model::is_written(a.out, a.count);
    for (std::size_t i = 0; i < a.count; ++i) {
        unsigned sum = 0;
        for (int r = 0; r < a.ranks; ++r) sum += std::to_integer<unsigned>(a.inputs[r][i]);
        a.out[i] = std::byte(sum);
    }
}

// Sums of tensors that fit into a line, into a window, and into several, by slices and as a whole.
struct sums {
    static void run_rank(shm_transport& t) {
        workspace w(t.size());
        const std::size_t window = window_of(t.size());
        std::vector<std::byte> data(2 * window);
        for (const std::size_t bytes : {std::size_t(24), window / 4, 2 * window - 100}) {
            fill(data.data(), bytes, t.rank());
            reduction_group g{&add_bytes, nullptr, 1, 0, bytes, nullptr, hvd::dtype::uint8, true};
            operation op;
            op.entry.kind = collective::allreduce;
            op.entry.id = hvd::dtype::uint8;
            op.entry.count = bytes;
            op.in = op.out = data.data();
            op.groups = &g;
            op.group_count = 1;
            run_call(t, w, op);
            for (std::size_t i = 0; i < bytes; i += 61) {
                unsigned sum = 0;
                for (int r = 0; r < t.size(); ++r) sum += std::to_integer<unsigned>(value_of(r, i));
                RL_ASSERT(data[i] == std::byte(sum));
            }
        }
    }
};

// Ranks read each other's tensors where these lie, and write there again after the call.
struct in_place {
    static void run_rank(shm_transport& t) {
        const std::size_t bytes = 8 * 1024;
        std::byte* const mine = here.tensor(t.rank());
        std::vector<std::byte> out(bytes * std::size_t(t.size()));
        table<block> receive{std::size_t(t.size())};
        for (int call = 0; call < 2; ++call) {
            fill(mine, bytes, t.rank() + call);
            for (int p = 0; p < t.size(); ++p)
                receive[std::size_t(p)] = {out.data() + std::size_t(p) * bytes, bytes};
            t.allgather({mine, bytes}, receive.data());
            run(t);
            for (int p = 0; p < t.size(); ++p)
                if (p != t.rank()) check(receive[std::size_t(p)].data, bytes, p + call);
        }
    }
};

// A message goes through the windows of its sender.
struct messages {
    static void run_rank(shm_transport& t) {
        const std::size_t bytes = 2 * tuning::message_window + 1000;
        std::byte* const data = here.tensor(t.rank());
        for (int call = 0; call < 2; ++call) {
            const bool sends = t.rank() == call;
            if (sends) fill(data, bytes, call);
            call_header mine;
            mine.kind = sends ? collective::send : collective::recv;
            mine.root = 1 - t.rank();
            t.exchange_header(mine, mine.root);
            run(t);
            t.move_one({data, bytes}, mine.root, sends);
            run(t);
            if (!sends) check(data, bytes, call);
        }
    }
};

// Whoever waits sleeps until the bell rings.
struct sleeping {
    static void run_rank(shm_transport& t) {
        for (int call = 0; call < 3; ++call) {
            call_header mine;
            t.exchange_headers(mine);
            run(t, true);
        }
    }
};

// The last rank gives up at some moment of a call in which the others read its tensor. When it has
// left nobody reads there any more.
struct leaving {
    static void run_rank(shm_transport& t) {
        const std::size_t bytes = 8 * 1024;
        std::byte* const mine = here.tensor(t.rank());
        std::vector<std::byte> out(bytes * std::size_t(t.size()));
        table<block> receive{std::size_t(t.size())};
        fill(mine, bytes, t.rank());
        for (int p = 0; p < t.size(); ++p)
            receive[std::size_t(p)] = {out.data() + std::size_t(p) * bytes, bytes};
        t.allgather({mine, bytes}, receive.data());
        if (t.rank() == t.size() - 1) {
            for (unsigned looks = rl::rand(6); looks > 0; --looks) rl::yield(1, RL_INFO);
            t.give_up();
            t.leave("it is tired");
            return fill(mine, bytes, 77);
        }
        bool is_lost = false;
        for (bool more = true; more && !is_lost;) {
            while (!t.ready() && !is_lost) {
                rl::yield(1, RL_INFO);
                is_lost = t.hopeless();
            }
            if (!is_lost) more = t.next();
        }
        if (is_lost) return t.leave("the last rank has left");
        for (int p = 0; p < t.size(); ++p)
            if (p != t.rank()) check(receive[std::size_t(p)].data, bytes, p);
    }
};

// ---- simulations --------------------------------------------------------------------------------

template <class Scenario, int Ranks, bool Reachable>
struct simulated : rl::test_suite<simulated<Scenario, Ranks, Reachable>, Ranks> {
    shm_transport* transports[Ranks] = {};

    void before() {
        const std::size_t bytes = shm_region::bytes(Ranks, window_of(Ranks));
        here.ranks = Ranks;
        now_simulated.begin(here.memory, bytes, here.tensors, Ranks * most_tensor_bytes);
        here.region = new shm_region(
            here.memory, Ranks, window_of(Ranks),
            Reachable ? segments::of_this_process() : hvd::detail::shared<segments>::make());
        here.region->construct();
        for (int r = 0; r < Ranks; ++r) transports[r] = new shm_transport(*here.region, r);
    }
    void thread(unsigned rank) { Scenario::run_rank(*transports[rank]); }
    void after() {
        for (shm_transport* const t : transports) delete t;
        delete here.region;
        now_simulated.end();
    }
};

// Relacy's history of a failure is for whoever looks for the cause: HVD_MEMORY_MODEL_HISTORY=1.
struct nothing : std::streambuf {
    int overflow(int c) override { return c; }
    std::streamsize xsputn(const char*, std::streamsize n) override { return n; }
};

template <class Simulated>
bool holds(unsigned iterations) {
    nothing buffer;
    std::ostream quiet(&buffer);
    rl::test_params p;
    p.iteration_count = iterations;
    p.execution_depth_limit = 100000;
    const bool tells = std::getenv("HVD_MEMORY_MODEL_HISTORY") != nullptr;
    p.output_stream = p.progress_stream = tells ? &std::cout : &quiet;
    return rl::simulate<Simulated>(p);
}

struct scenario {
    const char* name;
    bool (*holds)(unsigned iterations);
};
constexpr scenario scenarios[] = {
    {"pieces of 2 ranks", &holds<simulated<pieces, 2, false>>},
    {"pieces of 3 ranks", &holds<simulated<pieces, 3, false>>},
    {"chunks of 2 ranks", &holds<simulated<chunks, 2, false>>},
    {"chunks of 3 ranks", &holds<simulated<chunks, 3, false>>},
    {"sums of 2 ranks", &holds<simulated<sums, 2, false>>},
    {"sums of 3 ranks", &holds<simulated<sums, 3, false>>},
    {"tensors in place", &holds<simulated<in_place, 2, true>>},
    {"messages", &holds<simulated<messages, 2, false>>},
    {"sleepers of 2 ranks", &holds<simulated<sleeping, 2, false>>},
    {"sleepers of 3 ranks", &holds<simulated<sleeping, 3, false>>},
    {"a rank that leaves", &holds<simulated<leaving, 2, true>>},
    {"calls that ranks leave, of 2", &holds<simulated<leaving_calls, 2, false>>},
    {"calls that ranks leave, of 3", &holds<simulated<leaving_calls, 3, false>>},
    {"a failure that is told later, of 2", &holds<simulated<told_later, 2, false>>},
    {"a failure that is told later, of 3", &holds<simulated<told_later, 3, false>>},
    {"sleepers in calls that ranks leave", &holds<simulated<sleeping_alone, 3, false>>},
};

// ---- orders that are taken away -----------------------------------------------------------------

template <class F>
bool of_some_slot(const void* address, F is_it) {
    for (int r = 0; r < here.ranks; ++r)
        if (is_it(here.region->slot(r), address)) return true;
    return false;
}
bool is_step(const void* address) {
    return of_some_slot(address, [](node_slot& s, const void* a) {
        for (const step_line& line : s.steps)
            if (a == &line.step) return true;
        return false;
    });
}
bool is_chunks(const void* address) {
    return of_some_slot(address, [](node_slot& s, const void* a) {
        return a >= &s.chunks[0] && a <= &s.chunks[2];
    });
}
bool is_record(const void* address) {
    return of_some_slot(
        address, [](node_slot& s, const void* a) { return a >= &s.late[0] && a < &s.late[2]; });
}
bool is_left(const void* address) {
    return of_some_slot(address, [](node_slot& s, const void* a) { return a == &s.left; });
}
bool is_reaches(const void* address) {
    return of_some_slot(address, [](node_slot& s, const void* a) { return a == &s.reaches; });
}
bool is_progress(const void* address) {
    for (int from = 0; from < here.ranks; ++from)
        for (int to = 0; to < here.ranks; ++to)
            if (address == &here.region->progress(from, to)) return true;
    return false;
}

struct broken_order {
    memory_model::weakening change;
    const char* noticed_by;  // the scenario
};
constexpr broken_order broken_orders[] = {
    {{"a step's store", order::store, &is_step}, "pieces of 2 ranks"},
    {{"a step's load", order::load, &is_step}, "pieces of 2 ranks"},
    {{"the store of the step of a call that ranks leave", order::store, &is_step},
     "calls that ranks leave, of 2"},
    {{"the load of the step of a call that ranks leave", order::load, &is_step},
     "calls that ranks leave, of 2"},
    {{"the fence of the doorbell in such calls", order::fence, nullptr},
     "sleepers in calls that ranks leave"},
    {{"the store of a count of chunks", order::store, &is_chunks}, "chunks of 2 ranks"},
    {{"the load of a count of chunks", order::load, &is_chunks}, "chunks of 2 ranks"},
    {{"the store of a message's progress", order::store, &is_progress}, "messages"},
    {{"the load of a message's progress", order::load, &is_progress}, "messages"},
    {{"the fence of the doorbell", order::fence, nullptr}, "sleepers of 2 ranks"},
    {{"the exchange by which a rank begins to reach", order::exchange, &is_reaches},
     "a rank that leaves"},
    {{"the store by which a rank ends to reach", order::store, &is_reaches}, "a rank that leaves"},
    {{"the exchange by which a rank leaves", order::exchange, &is_left}, "a rank that leaves"},
    {{"the look whether a rank has left", order::load_in_order, &is_left}, "a rank that leaves"},
    {{"the look whether a rank reaches", order::load_in_order, &is_reaches}, "a rank that leaves"},
};

}  // namespace

int main(int argc, char** argv) {
    const unsigned iterations = argc > 1 ? unsigned(std::atoi(argv[1])) : 300;
    const std::string_view only = argc > 2 ? argv[2] : "";
    here.memory = static_cast<std::byte*>(std::aligned_alloc(4096, 1 << 21));
    here.tensors = static_cast<std::byte*>(std::aligned_alloc(4096, 1 << 21));
    bool all = true;
    const auto tell = [&](const char* what, const char* name, bool is_so) {
        std::cout << (is_so ? "" : "NOT ") << what << ": " << name << std::endl;
        all = all && is_so;
    };
    for (const scenario& s : scenarios)
        if (only.empty() || only == s.name) tell("held", s.name, s.holds(iterations));
    for (const broken_order& b : broken_orders)
        for (const scenario& s : scenarios) {
            if (std::string_view(b.noticed_by) != s.name) continue;
            if (!only.empty() && only != b.change.name) continue;
            now_simulated.weak = b.change;
            tell("noticed", b.change.name, !s.holds(20 * iterations));
            now_simulated.weak = {};
        }
    return all ? 0 : 1;
}
