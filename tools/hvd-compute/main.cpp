// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Starts the workers and dispatchers of a data service, as a rank of a job:
// hvdrun -np 4 hvd-compute compute.json -- ./worker

#include <cstdio>
#include <exception>
#include <memory>

#include "options.hpp"
#include "service.hpp"
#include "worker_process.hpp"

namespace hvd_compute {
namespace {

// Returns the worker's exit code, or 0 if a signal has asked this process to end.
int run(const options& o) {
    service mine(o);
    auto worker = std::make_unique<worker_process>(o);
    while (!is_asked_to_end()) {
        if (const auto code = worker->exit_code()) {
            hvd::detail::sleep_for(50 * hvd::detail::tuning::millisecond);
            if (is_asked_to_end()) break;  // one signal may go to the whole group of processes
            std::fprintf(stderr, "hvd-compute: the worker of rank %d ended with %d\n", o.rank,
                         *code);
            return *code;
        }
        if (mine.has_another_file()) worker = std::make_unique<worker_process>(o);
        mine.tell();
        hvd::detail::sleep_for(50 * hvd::detail::tuning::millisecond);
    }
    worker->end();
    return 0;
}

}  // namespace
}  // namespace hvd_compute

int main(int argc, char** argv) {
    hvd_compute::note_signals();
    try {
        return hvd_compute::run(hvd_compute::read_options(argc, argv));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "hvd-compute: %s\n", e.what());
        return 1;
    }
}
