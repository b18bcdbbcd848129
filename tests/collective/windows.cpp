// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../fault/by_hand.hpp"
#include "repetitions.hpp"

namespace windows_tests {

// Ranks pass their data through windows, and one of them may be as far ahead of the others as the
// windows allow, or far behind. One thread drives them here, in a random order in which some are
// forgotten for long.

using namespace hvd_test;

namespace {

namespace tuning = hvd::detail::tuning;

// The smallest windows that so many ranks can have.
std::size_t window_of(int ranks) { return hvd::detail::shm_region::window_for(ranks, 1); }

// One rank's part of a call.
struct part {
    hvd::request request;
    virtual ~part() = default;
    virtual void begin(rank_by_hand& comm) = 0;
    virtual void check(rank_by_hand& comm) = 0;
    virtual bool must_fail() const { return false; }
};

template <class T>
T value(int rank, std::size_t i) {
    return T(int(i % 23) + 2 * rank);
}

template <class T>
std::vector<T> values(int rank, std::size_t n) {
    std::vector<T> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = value<T>(rank, i);
    return x;
}

template <class T>
bool holds_sums(const std::vector<T>& x, int ranks, std::size_t stride = 1) {
    for (std::size_t i = 0; i < x.size(); i += stride) {
        int sum = 0;
        for (int r = 0; r < ranks; ++r) sum += int(i % 23) + 2 * r;
        if (x[i] != T(sum)) return false;
    }
    return true;
}

template <class T>
struct allreduce : part {
    std::vector<T> x;
    std::size_t n;
    explicit allreduce(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        x = values<T>(comm.rank(), n);
        request = comm.allreduce_async(x, hvd::sum);
    }
    void check(rank_by_hand& comm) override { CHECK(holds_sums(x, comm.size())); }
};

struct out_of_place : part {
    std::vector<float> x, y;
    std::size_t n;
    explicit out_of_place(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        x = values<float>(comm.rank(), n);
        y.resize(n);
        request = comm.allreduce_async(x, y, [](float a, float b) { return a + b; });
    }
    void check(rank_by_hand& comm) override { CHECK(holds_sums(y, comm.size())); }
};

struct list : part {
    std::vector<float> x, y;
    std::vector<std::int32_t> z;
    std::size_t n;
    explicit list(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        x = values<float>(comm.rank(), 5);
        y = values<float>(comm.rank(), n);
        z = values<std::int32_t>(comm.rank(), n / 2 + 1);
        request = comm.allreduce_async(hvd::fuse(x, y, z), hvd::sum);
    }
    void check(rank_by_hand& comm) override {
        CHECK(holds_sums(x, comm.size()));
        CHECK(holds_sums(y, comm.size()));
        CHECK(holds_sums(z, comm.size()));
    }
};

// Strided on some ranks only, so that these have not packed it when the others show theirs.
struct strided : part {
    std::vector<float> x;
    std::size_t n;
    bool is_strided = false;
    explicit strided(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        is_strided = comm.rank() % 2 == 1;
        x.assign(2 * n, float(comm.rank() + 1));
        if (is_strided)
            request =
                comm.allreduce_async(hvd::view(x.data(), hvd::shape(n), hvd::strides(2)), hvd::sum);
        else request = comm.allreduce_async(hvd::view(x.data(), n), hvd::sum);
    }
    void check(rank_by_hand& comm) override {
        const float sum = float(comm.size() * (comm.size() + 1) / 2), own = float(comm.rank() + 1);
        bool right = true;
        for (std::size_t i = 0; i < 2 * n; ++i)
            right = right && x[i] == ((is_strided ? i % 2 == 0 : i < n) ? sum : own);
        CHECK(right);
    }
};

struct broadcast : part {
    std::vector<float> x;
    std::size_t n;
    explicit broadcast(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        x = values<float>(comm.rank(), n);
        request = comm.broadcast_async(x, hvd::root{comm.size() - 1});
    }
    void check(rank_by_hand& comm) override { CHECK(x == values<float>(comm.size() - 1, n)); }
};

struct alltoall : part {
    std::vector<float> in, out;
    std::size_t n;
    explicit alltoall(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        in = values<float>(comm.rank(), n * std::size_t(comm.size()));
        out.resize(in.size());
        request = comm.alltoall_async(in, hvd::into(out));
    }
    void check(rank_by_hand& comm) override {
        bool right = true;
        for (std::size_t i = 0; i < out.size(); ++i)
            right =
                right && out[i] == value<float>(int(i / n), i % n + n * std::size_t(comm.rank()));
        CHECK(right);
    }
};

struct reduce_scatter : part {
    std::vector<float> in, out;
    std::size_t n;
    explicit reduce_scatter(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        in = values<float>(comm.rank(), n * std::size_t(comm.size()));
        out.resize(n);
        request = comm.reduce_scatter_async(in, hvd::sum, hvd::into(out));
    }
    void check(rank_by_hand& comm) override {
        bool right = true;
        for (std::size_t i = 0; i < n; ++i) {
            float sum = 0;
            for (int r = 0; r < comm.size(); ++r)
                sum += value<float>(r, i + n * std::size_t(comm.rank()));
            right = right && out[i] == sum;
        }
        CHECK(right);
    }
};

// Every rank gives another count, so that afterwards each writes at another place of its windows.
struct disagreement : part {
    std::vector<float> x;
    std::size_t n;
    bool fails = false;
    explicit disagreement(std::size_t count) : n(count) {}
    void begin(rank_by_hand& comm) override {
        fails = comm.size() > 1;
        x.assign(n + 100 * std::size_t(comm.rank()), 1);
        request = comm.allreduce_async(x, hvd::sum);
    }
    void check(rank_by_hand&) override { CHECK(x == std::vector<float>(x.size(), 1)); }
    bool must_fail() const override { return fails; }
};

// Around the limits of a line, of a window, and of all windows of a rank.
std::size_t some_bytes(int ranks, std::mt19937& random) {
    const std::size_t window = window_of(ranks), ring = tuning::windows * window;
    const std::size_t limits[] = {sizeof(hvd::detail::window_layout),
                                  tuning::least_store_choice,
                                  window / 2,
                                  window,
                                  2 * window,
                                  ring - window,
                                  ring,
                                  ring + window,
                                  3 * ring};
    const std::size_t limit = limits[random() % std::size(limits)];
    return limit - 4 + 4 * (random() % 3);
}

std::unique_ptr<part> some_call(int ranks, std::mt19937& random) {
    const std::size_t bytes = some_bytes(ranks, random), floats = bytes / 4;
    switch (random() % 12) {
        case 0: return std::make_unique<list>(floats);
        case 1: return std::make_unique<strided>(floats);
        case 2: return std::make_unique<broadcast>(floats);
        case 3: return std::make_unique<alltoall>(floats);
        case 4: return std::make_unique<reduce_scatter>(floats);
        case 5: return std::make_unique<disagreement>(floats);
        case 6: return std::make_unique<out_of_place>(floats);
        case 7: return std::make_unique<allreduce<std::int32_t>>(floats);
        case 8: return std::make_unique<allreduce<hvd::bfloat16>>(bytes / 2);
        default: return std::make_unique<allreduce<float>>(floats);
    }
}

// Runs the same calls on all ranks, each at its own pace.
void run(int ranks, unsigned seed) {
    const way through_windows = ways[1];
    REQUIRE(!through_windows.reachable);
    auto comms = ranks_by_hand(ranks, through_windows, window_of(ranks));
    constexpr std::size_t calls = 25;
    std::vector<std::size_t> done(comms.size(), 0);
    std::vector<std::unique_ptr<part>> now(comms.size());
    std::mt19937 order(seed);
    std::vector<std::mt19937> scripts(comms.size(), std::mt19937(seed + 1000));
    std::size_t turns = 0, favourite = 0;
    const auto turn = [&](std::size_t r) {
        CAPTURE(r);
        if (done[r] == calls) return;
        try {
            if (now[r] == nullptr) {
                now[r] = some_call(ranks, scripts[r]);
                now[r]->begin(comms[r]);
            }
            if (!now[r]->request.test()) return;
            CHECK(!now[r]->must_fail());
        } catch (const hvd::mismatch_error&) {
            CHECK(now[r]->must_fail());
        }
        now[r]->check(comms[r]);
        now[r] = nullptr;
        ++done[r];
    };
    const auto all_done = [&] {
        for (const std::size_t n : done)
            if (n < calls) return false;
        return true;
    };
    while (!all_done()) {
        if (turns % 40 == 0) favourite = order() % comms.size();
        // The favourite goes as far as it can, while the others hardly move.
        turn(order() % 8 != 0 ? favourite : order() % comms.size());
        if (++turns == 10'000'000) {
            FAIL("the ranks wait for each other");
        }
    }
}

}  // namespace

TEST_CASE("ranks that are far ahead or far behind get right results through their windows") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (unsigned seed = 0; seed < unsigned(hvd_test::repetitions(40, 12)); ++seed) {
            CAPTURE(ranks);
            CAPTURE(seed);
            run(ranks, seed);
        }
}

