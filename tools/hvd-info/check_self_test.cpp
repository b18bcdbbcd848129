// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A second of work: right sums by threads and by processes, and how fast they come.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hvd/tcp.hpp>
#include <hvd/threads.hpp>

#include "affinity.hpp"
#include "checks.hpp"
#include "child.hpp"

namespace hvd_info {
namespace {

using namespace std::chrono_literals;

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

std::string text_of(const char* format, double a, double b = 0, double c = 0) {
    char text[128];
    std::snprintf(text, sizeof text, format, a, b, c);
    return text;
}

// The time of one call of f in seconds, which a tenth of the calls keep to: other programs may take
// the cores meanwhile. All ranks run it as often.
template <class F>
double time_of(int calls, F f) {
    std::vector<double> times;
    for (int i = 0; i < calls; ++i) {
        const double begin = seconds();
        f();
        times.push_back(seconds() - begin);
    }
    std::nth_element(times.begin(), times.begin() + calls / 10, times.end());
    return times[std::size_t(calls) / 10];
}

// Each rank adds rank + 1 at even and 1 at odd places.
template <class Communicator>
bool adds_right(Communicator& comm, std::size_t count) {
    std::vector<float> values(count, 1);
    for (std::size_t i = 0; i < count; i += 2) values[i] = float(comm.rank() + 1);
    comm.allreduce(values, hvd::sum);
    const float n = float(comm.size());
    bool is_right = true;
    for (std::size_t i = 0; i < count; ++i)
        is_right = is_right && values[i] == (i % 2 == 0 ? n * (n + 1) / 2 : n);
    return is_right;
}

struct measured {
    bool is_right = false;
    double latency = 0, allreduce = 0, copy = 0;  // in seconds
};

constexpr std::size_t many = std::size_t(4) << 20;  // elements, 16 MiB

measured measure_threads(int ranks) {
    measured result;
    std::vector<char> right(std::size_t(ranks), 0);
    hvd::run_threads(
        ranks,
        [&](auto& comm) {
            right[std::size_t(comm.rank())] = adds_right(comm, 100'003) && adds_right(comm, 3);
            float one = 1;
            const double latency = time_of(1001, [&] { comm.allreduce(one = 1, hvd::sum); });
            std::vector<float> values(many, 1), other(many);
            const double allreduce = time_of(9, [&] { comm.allreduce(values, hvd::sum); });
            const double copy = time_of(9, [&] {
                comm.barrier();
                std::memcpy(other.data(), values.data(), many * sizeof(float));
                asm volatile("" : : "r"(other.data()) : "memory");  // the copy is needed
            });
            if (comm.rank() == 0) result = {false, latency, allreduce, copy};
        },
        {.timeout = 20s});
    result.is_right = std::all_of(right.begin(), right.end(), [](char c) { return c != 0; });
    return result;
}

void judge_threads(check_report& report, int ranks) {
    try {
        const measured m = measure_threads(ranks);
        const double bytes = double(many * sizeof(float));
        report.add("threads",
                   std::to_string(ranks) + " ranks, sums are " + (m.is_right ? "right" : "WRONG"));
        report.add("latency", text_of("%.2f us, allreduce of one float", m.latency * 1e6));
        report.add(
            "bandwidth",
            text_of("%.1f GB/s, allreduce of 16 MiB: %.0f %% of the %.1f GB/s at which all "
                    "ranks copy at once",
                    bytes / m.allreduce / 1e9, 100 * m.copy / m.allreduce, bytes / m.copy / 1e9));
        if (!m.is_right)
            report.wrong("hvd::threads computes wrong sums here",
                         "report it with the output of hvd-info --json; look for failing memory");
    } catch (const std::exception& error) {
        report.wrong(std::string("hvd::threads fails: ") + error.what(),
                     "the checks above may say why; otherwise report it");
    }
}

// A port that is free now.
int free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    ::bind(socket, reinterpret_cast<const sockaddr*>(&at), size);
    ::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size);
    ::close(socket);
    return ntohs(at.sin_port);
}

// One of two ranks. Rank 0 prints the latency of a call.
int run_rank(int rank, int port) {
    hvd::tcp_options own;
    own.rank = rank;
    own.size = 2;
    own.rendezvous = "127.0.0.1:" + std::to_string(port);
    own.secret = std::string(64, '5');  // both are forks of one process
    own.start_timeout = 10s;
    auto world = hvd::communicator<hvd::tcp>::world(own, {.timeout = 10s});
    if (!adds_right(world, 100'003)) return 2;
    float one = 1;
    const double latency = time_of(301, [&] { world.allreduce(one = 1, hvd::sum); });
    if (rank == 0) std::printf("%.9f\n", latency);
    return 0;
}

int run_ranks(int port) {
    const pid_t other = ::fork();
    if (other == 0) {
        int code = 1;
        try {
            code = run_rank(1, port);
        } catch (const std::exception&) {
        }
        ::_exit(code);  // rank 0 has the error, too
    }
    const int code = run_rank(0, port);
    int status = 0;
    ::waitpid(other, &status, 0);
    return std::max(code, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// Two processes of this host find each other by the loopback address, and share memory.
void judge_processes(check_report& report) {
    const int port = free_port();
    const child_end end = in_child([&] { return run_ranks(port); }, 25);
    if (end.is_good()) {
        report.add("processes", "2 ranks of hvd::tcp, sums are right");
        report.add("their latency", text_of("%.2f us", std::atof(end.output.c_str()) * 1e6));
        return;
    }
    report.add("processes", "2 ranks of hvd::tcp, sums are " +
                                std::string(end.code == 2 ? "WRONG" : "not there"));
    report.wrong("two processes of this host cannot work together: " + end.reason(),
                 "the loopback interface must be up (ip link set lo up), and memory left; "
                 "otherwise report it with the output of hvd-info --json");
}

}  // namespace

check_report check_self_test(const context& c) {
    check_report report{"self-test", {}, {}};
    if (c.place.local_rank > 0) return report;  // rank 0 of the host does it
    judge_processes(report);
    judge_threads(report, int(std::clamp<std::size_t>(allowed_cores().size(), 2, 4)));
    return report;
}

}  // namespace hvd_info
