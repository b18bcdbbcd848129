// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures a step of an optimizer, the same with its commit, and a commit that asks all ranks by
// itself: hvdrun -np 2 --min-np 2 elastic_commit [ELEMENTS] [ROUNDS]. All take turns.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <hvd/elastic.hpp>

namespace {

constexpr int steps_of_a_round = 10;

double median(std::vector<double> times) {
    const auto middle = times.begin() + std::ptrdiff_t(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

template <class F>
double microseconds_of(F&& step) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps_of_a_round; ++i) step();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    return took.count() / steps_of_a_round;
}

}  // namespace

int main(int argc, char** argv) {
    const auto elements = std::size_t(argc > 1 ? std::stoul(argv[1]) : 1000);
    const int rounds = argc > 2 ? std::stoi(argv[2]) : 300;
    std::vector<float> weights(elements), gradient(elements, 1), bias(8), bias_gradient(8, 1);
    hvd::elastic::state state{weights, bias};
    hvd::elastic::run(state, [&](auto& comm) {
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{0.01f});
        optimizer.register_parameter("weights", weights, gradient);
        optimizer.register_parameter("bias", bias, bias_gradient);
        std::array<std::vector<double>, 3> times;
        for (int i = 0; i < rounds; ++i) {
            comm.barrier();
            times[0].push_back(microseconds_of([&] { optimizer.step(); }));
            comm.barrier();
            times[1].push_back(microseconds_of([&] {
                optimizer.step();
                state.commit();
            }));
            comm.barrier();
            times[2].push_back(microseconds_of([&] { state.commit(); }));
        }
        if (comm.rank() != 0) return;
        std::printf("%d ranks, %zu floats: a step %.1f us, with its commit %.1f us, ", comm.size(),
                    elements + bias.size(), median(times[0]), median(times[1]));
        std::printf("a commit that asks by itself %.1f us\n", median(times[2]));
    });
}