TEST_CASE("a rank fills all its windows while another one does nothing") {
    const std::size_t window = window_of(2), n = 3 * tuning::windows * window / sizeof(float);
    auto comms = ranks_by_hand(2, ways[1], window);
    auto x = values<float>(0, n), y = values<float>(1, n);
    auto first = comms[0].allreduce_async(x, hvd::sum),
         second = comms[1].allreduce_async(y, hvd::sum);
    CHECK(!first.test());
    CHECK(!second.test());  // it has arrived, and goes on when it is tested again
    const auto sums = [&](const std::vector<float>& v) {
        std::size_t right = 0;
        while (right < n && v[right] == value<float>(0, right) + value<float>(1, right)) ++right;
        return right;
    };
    for (int i = 0; i < 100; ++i) CHECK(!first.test());
    CHECK(!second.test());
    // The second rank had one chunk from the first at once. Now it has as many as there are windows
    // without the first one doing anything in between.
    CHECK(sums(y) >= tuning::windows * window / sizeof(float));
    while (!first.test()) CHECK_NOTHROW(static_cast<void>(second.test()));
    while (!second.test()) CHECK(first.test());
    CHECK(sums(x) == n);
    CHECK(sums(y) == n);
}

namespace {

// One rank, of whose transport each turn is one round.
struct rank_in_rounds {
    using view = decltype(hvd::view(static_cast<float*>(nullptr), std::size_t()));
    using call = hvd::detail::allreduce_call<view, view, std::decay_t<decltype(hvd::sum)>>;

