// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory_resource>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hvd/hvd.hpp>

// A program in which one rank fails, in the way its first argument says. The second argument, if
// given, is the number of ranks taken as one node; 1 makes all of them use messages. launch.py
// knows the expected result.

namespace {

using namespace std::chrono_literals;
using communicator = hvd::communicator<hvd::mpi>;

hvd::communicator_options options;

// Writes a line by one call, since ranks write to the same place.
void say(const std::string& what) {
    const std::string line = what + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

void require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(std::string("not so: ") + what);
}

void work(communicator& comm, int steps) {
    for (int i = 0; i < steps; ++i) {
        std::vector<float> x(10000, 1);
        comm.allreduce(x, hvd::sum);
        require(x.back() == float(comm.size()), "the sum is right");
    }
}

std::string numbers(const std::vector<int>& ranks) {
    std::string all;
    for (const int p : ranks) all += " " + std::to_string(p);
    return all;
}

// Prints the error, and checks that calls are refused from then on.
void report(communicator& comm, const hvd::peer_error& e) {
    say("rank " + std::to_string(comm.rank()) + " got peer_error of" + numbers(e.peers()) + ": " +
        e.what());
    try {
        comm.barrier();
    } catch (const hvd::peer_error& again) {
        say("rank " + std::to_string(comm.rank()) + " is refused: " + again.what());
    }
}

void expect_peer_error(communicator& comm, const std::function<void()>& call) {
    try {
        call();
    } catch (const hvd::peer_error& e) {
        return report(comm, e);
    }
    throw std::logic_error("there was no peer_error");
}

bool fails(const communicator& comm) { return comm.rank() == comm.size() - 1; }

void throws(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) throw std::runtime_error("the disk is full");
    work(comm, 1000000);
}

void throws_and_catches(int& argc, char**& argv) {
    try {
        throws(argc, argv);
    } catch (const std::exception& e) {
        say(std::string("caught: ") + e.what());
    }
}

void returns_early(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) return;
    expect_peer_error(comm, [&] { work(comm, 1000000); });
}

void exits(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) std::exit(3);
    work(comm, 1000000);
}

void is_killed(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) kill(getpid(), SIGKILL);
    work(comm, 1000000);
}

// Tensors go up from rank to rank.
void pass_on(communicator& comm, int messages) {
    const int rank = comm.rank(), last = comm.size() - 1;
    std::vector<float> x(10);
    for (int i = 0; i < messages; ++i) {
        if (rank > 0) comm.recv(hvd::into(x), hvd::peer{rank - 1});
        if (rank < last) comm.send(x, hvd::peer{rank + 1});
    }
}

// The process goes on as its child, and does not ask about its end for a while. The launcher knows
// the parents alone, so that it ends nobody before the others have seen that a rank was killed.
void go_on_in_a_child() {
    if (const pid_t child = fork(); child != 0) {
        siginfo_t info{};
        waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT);
        std::this_thread::sleep_for(4s);  // after the first of these the launcher ends the others
        _exit(1);
    }
    signal(SIGTERM, SIG_IGN);  // what the launcher sends when it hears of it all the same
}

void is_killed_and_not_reaped(int& argc, char**& argv, void (*work)(communicator&, int)) {
    go_on_in_a_child();
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) kill(getpid(), SIGKILL);
    expect_peer_error(comm, [&] { work(comm, 1000000); });
    std::_Exit(0);
}

// A process of its own sends this one a signal.
void get_signal_after(std::chrono::milliseconds time, int signal) {
    const pid_t receiver = getpid();
    if (fork() != 0) return;
    std::this_thread::sleep_for(time);
    kill(receiver, signal);
    _exit(0);
}

