// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <hvd/engine.hpp>
#include <hvd/hvd.hpp>

// Ranks submit tensors to an engine in random order, and the last one is killed or stopped at a
// random moment. launch.py knows the expected result. The arguments are the scenario and, if given,
// the number of ranks taken as one node.

namespace {

using namespace std::chrono_literals;
using communicator = hvd::communicator<hvd::mpi>;

// Writes a line by one call, since ranks write to the same place.
void say(const std::string& what) {
    const std::string line = what + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

void train(hvd::engine<hvd::mpi>& engine, int seed) {
    constexpr int tensors = 40;
    std::mt19937 random(unsigned(seed * 100 + engine.rank()));
    std::vector<std::vector<float>> values(tensors);
    std::vector<int> order(tensors);
    for (int i = 0; i < tensors; ++i) order[std::size_t(i)] = i;
    for (;;) {
        std::shuffle(order.begin(), order.end(), random);
        std::vector<hvd::request> requests;
        for (const int i : order) {
            auto& x = values[std::size_t(i)];
            x.assign(std::size_t(i % 5 == 0 ? 100'000 : 1 + 50 * i), float(engine.rank() + i));
            requests.push_back(engine.allreduce("t" + std::to_string(i), x, hvd::sum));
        }
        for (hvd::request& r : requests) r.wait();
        const int n = engine.size();
        for (int i = 0; i < tensors; ++i)
            if (values[std::size_t(i)].back() != float(n * (n - 1) / 2 + n * i)) std::abort();
    }
}

// The error of the rank itself names it in the text alone. A rank on its node may be late, too.
bool names(const hvd::peer_error& e, int rank) {
    const std::regex text("ranks? ([0-9]+, )*" + std::to_string(rank) + "\\b");
    return std::find(e.peers().begin(), e.peers().end(), rank) != e.peers().end() ||
           std::regex_search(e.what(), text);
}

// Trains until a rank is gone, and checks the errors. `made` is called when all ranks have an
// engine.
void expect_the_end(communicator& comm, int seed, const std::function<void()>& made) {
    const int last = comm.size() - 1;
    std::chrono::steady_clock::time_point begun;
    {
        hvd::engine<hvd::mpi> engine{comm, {.stall_abort = 2s}};
        try {
            engine.barrier().wait();
            made();
            train(engine, seed);
        } catch (const hvd::peer_error& e) {
            say("rank " + std::to_string(comm.rank()) + (names(e, last) ? " named " : " missed ") +
                std::to_string(last) + ": " + e.what());
        }
        try {
            engine.barrier().wait();
        } catch (const hvd::peer_error& e) {
            say("rank " + std::to_string(comm.rank()) + " is refused: " + e.what());
        }
        begun = std::chrono::steady_clock::now();
    }
    const auto spent = std::chrono::steady_clock::now() - begun;
    say(spent < 10s ? "its engine ended" : "its engine ended late");
}

std::chrono::microseconds moment(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    return std::chrono::microseconds(random() % 150'000);
}

// The launcher knows the parents alone, so that it ends nobody before all have seen the death.
void is_killed(int& argc, char**& argv, const hvd::communicator_options& options, int seed) {
    if (const pid_t child = fork(); child != 0) {
        siginfo_t info{};
        waitid(P_PID, id_t(child), &info, WEXITED | WNOWAIT);
        std::this_thread::sleep_for(7s);
        _exit(1);
    }
    signal(SIGTERM, SIG_IGN);  // the launcher sends it when it hears of the death all the same
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    expect_the_end(comm, seed, [&] {
        if (comm.rank() == comm.size() - 1)
            std::thread([seed] {
                std::this_thread::sleep_for(moment(seed));
                kill(getpid(), SIGKILL);
            }).detach();
    });
    std::_Exit(0);
}

// A stopped rank comes back, and gets an error too.
void is_stopped(int& argc, char**& argv, const hvd::communicator_options& options, int seed) {
    int start[2];
    if (pipe(start) != 0) std::abort();
    const pid_t prisoner = getpid();
    const pid_t warden = fork();  // before MPI starts
    if (warden == 0) {
        close(start[1]);
        char ignored;
        if (read(start[0], &ignored, 1) == 1) {
            std::this_thread::sleep_for(moment(seed));
            kill(prisoner, SIGSTOP);
            std::this_thread::sleep_for(6s);
            kill(prisoner, SIGCONT);
        }
        _exit(0);
    }
    close(start[0]);
    hvd::mpi_environment environment(argc, argv);
    auto comm = communicator::world(options);
    expect_the_end(comm, seed, [&] {
        if (comm.rank() == comm.size() - 1 && write(start[1], "!", 1) != 1) std::abort();
    });
    close(start[1]);
    waitpid(warden, nullptr, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    say("rank went on");
}

}  // namespace

int main(int argc, char** argv) {
    const std::string how = argc > 1 ? argv[1] : "";
    const char* const chosen = std::getenv("HVD_TEST_SEED");
    const int seed = chosen != nullptr ? std::atoi(chosen) : 1;
    hvd::communicator_options options{.timeout =
                                          3s};  // a busy machine lets a rank wait for a second
    if (argc > 2) options.node_size = std::atoi(argv[2]);
    (how == "engine_is_killed" ? is_killed : is_stopped)(argc, argv, options, seed);
}