    hvd::detail::shm_transport transport;
    hvd::detail::workspace memory;
    std::mt19937 sizes;
    std::vector<float> x;
    std::unique_ptr<call> now{};
    std::size_t step = 0, calls = 0;

    rank_in_rounds(const hvd::detail::shm_region& region, int rank, unsigned seed)
        : transport(region, rank), memory(region.ranks()), sizes(seed) {}

    void turn() {
        if (now == nullptr) {
            x = values<float>(transport.rank(),
                              some_bytes(transport.size(), sizes) / sizeof(float));
            for (float& element : x) element += float(calls);
            const view all = hvd::view(x.data(), x.size());
            now = std::make_unique<call>(all, all, hvd::sum, hvd::reduce_options{});
            transport.choose(now->op);
            transport.begin(now->op);
            step = 0;
        }
        if (!transport.ready() || transport.next()) return;
        if (step == 0) CHECK(transport.agreed);
        if (hvd::detail::begin_step(transport, memory, now->op, ++step)) return;
        for (float& element : x) element -= float(calls) * float(transport.size());
        CHECK(holds_sums(x, transport.size()));
        now = nullptr;
        ++calls;
    }
};

}  // namespace

TEST_CASE("a rank that begins its next call leaves alone what slower ranks still read") {
    using namespace hvd::detail;
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (unsigned seed = 0; seed < unsigned(hvd_test::repetitions(60, 15)); ++seed) {
            CAPTURE(ranks);
            CAPTURE(seed);
            const std::size_t window = window_of(ranks);
            const auto memory = shared_memory::of_this_process(shm_region::bytes(ranks, window));
            const shm_region region(memory.data(), ranks, window, shared<segments>::make());
            region.construct();
            std::vector<std::unique_ptr<rank_in_rounds>> all;
            for (int r = 0; r < ranks; ++r)
                all.push_back(std::make_unique<rank_in_rounds>(region, r, seed));
            std::mt19937 order(seed);
            std::size_t favourite = 0;
            for (int turns = 0; turns < 4000; ++turns) {
                if (turns % 10 == 0) favourite = order() % all.size();
                all[order() % 8 != 0 ? favourite : order() % all.size()]->turn();
            }
            for (const auto& one : all) CHECK(one->calls > 10);
        }
}

}  // namespace windows_tests