// Before ranks read each other's tensors they meet twice, and show where these lie. By signals they
// take turns until the last one has read all, and is killed. Then the others go on, and do not find
// its tensor any more.
void is_killed_when_it_has_all(int& argc, char**& argv) {
    go_on_in_a_child();
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    const std::vector<float> x(100000, 1);
    if (fails(comm)) {
        get_signal_after(900ms, SIGSTOP);
        get_signal_after(2100ms, SIGCONT);
        get_signal_after(2700ms, SIGKILL);
        std::this_thread::sleep_for(600ms);
    } else {
        get_signal_after(300ms, SIGSTOP);
        get_signal_after(1300ms, SIGCONT);
        get_signal_after(1700ms, SIGSTOP);
        get_signal_after(3200ms, SIGCONT);
    }
    std::vector<float> all(x.size() * std::size_t(comm.size()));
    expect_peer_error(comm, [&] { comm.allgather(x, hvd::into(all)); });
    std::_Exit(0);
}

// The others get their error, and come to the end of the program.
void is_outlived(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) kill(getpid(), SIGKILL);
    expect_peer_error(comm, [&] { work(comm, 1000000); });
    say("rank " + std::to_string(comm.rank()) + " has come to its end");
}

void calls_something_else(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    std::vector<float> x(10000);
    try {
        if (fails(comm)) comm.broadcast(x);
        else comm.allreduce(x, hvd::sum);
    } catch (const hvd::mismatch_error& e) {
        say("rank " + std::to_string(comm.rank()) + " got mismatch_error about " +
            std::string(e.field()));
    }
    work(comm, 10);
}

// The late rank finds that the others have called the barrier. In its next call it finds that they
// have given up. `timeout` is for the calls themselves; without one the communicator's holds.
void is_late(int& argc, char**& argv, hvd::time_limit timeout) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 10);
    if (fails(comm)) std::this_thread::sleep_for(4s);
    expect_peer_error(comm, [&] {
        comm.barrier({.name = "epoch", .timeout = timeout});
        comm.barrier({.name = "next epoch", .timeout = timeout});
    });
}

// The last rank is away at the end of the first agreement for a subset, until the others have given
// up. Their part of the second one is there when it comes back.
struct away_once {
    bool goes = false;
    void on_begin(const hvd::event&) {}
    void on_end(const hvd::event&, bool) {
        if (std::exchange(goes, false)) std::this_thread::sleep_for(5s);
    }
};

void is_late_in_making(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    options.timeout = 2s;
    auto comm = hvd::communicator<hvd::observed<hvd::mpi, away_once>>::world(options);
    std::vector<int> all;
    for (int r = 0; r < comm.size(); ++r) all.push_back(r);
    auto before = comm.subset(all);
    comm.observer().goes = comm.rank() == comm.size() - 1;
    try {
        const auto part = comm.subset(all);
        say("it was made");
    } catch (const hvd::peer_error& e) {
        say("rank " + std::to_string(comm.rank()) + " got peer_error of" + numbers(e.peers()) +
            ": " + e.what());
    }
    before.barrier({.timeout = 20s});
}

// The last rank is busy with something else inside its call, whose request it does not test. Rank 0
// gives up; the others have no timeout. No rank has the sum, and all blame rank 0.
void is_busy_in_a_call(int& argc, char**& argv) {
    int given = -1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &given);  // no thread makes progress
    {
        auto comm = communicator::world(options);
        hvd::arena arena{comm, std::size_t(1) << 20};
        std::pmr::vector<float> x(100000, 1, &arena);
        work(comm, 3);
        expect_peer_error(comm, [&] {
            if (fails(comm)) {
                auto request = comm.allreduce_async(x, hvd::sum);
                require(!request.test(), "the others are not there yet");
                std::this_thread::sleep_for(2s);
                request.wait();
            } else {
                std::this_thread::sleep_for(500ms);
                comm.allreduce(
                    x, hvd::sum,
                    {.timeout = comm.rank() == 0 ? hvd::time_limit(500ms) : hvd::time_limit()});
            }
        });
    }
    MPI_Finalize();
}

