// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// A program that platforms.py compiles for other systems and processors: ranks as threads, or, with
// `tcp`, this process as a rank. Its output is the same everywhere.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>
#include <vector>

#include <hvd/tcp.hpp>
#include <hvd/threads.hpp>
#include <hvd/train.hpp>

namespace {

// Large integers that differ between the ranks.
std::vector<std::int64_t> values_of(int rank) {
    std::uint64_t state = 0x9e3779b97f4a7c15u * std::uint64_t(rank + 1);
    std::vector<std::int64_t> values(1000);
    for (std::int64_t& x : values)
        x = std::int64_t(state = state * 6364136223846793005u + 1442695040888963407u);
    values[0] = std::numeric_limits<std::int64_t>::max();
    values[1] = std::numeric_limits<std::int64_t>::min();
    return values;
}

template <class Comm>
void reduce_and_print(Comm& comm) {
    std::uint64_t digest = 0xcbf29ce484222325u;
    for (const hvd::rounding mode :
         {hvd::rounding::toward_zero, hvd::rounding::nearest, hvd::rounding::down})
        for (const double scale : {1.0, 1.0 / 3, -1e-9, 2.5}) {
            std::vector<std::int64_t> values = values_of(comm.rank());
            comm.allreduce(values, hvd::average(mode), {.prescale = scale});
            for (const std::int64_t x : values)
                digest = (digest ^ std::uint64_t(x)) * 0x100000001b3u;
        }
    std::vector<hvd::metric> metrics{{"loss", double(comm.rank())}};
    hvd::average_metrics(comm, metrics, 1);
    if (comm.rank() == 0)
        std::printf("%d ranks, digest %llx, mean %g\n", comm.size(),
                    static_cast<unsigned long long>(digest), metrics[0].mean);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::string_view(argv[1]) == "tcp") {
        auto world = hvd::communicator<hvd::tcp>::world();
        reduce_and_print(world);
    } else {
        hvd::run_threads(3, [](auto& comm) { reduce_and_print(comm); });
    }
}
