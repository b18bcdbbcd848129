// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <vector>

#include <time.h>

#include <hvd/data.hpp>

#if defined(HVD_TEST_OPENSSL)  // of a service whose connections have TLS
#include <hvd/interop/openssl_data_service.hpp>
#endif

// The pipeline of tests/data/service_worker.cpp and service_trainer.cpp. A sample is made of random
// numbers that belong to it, and each batch takes a moment.
struct numbered {
    std::size_t size() const { return 4000; }
    int read(std::size_t i) const { return int(i); }
};

// Those of the stage, which a test may want.
inline std::size_t stage_threads() {
    const char* const threads = std::getenv("HVD_TEST_STAGE_THREADS");
    return threads == nullptr ? 0 : std::size_t(std::atoi(threads));
}

inline auto service_pipeline() {
    return hvd::data::from(numbered{}) |
           hvd::data::map(
               [](int i, hvd::data::random& draws) {
                   const timespec moment{0, 100'000};
                   nanosleep(&moment, nullptr);
                   std::vector<int> sample(100, i);  // a batch of these goes by shared memory
                   sample.back() = int(draws.below(1000));
                   return sample;
               },
               {.threads = stage_threads()}) |
           // g++ gives `auto` another number in each of the programs
           hvd::data::filter([](const auto& sample) { return !sample.empty(); }) |
           hvd::data::shuffle({.seed = 9}) | hvd::data::batch(20, hvd::data::concatenate);
}