// The last rank is stopped while it reduces in place. Rank 0 gives up, fills its tensor again, and
// lets the last rank go on, whose results may not come any more. The arena belongs to a
// communicator that was not given up, and on which the same tensor is reduced afterwards.
void is_stopped_in_an_arena(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto parent = communicator::world(options);
    hvd::arena arena{parent, std::size_t(1) << 20};
    const auto processes = parent.allgather(int(getpid()));
    std::vector<int> all;
    for (int r = 0; r < parent.size(); ++r) all.push_back(r);
    for (const char* how : {"blocking", "asynchronous", "planned"}) {
        auto comm = parent.subset(all);
        std::pmr::vector<float> x(100000, float(comm.rank() + 1), &arena), beside(1000, 7, &arena);
        bool stops = fails(comm);
        const auto add = [&stops](float a, float b) {
            if (std::exchange(stops, false)) raise(SIGSTOP);
            return a + b;
        };
        const hvd::reduce_options o{.timeout = comm.rank() == 0 ? hvd::time_limit(500ms)
                                                                : hvd::time_limit()};
        expect_peer_error(comm, [&] {
            if (how[0] == 'b') comm.allreduce(x, add, o);
            if (how[0] == 'a') comm.allreduce_async(x, add, o).wait();
            if (how[0] == 'p') comm.plan_allreduce(hvd::fuse(x), add, o).run();
        });
        if (comm.rank() == 0) std::fill(x.begin(), x.end(), -1.f);
        MPI_Request all_are_here = MPI_REQUEST_NULL;
        MPI_Ibarrier(MPI_COMM_WORLD, &all_are_here);
        for (int here = 0; here == 0; std::this_thread::sleep_for(20ms)) {
            // A busy machine may let it stop only after this rank's timeout.
            if (comm.rank() == 0) kill(processes.values.back(), SIGCONT);
            MPI_Test(&all_are_here, &here, MPI_STATUS_IGNORE);
        }
        if (comm.rank() == 0) {
            require(std::count(x.begin(), x.end(), -1.f) == 100000, "nobody has written to it");
            require(std::count(beside.begin(), beside.end(), 7.f) == 1000, "the rest is kept");
        }
        std::fill(x.begin(), x.end(), 1.f);
        parent.allreduce(x, hvd::sum);
        require(std::count(x.begin(), x.end(), float(parent.size())) == 100000, "the sum is right");
    }
    say("nothing was written after the error");
}

// The late rank finds that the ranks have given up that dropped their requests in an exception.
void drops_a_request(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    options.destructor_timeout = std::chrono::nanoseconds(500ms);
    options.timeout = {};  // so that no other timeout ends the wait
    auto comm = communicator::world(options);
    std::vector<float> x(1000);
    work(comm, 10);
    if (fails(comm)) std::this_thread::sleep_for(2s);
    else try {
            const auto request = comm.allreduce_async(x, hvd::sum);
            throw 1;
        } catch (int) {
        }
    expect_peer_error(comm, [&] {
        if (fails(comm)) comm.allreduce(x, hvd::sum);
        comm.barrier();
    });
}

// Pages that are gone with the object. Whoever touches them afterwards crashes.
class pages {
public:
    explicit pages(std::size_t floats)
        : bytes_(floats * sizeof(float)),
          memory_(
              mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        require(memory_ != MAP_FAILED, "there is memory");
        for (float& x : tensor()) x = 1;
    }
    pages(const pages&) = delete;
    pages& operator=(const pages&) = delete;
    ~pages() { munmap(memory_, bytes_); }
    std::span<float> tensor() const {
        return {static_cast<float*>(memory_), bytes_ / sizeof(float)};
    }

private:
    std::size_t bytes_;
    void* memory_;
};

// A process that stops this one on request, after some microseconds, and lets it go on later.
class warden {
public:
    warden() {
        const pid_t prisoner = getpid();
        require(pipe(orders_) == 0, "there is a pipe");
        if (fork() != 0) return;
        close(orders_[1]);
        for (useconds_t delay = 0; read(orders_[0], &delay, sizeof delay) == sizeof delay;) {
            usleep(delay);
            kill(prisoner, SIGSTOP);
            usleep(1'500'000);
            kill(prisoner, SIGCONT);
        }
        _exit(0);
    }
    void stop_in(useconds_t delay) {
        require(write(orders_[1], &delay, sizeof delay) == sizeof delay, "the warden hears");
    }

private:
    int orders_[2];
};

