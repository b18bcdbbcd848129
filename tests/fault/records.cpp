// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Ranks that make a hundred calls, one of which is held in its 40th: records.py looks at them from
// outside. records MODE RANK [RANKS]; with RANKS they are threads.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

#include <hvd/engine.hpp>
#ifdef HVD_TEST_BACKEND_MPI
#include <hvd/mpi.hpp>
#else
#include <hvd/tcp.hpp>
#include <hvd/threads.hpp>
#endif

namespace {

constexpr int held_call = 40, calls = 100;

template <class Backend>
class worker {
public:
    worker(hvd::communicator<Backend>& world, std::string_view mode, int held)
        : world_(world), mode_(mode), is_held_(world.rank() == held) {}

    void run() {
        std::printf("rank %d is process %d\n", world_.rank(), int(getpid()));
        std::fflush(stdout);
        if (mode_ == "engine") with_engine();
        else if (mode_ == "subset") with(world_.split(0, world_.rank()));
        else with(world_);
    }

private:
    // A process is stopped by itself. A thread waits for the end of the process.
    void hold() const {
        if constexpr (std::is_same_v<Backend, hvd::threads>)
            std::this_thread::sleep_for(std::chrono::hours(1));
        else std::raise(SIGSTOP);
    }

    template <class Comm>
    void with(Comm&& comm) {
        std::vector<float> x(256, 1);
        for (int i = 1; i <= calls; ++i) {
            const std::string name = "g" + std::to_string(i);
            const bool is_here = is_held_ && i == held_call;
            if (is_here && mode_ != "inside") hold();
            std::atomic<bool> holds{is_here};
            if (mode_ != "inside") comm.allreduce(x, hvd::sum, {.name = name});
            else
                comm.allreduce(x, hvd::custom([&](float a, float b) {
                                   if (holds.exchange(false)) hold();
                                   return a + b;
                               }),
                               {.name = name});
        }
    }

    void with_engine() {
        hvd::engine engine{world_};
        std::vector<float> x(256, 1);
        for (int i = 1; i <= calls; ++i) {
            if (is_held_ && i == held_call) hold();
            engine.allreduce("g" + std::to_string(i), x, hvd::sum).wait();
        }
    }

    hvd::communicator<Backend>& world_;
    std::string_view mode_;
    bool is_held_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const std::string_view mode = argv[1];
    const int held = std::atoi(argv[2]);
#ifdef HVD_TEST_BACKEND_MPI
    hvd::mpi_environment env{argc, argv};
    auto world = hvd::communicator<hvd::mpi>::world();
    worker(world, mode, held).run();
#else
    if (argc > 3)
        hvd::run_threads(std::atoi(argv[3]), [&](hvd::communicator<hvd::threads>& world) {
            worker(world, mode, held).run();
        });
    else {
        auto world = hvd::communicator<hvd::tcp>::world();
        worker(world, mode, held).run();
    }
#endif
}
