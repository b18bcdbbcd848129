// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Passes a communicator, requests and errors between two units that were compiled with different
// flags.
#include "different_flags.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

void require(bool held, const char* what) {
    if (held) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(EXIT_FAILURE);
}

constexpr int skipped = 77;

}  // namespace

int main() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        std::puts("this processor has no AVX2");
        return skipped;
    }
#endif
    require(layouts() == other_unit::layouts_seen(), "both units see types of the same size");

    std::atomic<int> refused = 0;
    hvd::run_threads(2, [&refused](hvd::communicator<hvd::threads>& comm) {
        std::vector<float> here(1000, float(comm.rank() + 1));
        std::vector<float> there = here;
        std::vector<float> later = here;
        comm.allreduce(here, hvd::sum);
        other_unit::sum(comm, there);
        other_unit::start_sum(comm, later).wait();
        require(here == std::vector<float>(1000, 3.0f), "this unit's sum is right");
        require(here == there, "the other unit's sum is the same");
        require(here == later, "a request of the other unit can be waited for here");
        epoch last{comm.rank() + 7, 0};
        if (comm.rank() == 0) comm.broadcast_object(last);
        else other_unit::broadcast_epoch(comm, last);
        require(last.number == 7, "both units give a type the same name");
        try {
            other_unit::refuse(comm);
        } catch (const hvd::error&) {
            ++refused;
        }
    });
    require(refused == 2, "the other unit's errors are caught here");
    require(other_unit::failure_of_threads() == "rank 0: the disk is full",
            "the other unit's threads throw with their rank");
}