// The last rank is stopped while large messages are under way. The others get their error, give
// their tensors back to the system, and go on with MPI while the stopped rank comes back.
void is_stopped(int& argc, char**& argv) {
    warden of_this_process;  // before MPI starts
    hvd::mpi_environment environment(argc, argv);
    static constexpr auto limit = 500ms;  // of the calls, not of making a communicator
    constexpr std::size_t floats = 1 << 20;
    using call = void (*)(communicator&, std::span<float> in, std::span<float> out);
    const call calls[] = {
        [](communicator& comm, std::span<float>, std::span<float> out) {
            comm.allreduce(out, hvd::sum, {.timeout = limit});
        },
        [](communicator& comm, std::span<float>, std::span<float> out) {
            comm.broadcast(out, hvd::root{0}, {.timeout = limit});
        },
        [](communicator& comm, std::span<float>, std::span<float> out) {
            comm.broadcast(out, hvd::root{comm.size() - 1}, {.timeout = limit});
        },
        [](communicator& comm, std::span<float> in, std::span<float> out) {
            comm.allgather(in.first(floats / std::size_t(comm.size())), hvd::into(out),
                           {.timeout = limit});
        },
        [](communicator& comm, std::span<float> in, std::span<float> out) {
            comm.reduce_scatter(in, hvd::sum,
                                hvd::into(out.first(in.size() / std::size_t(comm.size()))),
                                {.timeout = limit});
        },
        [](communicator& comm, std::span<float> in, std::span<float> out) {
            comm.alltoall(in, hvd::into(out), {.timeout = limit});
        },
    };
    useconds_t delay = 1000;
    for (const call f : calls) {
        auto comm = communicator::world(options);
        int rank = 0;
        {
            const pages in(floats), out(floats - floats % std::size_t(comm.size()));
            rank = comm.rank();
            if (fails(comm)) of_this_process.stop_in(delay += 700);
            try {
                for (;;) f(comm, in.tensor().first(out.tensor().size()), out.tensor());
            } catch (const hvd::peer_error& e) {
                say("rank " + std::to_string(rank) + " got peer_error of" + numbers(e.peers()));
            }
        }
        const pages elsewhere(3 * floats);
        if (rank == 0) comm = communicator();
        int one = 1, sum = 0;
        MPI_Request all = MPI_REQUEST_NULL;
        MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &all);
        for (int done = 0; done == 0; usleep(100)) MPI_Test(&all, &done, MPI_STATUS_IGNORE);
        for (int i = 0; i < 100; ++i) MPI_Barrier(MPI_COMM_WORLD);
        for (const float x : elsewhere.tensor()) require(x == 1, "other memory is as it was");
    }
    say("rank went on");
}

// The user starts MPI, at a level of his choice.
void inside(int level, int& argc, char**& argv) {
    int given = -1;
    MPI_Init_thread(&argc, &argv, level, &given);
    {
        hvd::mpi_environment environment(argc, argv);
        require(!environment.owns_mpi(), "the environment does not own the user's MPI");
        auto comm = communicator::world(options);
        work(comm, 10);
        std::vector<int> x(100003, 1), y(10, 1);
        auto first = comm.allreduce_async(x, hvd::sum);
        auto second = comm.allreduce_async(y, hvd::sum);
        while (!first.test()) std::this_thread::yield();
        second.wait();
        require(x.back() == comm.size() && y.back() == comm.size(), "asynchronous sums are right");
        std::atomic<bool> is_over{false};
        auto early = comm.allreduce_async(x, hvd::sum);
        early.then([&](const std::exception_ptr& failure) { is_over = !failure; });
        while (!is_over) {  // nobody waits for it
            comm.progress();
            std::this_thread::yield();
        }
        require(x.back() == comm.size() * comm.size(), "a sum by progress() alone is right");
        auto doomed = comm.duplicate();
        if (comm.rank() == comm.size() - 1) {
            comm.barrier();
            doomed.abort("no data");
        } else {
            auto lost = doomed.allreduce_async(x, hvd::sum);
            comm.barrier();
            while (!doomed.is_given_up()) doomed.progress();  // and throws nothing
            expect_peer_error(doomed, [&] { lost.wait(); });
        }
        comm.barrier();
        auto direct = hvd::communicator<hvd::direct<hvd::mpi>>::world();
        direct.allreduce(y, hvd::sum);
        require(y.back() == comm.size() * comm.size(), "a direct sum is right");
    }
    int finalized = 1;
    MPI_Finalized(&finalized);
    require(finalized == 0, "MPI still runs");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    say("done at level " + std::to_string(given));
}

