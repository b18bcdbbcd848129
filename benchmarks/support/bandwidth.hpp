// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <vector>

#include <hvd/kernel/not_finite.hpp>

#include "measure.hpp"

namespace bench {

/// A loop over memory, as in STREAM. It counts the bytes that it requests; a cache that reads a
/// line before it is written moves more.
struct memory_kernel {
    const char* name;
    int arrays;  // number of arrays, each read or written once
    void (*run)(float* a, const float* b, const float* c, std::size_t count);
};

inline constexpr memory_kernel memory_kernels[] = {
    {"copy", 2,
     [](float* a, const float* b, const float*, std::size_t n) {
         std::memcpy(a, b, n * sizeof(float));
     }},
    {"scale", 2,
     [](float* a, const float* b, const float*, std::size_t n) {
         for (std::size_t i = 0; i < n; ++i) a[i] = 3.0f * b[i];
     }},
    {"add", 3,
     [](float* a, const float* b, const float* c, std::size_t n) {
         for (std::size_t i = 0; i < n; ++i) a[i] = b[i] + c[i];
     }},
    {"triad", 3,
     [](float* a, const float* b, const float* c, std::size_t n) {
         for (std::size_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
     }},
    // The look of .check_finite at an input.
    {"check", 1,
     [](float* a, const float* b, const float*, std::size_t n) {
         const std::byte* const data = reinterpret_cast<const std::byte*>(b);
         a[0] = float(hvd::detail::first_not_finite(hvd::dtype::float32, data, n));
     }},
};

/// Returns the bytes per second that all ranks read and write together. Each rank has its own
/// arrays of `bytes` each. Ranks above `active` rest. **Collective**.
template <class Comm>
double bandwidth(Comm& comm, const memory_kernel& kernel, std::size_t bytes, int active,
                 double seconds) {
    const std::size_t n = bytes / sizeof(float);
    const bool working = comm.rank() < active;
    std::vector<float> a(working ? n : 0), b(a.size(), 1.0f), c(a.size(), 2.0f);
    const candidate pass{kernel.name, [&] {
                             if (working) kernel.run(a.data(), b.data(), c.data(), n);
                         }};
    pass.call();
    std::vector<double> rates;
    const auto begin = clock::now();
    bool more = true;
    while (more) {
        comm.barrier();
        const auto start = clock::now();
        pass.call();
        // the sum over the ranks, each over its own time, since all work throughout
        double rate = 0;
        for (const double mine :
             comm.allgather(working ? double(kernel.arrays) * double(bytes) / seconds_since(start)
                                    : 0.0)
                 .values)
            rate += mine;
        rates.push_back(rate);
        more = slowest(comm, seconds_since(begin)) < seconds || rates.size() < 5;
    }
    return median(std::move(rates));
}

/// The limit for results: the bytes per second that copying in all ranks at once reads and writes.
template <class Comm>
double copy_limit(Comm& comm, std::size_t bytes = std::size_t(64) << 20, double seconds = 0.5) {
    return bandwidth(comm, memory_kernels[0], bytes, comm.size(), seconds);
}

}  // namespace bench
