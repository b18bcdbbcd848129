// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <hvd/threads.hpp>

namespace segments_tests {

// Memory that two ranks have mapped, each at addresses of its own. Here both are in one process.

namespace {

using namespace hvd::detail;

constexpr std::size_t part = std::size_t(1) << 20;  // of each rank

struct two_mappings {
    shared_memory first = shared_memory::create(2 * part, false);
    shared_memory second = shared_memory::open(first.how_to_open(), 2 * part);

    float* of_first(std::size_t rank) const {
        return reinterpret_cast<float*>(static_cast<std::byte*>(first.data()) + rank * part);
    }
    float* of_second(std::size_t rank) const {
        return reinterpret_cast<float*>(static_cast<std::byte*>(second.data()) + rank * part);
    }
};

constexpr std::size_t n = part / sizeof(float);

bool all_are(const float* x, float value) {
    return std::all_of(x, x + n, [value](float y) { return y == value; });
}

}  // namespace

TEST_CASE("memory that was made private keeps its bytes, and others no longer write to it") {
    two_mappings memory;
    REQUIRE(memory.second);
    std::fill_n(memory.of_first(0), n, 1.f);
    std::fill_n(memory.of_first(1), n, 2.f);
    memory.first.make_private(0, part);
    CHECK(all_are(memory.of_first(0), 1));
    std::fill_n(memory.of_second(0), n, 3.f);  // as a process that was stopped would
    std::fill_n(memory.of_second(1), n, 4.f);
    CHECK(all_are(memory.of_first(0), 1));
    CHECK(all_are(memory.of_first(1), 4));
    std::fill_n(memory.of_first(0), n, 5.f);
    CHECK(all_are(memory.of_second(0), 3));
    memory.first.discard_private(0, part);
    CHECK(all_are(memory.of_second(0), 3));
}

TEST_CASE("no write of another thread is lost while memory is made private") {
    for (int round = 0; round < 20; ++round) {
        two_mappings memory;
        std::fill_n(memory.of_first(0), n, 0.f);
        std::atomic<bool> over{false};
        bool lost = false;
        std::thread writer([&] {
            // After each write it looks if the one before is still there.
            float value = 0;
            std::size_t before = 0;
            for (std::size_t i = 1021; !over; i = (i + 1021) % n) {
                memory.of_first(0)[i] = value + 1;
                lost = lost || memory.of_first(0)[before] != value;
                value += 1;
                before = i;
            }
        });
        memory.first.make_private(0, part);
        over = true;
        writer.join();
        CHECK(!lost);
    }
}

TEST_CASE("a call whose memory is taken away from the peers meanwhile fails") {
    two_mappings memory;
    const std::uint64_t id = memory.first.how_to_open().id;
    float* const mine = memory.of_first(0);
    float* const theirs = memory.of_second(1);
    const auto first = shared<segments>::make(), second = shared<segments>::make();
    first->add(id, std::move(memory.first), 2 * part, 0, part);
    second->add(id, std::move(memory.second), 2 * part, part, 2 * part);
    const auto derived = shared<segments>::make(first);  // of another communicator of rank 0

    constexpr std::size_t window = 4096;
    const auto area = shared_memory::of_this_process(shm_region::bytes(2, window));
    const shm_region region(area.data(), 2, window, first),
        region_of_second(area.data(), 2, window, second);
    region.construct();
    shm_transport a(region, 0), b(region_of_second, 1);

    using view = hvd::tensor_view<float, hvd::host, 1>;
    const auto reduces = [](float* x) {
        return allreduce_call<view, view, hvd::op::sum>(hvd::view(x, n), hvd::view(x, n), hvd::sum,
                                                        {});
    };
    const auto run = [&](auto between) {
        std::fill_n(mine, n, 1.f);
        std::fill_n(theirs, n, 2.f);
        auto of_a = reduces(mine), of_b = reduces(theirs);
        a.choose(of_a.op);
        b.choose(of_b.op);
        a.begin(of_a.op);
        between();
        b.begin(of_b.op);
        a.next();
        b.next();
        a.allreduce(of_a.op);
        b.allreduce(of_b.op);
        a.next();
        b.next();
        b.next();
    };
    run([] {});
    CHECK(!a.next());
    CHECK(all_are(mine, 3));
    run([&] { derived->make_private(); });
    CHECK_THROWS_AS(a.next(), hvd::peer_error);
    CHECK(a.lost);
    CHECK(all_are(theirs, 3));
    CHECK(!first->find(reinterpret_cast<std::byte*>(mine), part));
    CHECK(first->at({id, part}) == reinterpret_cast<std::byte*>(mine) + part);
}

}  // namespace segments_tests