// MPI ends while communicators live: their calls are refused, wherever the ranks are.
void calls_after_mpi(int& argc, char**& argv) {
    int given = -1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    auto comm = communicator::world(options);
    auto direct = hvd::communicator<hvd::direct<hvd::mpi>>::world();
    std::vector<float> x(1000, 1);
    auto plan = comm.plan_allreduce(x, hvd::sum);
    plan.run();
    direct.allreduce(x, hvd::sum);
    comm.allreduce_async(x, hvd::sum).wait();
    MPI_Finalize();
    const auto is_refused = [](auto call) {
        try {
            call();
        } catch (const hvd::usage_error& e) {
            return std::string(e.what()).find("after MPI_Finalize") != std::string::npos;
        }
        return false;
    };
    require(is_refused([&] { comm.allreduce(x, hvd::sum); }), "an allreduce is refused");
    require(is_refused([&] { comm.barrier(); }), "a barrier is refused");
    require(is_refused([&] { comm.allreduce_async(x, hvd::sum).wait(); }), "so is a queued call");
    require(is_refused([&] { plan.run(); }), "so is a plan");
    require(is_refused([&] { direct.allreduce(x, hvd::sum); }), "so is a direct call");
    require(is_refused([&] { static_cast<void>(comm.split(0)); }),
            "so is the making of a communicator");
    require(is_refused([&] { static_cast<void>(communicator::world(options)); }),
            "so is a new world");
    say("refused after MPI_Finalize");
}

void forks(int& argc, char**& argv) {
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 3);
    if (const pid_t child = fork(); child == 0) {
        try {
            work(comm, 1);
        } catch (const hvd::usage_error& e) {
            say(std::string("the child got usage_error: ") + e.what());
        } catch (...) {
            say("the child got something else");
        }
        _exit(0);
    } else {
        waitpid(child, nullptr, 0);
    }
    work(comm, 10);
}

// A forked child exits normally, and so ends nothing of its parent's.
void forks_and_exits(int&, char**&) {
    hvd::init(options);
    work(hvd::world(), 3);
    if (const pid_t child = fork(); child == 0) {
        std::exit(0);
    } else {
        int status = -1;
        waitpid(child, &status, 0);
        require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended well");
    }
    work(hvd::world(), 10);
    say("the parent went on");
}

// Returns the rank that the launcher sets before MPI starts.
int launched_rank() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
        if (const char* rank = std::getenv(name)) return std::atoi(rank);
    return 0;
}

// Enters namespaces as in a container. Processes have other numbers there. This rank's number is
// used by no other rank, since Open MPI 4.1 crashes if two have the same.
void enter_a_container() {
    const int used = 20 * launched_rank();  // MPI's threads have the next ones
    constexpr int own = CLONE_NEWPID | CLONE_NEWNS;
    if (unshare(own) != 0 && unshare(CLONE_NEWUSER | own) != 0) {
        say("this system gives no namespaces of processes");
        _exit(77);
    }
    const auto go_on_in_child = [] {
        const pid_t child = fork();
        int status = 0;
        if (child == 0) return;
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    };
    go_on_in_child();  // the first process of the namespace, which has to live as long as it does
    // /proc must show the processes by their new numbers, since the sanitizers look there.
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("proc", "/proc", "proc", 0, nullptr) != 0) {
        say("this system lets nobody mount /proc");
        _exit(77);
    }
    for (int i = 0; i < used; ++i) {
        const pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, nullptr, 0);
    }
    go_on_in_child();
}

