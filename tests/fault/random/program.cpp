// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <execinfo.h>

#include <cstdio>
#include <thread>

#if defined(HVD_TEST_BACKEND_TCP)
#include <hvd/tcp.hpp>
#endif

#include "player.hpp"

// Plays one run of plan.hpp: `program PLACE SEED FOLDER`, on one rank of MPI or of TCP, or on all
// ranks if these are threads. Without a folder it prints the plan. drive.py makes the folder and
// judges.

namespace {

using namespace faults;

int failures_go_to = 2;

void print_stack() {
    void* frames[60];
    const int n = backtrace(frames, 60);
    backtrace_symbols_fd(frames, n, failures_go_to);
}

// drive.py asks by SIGUSR2 where a program hangs. Each thread prints its stack.
void install_handlers() {
    void* first[1];
    backtrace(first, 1);  // it loads a library, which a handler can't
    struct sigaction action{};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) { print_stack(); };
    sigaction(SIGUSR2, &action, nullptr);
    action.sa_flags = int(SA_RESETHAND);
    action.sa_handler = [](int number) {
        constexpr char text[] = "FAIL a crash:\n";
        if (write(failures_go_to, text, sizeof text - 1) > 0) print_stack();
        raise(number);
    };
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL})
        sigaction(number, &action, nullptr);
}

int play_on_threads([[maybe_unused]] const plan& all, [[maybe_unused]] const std::string& folder) {
#if !defined(HVD_TEST_BACKEND_MPI) && !defined(HVD_TEST_BACKEND_TCP)
    const board shown("");
    const ticker ticks(shown, 0, all.ranks);
    hvd::communicator_options options;
    hvd::thread_group first(all.ranks, player<hvd::threads>::options_of(all, all.timeout)),
        second(all.ranks, player<hvd::threads>::options_of(all, player<hvd::threads>::patience));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < all.ranks; ++rank)
        threads.emplace_back([&, rank] {
            report word(folder, rank);
            failures_go_to = word.file();
            using backend = hvd::observed<hvd::threads, delaying_observer>;
            hvd::thread_group* next = &first;
            player<hvd::threads>(all, shown, word, rank, [&](const auto&) {
                return std::exchange(next, &second)->communicator<backend>(rank);
            }).play();
        });
    for (std::thread& t : threads) t.join();
#endif
    return 0;
}

// This process is one rank.
template <class B>
void play_as(int rank, const plan& all, const std::string& folder) {
    report word(folder, rank);
    failures_go_to = word.file();
    const board shown(folder + "/board");
    shown.of(rank).process = getpid();
    const ticker ticks(shown, rank, rank + 1);
    using communicator = typename player<B>::communicator;
    player<B>(all, shown, word, rank, [](const auto& options) {
        return communicator::world(options);
    }).play();
}

int play_on_processes([[maybe_unused]] int& argc, [[maybe_unused]] char**& argv,
                      [[maybe_unused]] const plan& all,
                      [[maybe_unused]] const std::string& folder) {
#if defined(HVD_TEST_BACKEND_MPI)
    const hvd::mpi_environment environment(argc, argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    play_as<hvd::mpi>(rank, all, folder);
    // MPI_Finalize waits for all ranks.
    if (all.ends_a_process()) _exit(0);
#elif defined(HVD_TEST_BACKEND_TCP)
    play_as<hvd::tcp>(std::atoi(std::getenv("HVD_RANK")), all, folder);
#endif
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    int where = 0;
    while (where < int(std::size(place_names)) && std::string(argv[1]) != place_names[where])
        ++where;
    if (where == int(std::size(place_names))) return 2;
    const char* const patience = std::getenv("HVD_FAULT_PATIENCE");
    const plan all(std::strtoull(argv[2], nullptr, 10), place(where),
                   patience != nullptr ? std::atoi(patience) : 1);
    if (argc < 4) {
        std::string hosts;
        for (const int n : all.hosts) hosts += " " + std::to_string(n);
        std::printf("%d%s\n%s", all.ranks, hosts.c_str(), all.text().c_str());
        return 0;
    }
    install_handlers();
    return all.place == place::threads ? play_on_threads(all, argv[3])
                                       : play_on_processes(argc, argv, all, argv[3]);
}
