// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A program of an engine that is compiled without RTTI.
#include "every_call.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#if defined(__GXX_RTTI) && !defined(HVD_TEST_COMPILES_ONLY)
#error "compile it with -fno-rtti"
#endif

namespace {

void require(bool held, const char* what) {
    if (held) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(EXIT_FAILURE);
}

std::string text_of_failure(int ranks) {
    try {
        hvd::run_threads(ranks, [](hvd::communicator<hvd::threads>& comm) {
            if (comm.rank() == 0) throw std::runtime_error("the disk is full");
        });
    } catch (const std::runtime_error& e) {
        return e.what();
    }
    return {};
}

}  // namespace

int main() {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        std::atomic<int> right{0}, refused{0};
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& comm) {
            right += every_call::all_of(comm);
            const std::string text = comm.rank() == 0
                                         ? every_call::refused_object(comm, every_call::epoch{})
                                         : every_call::refused_object(comm, std::string());
            refused += text.find("every_call::epoch") != std::string::npos &&
                       text.find("string") != std::string::npos;
        });
        require(right == ranks, "each collective works");
        require(refused == (ranks > 1 ? ranks : 0), "ranks that hand in two types are told which");
        require(text_of_failure(ranks) == "rank 0: the disk is full",
                "an exception of the standard has its rank in front");
    }
}