void is_slow_in_a_container(int& argc, char**& argv) {
    enter_a_container();
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    work(comm, 3);
    if (fails(comm)) std::this_thread::sleep_for(300ms);
    comm.barrier();
    say("all are alive");
}

void uses_no_mpi(int& argc, char**& argv) {
    const auto refused = [](const char* when) {
        try {
            auto comm = communicator::world(options);
        } catch (const hvd::usage_error& e) {
            return say(std::string(when) + " refused: " + e.what());
        }
        throw std::logic_error("a communicator without MPI");
    };
    refused("before MPI");
    {
        hvd::mpi_environment environment(argc, argv);
    }
    refused("after MPI");
    try {
        hvd::mpi_environment again;
    } catch (const hvd::usage_error& e) {
        say(std::string("a second MPI refused: ") + e.what());
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string how = argc > 1 ? argv[1] : "";
    if (argc > 2) options.node_size = std::atoi(argv[2]);
    // If a rank was alone on its node, ranks on other nodes learn of its death only by a timeout.
    if ((options.node_size == 1 && how != "returns_early" && how != "is_stopped") ||
        how == "is_late")
        options.timeout = 2s;
    const std::map<std::string, std::function<void()>> ways = {
        {"throws", [&] { throws(argc, argv); }},
        {"throws_and_catches", [&] { throws_and_catches(argc, argv); }},
        {"returns_early", [&] { returns_early(argc, argv); }},
        {"exits", [&] { exits(argc, argv); }},
        {"is_killed", [&] { is_killed(argc, argv); }},
        {"is_killed_and_not_reaped", [&] { is_killed_and_not_reaped(argc, argv, work); }},
        {"is_killed_when_it_has_all", [&] { is_killed_when_it_has_all(argc, argv); }},
        {"is_killed_in_a_message", [&] { is_killed_and_not_reaped(argc, argv, pass_on); }},
        {"is_outlived", [&] { is_outlived(argc, argv); }},
        {"calls_something_else", [&] { calls_something_else(argc, argv); }},
        {"is_late", [&] { is_late(argc, argv, {}); }},
        {"is_late_for_a_call", [&] { is_late(argc, argv, 2000ms); }},
        {"is_late_in_making", [&] { is_late_in_making(argc, argv); }},
        {"is_busy_in_a_call", [&] { is_busy_in_a_call(argc, argv); }},
        {"is_stopped_in_an_arena", [&] { is_stopped_in_an_arena(argc, argv); }},
        {"is_busy_on_another_node", [&] { is_busy_in_a_call(argc, argv); }},
        {"drops_a_request", [&] { drops_a_request(argc, argv); }},
        {"is_stopped", [&] { is_stopped(argc, argv); }},
        {"inside_single", [&] { inside(MPI_THREAD_SINGLE, argc, argv); }},
        {"inside_funneled", [&] { inside(MPI_THREAD_FUNNELED, argc, argv); }},
        {"inside_serialized", [&] { inside(MPI_THREAD_SERIALIZED, argc, argv); }},
        {"inside_multiple", [&] { inside(MPI_THREAD_MULTIPLE, argc, argv); }},
        {"calls_after_mpi", [&] { calls_after_mpi(argc, argv); }},
        {"forks", [&] { forks(argc, argv); }},
        {"forks_and_exits", [&] { forks_and_exits(argc, argv); }},
        {"is_slow_in_a_container", [&] { is_slow_in_a_container(argc, argv); }},
        {"uses_no_mpi", [&] { uses_no_mpi(argc, argv); }},
    };
    ways.at(how)();
}
