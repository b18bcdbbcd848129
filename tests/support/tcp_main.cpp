// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "launched.hpp"
#include "tcp_ranks.hpp"

// The program forks one process for each of HVD_TEST_NP ranks, and is their launcher. With
// HVD_TEST_HOST_SIZE, so many ranks each are declared to be on a host of their own.

namespace {

// Memory of all ranks, where they meet.
struct meeting_place {
    static constexpr int most = 64;
    std::atomic<int> turns[most];
    std::atomic<int> numbers[2][most];  // by parity of the turn
};

class launch final : public hvd_test::launched {
public:
    launch(int own_rank, int all_ranks, meeting_place& place)
        : launched(own_rank, all_ranks), place_(place) {}

    int agree_on(int status) override {
        const int half = (turn_ + 1) % 2;
        place_.numbers[half][rank] = status;
        await_all([] {});
        int worst = status;
        for (int r = 0; r < ranks; ++r) worst = std::max(worst, place_.numbers[half][r].load());
        return worst;
    }

private:
    void await_all(const std::function<void()>& meanwhile) override {
        place_.turns[rank] = ++turn_;
        for (int r = 0; r < ranks; ++r)
            while (place_.turns[r] < turn_) {
                meanwhile();
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
    }

    // The launcher ends the others when this one ends.
    void end_all() override {}

    meeting_place& place_;
    int turn_ = 0;
};

using hvd_test::keeps_ranks_together;
DOCTEST_REGISTER_LISTENER("keeps_ranks_together", 1, keeps_ranks_together);

}  // namespace

int hvd_test::launched_ranks() { return current->ranks; }

void hvd_test::an_exception_leaves() { current->excepted = true; }

int main(int argc, char** argv) {
    const int ranks = int(hvd_test::number_from_environment("HVD_TEST_NP", 2));
    void* const shared = mmap(nullptr, sizeof(meeting_place), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 1 || ranks > meeting_place::most || shared == MAP_FAILED) return EXIT_FAILURE;
    auto* const place = new (shared) meeting_place{};
    hvd_test::tcp_ranks job(ranks, int(hvd_test::number_from_environment("HVD_TEST_HOST_SIZE", 0)));
    job.start([&](int rank) {
        launch own(rank, ranks, *place);
        return hvd_test::run_launched(own, argc, argv);
    });
    return job.end_all_with_the_first_that_fails() ? EXIT_SUCCESS : EXIT_FAILURE;
}
