// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A small training that records a timeline: RANKS FILE STEPS. With 0 steps it never ends, and
// prints a line once all kinds of events have been recorded.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <hvd/engine.hpp>
#include <hvd/timeline.hpp>

namespace {

using timed = hvd::observed<hvd::threads, hvd::timeline>;

void train(hvd::communicator<timed>& world, const std::string& file, int steps) {
    hvd::start_timeline(world, {.file = file});
    hvd::engine engine{world};
    std::vector<std::vector<float>> gradients;
    const std::size_t sizes[] = {200'000, 64, 80'000, 512, 1'000};
    for (const std::size_t n : sizes) gradients.emplace_back(n, 1.F);
    float loss = 1;
    std::vector<float> strided(2'000, 1), weights(50'000, 1);
    auto plan = world.plan_allreduce(weights, hvd::sum, {.name = "planned"});
    for (int step = 0; steps == 0 || step < steps; ++step) {
        std::vector<hvd::request> requests;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            // Ranks have the gradients in another order each.
            const std::size_t k = (i + std::size_t(world.rank())) % gradients.size();
            requests.push_back(engine.allreduce("layer \"" + std::to_string(k) + "\"", gradients[k],
                                                hvd::average));
        }
        auto queued =
            world.allreduce_async(hvd::view(strided.data(), hvd::shape(1'000), hvd::strides(2)),
                                  hvd::max, {.name = "packed"});
        for (auto& r : requests) r.wait();
        queued.wait();
        plan.run();
        world.allreduce(loss, hvd::average, {.name = "loss"});
        if (steps == 0 && step == 20 && world.rank() == 0) {
            std::puts("under way");
            std::fflush(stdout);
        }
    }
    hvd::stop_timeline(world);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return std::fputs("usage: RANKS FILE STEPS\n", stderr), 2;
    hvd::run_threads<timed>(std::atoi(argv[1]), [&](hvd::communicator<timed>& world) {
        train(world, argv[2], std::atoi(argv[3]));
    });
}
