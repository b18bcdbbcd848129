// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the machine's memory: the bytes per second that copying, scaling, adding, STREAM's triad
// and the look for numbers that are not finite read and write, on each number of ranks at once. The
// last copy is the limit that other benchmarks compare with.
#include "support/bandwidth.hpp"
#include "support/program.hpp"

int main(int argc, char** argv) {
    bench::options o;
    std::size_t bytes = std::size_t(64) << 20;
    CLI::App app(
        "Bandwidth of memory: bytes read and written a second, by one rank and by all together.",
        "memory");
    bench::add_options(app, o);
    app.add_option("--bytes", bytes, "size of an array, 4 or more: well beyond the caches")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::size_t(4), std::size_t(1) << 40));

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        bench::report out(comm, "memory", o);
        out.print("{:>8} {:>12} {:>6} {:>10} {:>14}\n", "kernel", "array (B)", "ranks", "GB/s",
                  "GB/s per rank");
        for (const auto& kernel : bench::memory_kernels)
            for (int active = 1; active <= comm.size(); ++active) {
                const double rate =
                    bench::bandwidth(comm, kernel, bytes, active, o.work.seconds) / 1e9;
                out.print("{:>8} {:>12} {:>6} {:>10.2f} {:>14.2f}\n", kernel.name, bytes, active,
                          rate, rate / active);
                out.add({{"kernel", kernel.name},
                         {"size", bytes},
                         {"ranks", active},
                         {"bandwidth", rate}});
            }
        out.write();
    });
}
