// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The device path on the real libraries: `on_a_gpu PART`. Without a GPU the program prints hvd's
// error and exits with 77. The emulation runs it, too.

#include <cstdio>
#include <string>

#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

#include "gpu_forked.hpp"

namespace {

// Returns 0 if there is a GPU, 77 if there is none and hvd says so, and 1 if it says something
// else.
int look_for_a_gpu() {
    int result = 0;
    hvd::run_threads(1, [&](hvd::communicator<hvd::threads>& world) {
        try {
            hvd::pin_device(world);
            hvd::communicator<hvd::nccl> gpus(world);
            gpus.barrier();
        } catch (const hvd::cuda_error& e) {
            const bool said = std::string(e.what()).find("no usable GPU or driver was found") !=
                              std::string::npos;
            std::printf("%s%s\n", said ? "" : "without a GPU hvd says: ", e.what());
            result = said ? 77 : 1;
        }
    });
    return result;
}

int end_of(bool (*part)()) {
    try {
        return part() ? 0 : 1;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}

constexpr struct {
    const char* name;
    bool (*run)();
} parts[] = {{"suite", on_a_gpu::suite},
             {"policies", on_a_gpu::policies},
             {"elastic", on_a_gpu::elastic},
             {"times", on_a_gpu::times},
             {"kernels", on_a_gpu::kernels}};

}  // namespace

int main(int argc, char** argv) {
    using device_test::in_a_process, device_test::status_of;
    if (const int found = status_of(in_a_process(look_for_a_gpu)); found != 0) return found;
    for (const auto& part : parts)
        if (argc == 2 && std::string(argv[1]) == part.name) return end_of(part.run);
    std::fprintf(stderr, "on_a_gpu PART: suite, policies, elastic, times or kernels\n");
    return 2;
}
