// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// One rank of a job of hvd::tcp that joins and does little more: join.py starts all of them.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <hvd/elastic.hpp>
#include <hvd/tcp.hpp>
#include <nlohmann/json.hpp>

namespace {

using seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

// Bytes of this process that are in memory and no other process shares.
double own_memory() {
    double kilobytes = 0;
    char line[256];
    std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r");
    while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr) {
        double here = 0;
        if (std::sscanf(line, "Private_Dirty: %lf", &here) == 1) kilobytes += here;
    }
    if (file != nullptr) std::fclose(file);
    return kilobytes * 1024;
}

// The sockets that this process has open.
int sockets() {
    int found = 0;
    DIR* const folder = opendir("/proc/self/fd");
    while (const dirent* const entry = folder != nullptr ? readdir(folder) : nullptr) {
        char target[64] = {};
        const std::string path = fmt::format("/proc/self/fd/{}", entry->d_name);
        if (readlink(path.c_str(), target, sizeof target - 1) > 0)
            found += std::string(target).starts_with("socket:");
    }
    if (folder != nullptr) closedir(folder);
    return found;
}

// The median of what an allreduce takes.
double time_of(hvd::communicator<hvd::tcp>& comm, std::size_t bytes, int rounds) {
    std::vector<float> data(std::max<std::size_t>(1, bytes / sizeof(float)), 1);
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
        comm.barrier();
        const auto begin = steady_clock::now();
        comm.allreduce(data, hvd::max);
        times.push_back(seconds(steady_clock::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[std::size_t(rounds / 2)];
}

// An elastic job whose last ranks die at once after some steps. The others tell how long it takes
// them from then to the first commit without those.
void lose(int dying) {
    constexpr int steps_before = 10, steps = 15;
    const auto begin = steady_clock::now();
    int done = 0, size = 0;
    double joined = 0, recovered = 0;
    auto last = begin;
    hvd::elastic::state state(done);
    hvd::elastic::run(state, [&](auto& comm) {
        if (size == 0) {
            size = comm.size();
            joined = seconds(steady_clock::now() - begin).count();
        }
        const bool dies = comm.size() == size && comm.rank() >= size - dying;
        while (done < steps) {
            if (done == steps_before && comm.size() == size) {
                std::this_thread::sleep_for(seconds(3));  // until all have ended the last commit
                if (dies) raise(SIGKILL);
                last = steady_clock::now();
            }
            std::vector<float> data(256, 1);
            comm.allreduce(data, hvd::sum);
            ++done;
            state.commit();
            if (comm.size() < size && recovered == 0)
                recovered = seconds(steady_clock::now() - last).count();
        }
        std::vector<double> longest{joined, recovered};
        comm.allreduce(longest, hvd::max);
        if (comm.rank() == 0)
            fmt::print("{}\n", nlohmann::json{{"ranks", size},
                                              {"left", comm.size()},
                                              {"joined", longest[0]},
                                              {"recovered", longest[1]}}
                                   .dump());
    });
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::size_t> sizes;
    int rounds = 15, dying = 0;
    CLI::App app("A rank that joins a job, and no more unless --bytes is given.", "join");
    app.add_option("--bytes", sizes, "times an allreduce of each")
        ->transform(CLI::AsSizeValue(false));
    app.add_option("--rounds", rounds, "of each")->check(CLI::PositiveNumber);
    app.add_option("--lose", dying, "the last ranks of an elastic job die: so many");
    CLI11_PARSE(app, argc, argv);
    if (dying > 0) {
        lose(dying);
        return 0;
    }
    const auto begin = steady_clock::now();
    auto comm = hvd::communicator<hvd::tcp>::world();
    const double joined = seconds(steady_clock::now() - begin).count();
    std::vector<double> mine{joined, own_memory(), double(sockets())};
    comm.allreduce(mine, hvd::max);
    nlohmann::json rows = nlohmann::json::array();
    for (const std::size_t bytes : sizes) {
        std::vector<double> took{time_of(comm, bytes, rounds)};
        comm.allreduce(took, hvd::max);
        rows.push_back({{"bytes", bytes}, {"seconds", took[0]}});
    }
    if (comm.rank() == 0)
        fmt::print("{}\n", nlohmann::json{{"ranks", comm.size()},
                                          {"joined", mine[0]},
                                          {"memory", mine[1]},
                                          {"sockets", mine[2]},
                                          {"rows", rows}}
                               .dump());
    return 0;
}
