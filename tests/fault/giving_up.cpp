// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "by_hand.hpp"

namespace giving_up_tests {

// Some ranks give a call up, at any moment of it. Every other rank then ends the call well and has
// all of its result, or fails and names a rank that gave up. Nobody waits without end, and the
// tensors of a rank that has failed are not touched any more.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

// One rank's part of a call.
struct part {
    hvd::request request;
    std::vector<float> in, out, more;
    std::vector<float> expected;  // of `out`; empty: this rank has no result
    std::vector<std::size_t> counts;
};

struct kind {
    const char* name;
    void (*begin)(rank_by_hand&, part&, std::size_t n, hvd::time_limit timeout);
};

float value(int rank, std::size_t i) { return float(i % 13) + float(3 * rank + 1); }

std::vector<float> values(int rank, std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = value(rank, i);
    return x;
}

// The sum over ranks [0, ranks), from element `first` on.
std::vector<float> sums(int ranks, std::size_t n, std::size_t first = 0) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        for (int r = 0; r < ranks; ++r) x[i] += value(r, first + i);
    return x;
}

constexpr auto add = [](float a, float b) { return a + b; };

const kind kinds[] = {
    {"allreduce in place",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.out = values(comm.rank(), n);
         p.expected = sums(comm.size(), n);
         p.request = comm.allreduce_async(p.out, hvd::sum, {.timeout = timeout});
     }},
    {"allreduce by a callable, out of place",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.in = values(comm.rank(), n);
         p.out.resize(n);
         p.expected = sums(comm.size(), n);
         p.request = comm.allreduce_async(p.in, p.out, add, {.timeout = timeout});
     }},
    {"allreduce of a list",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.out = values(comm.rank(), n);
         p.more = values(comm.rank(), 3);
         p.expected = sums(comm.size(), n);
         p.request = comm.allreduce_async(hvd::fuse(p.more, p.out), hvd::sum, {.timeout = timeout});
     }},
    {"reduce",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         const hvd::root root{comm.size() - 1};
         p.in = values(comm.rank(), n);
         if (comm.rank() == root.rank) {
             p.out.resize(n);
             p.expected = sums(comm.size(), n);
         }
         p.request =
             comm.reduce_async(p.in, hvd::into(p.out), hvd::sum, root, {.timeout = timeout});
     }},
    {"reduce_scatter",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         const auto rank = std::size_t(comm.rank());
         p.in = values(comm.rank(), n * std::size_t(comm.size()));
         p.out.resize(n);
         p.expected = sums(comm.size(), n, n * rank);
         p.request =
             comm.reduce_scatter_async(p.in, hvd::sum, hvd::into(p.out), {.timeout = timeout});
     }},
    {"scan",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.out = values(comm.rank(), n);
         p.expected = sums(comm.rank() + 1, n);
         p.request = comm.scan_async(p.out, hvd::sum, {.timeout = timeout});
     }},
    {"broadcast",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.out = values(comm.rank(), n);
         p.expected = values(1, n);
         p.request = comm.broadcast_async(p.out, hvd::root{1}, {.timeout = timeout});
     }},
    {"allgather",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         p.in = values(comm.rank(), n);
         p.out.resize(n * std::size_t(comm.size()));
         for (int r = 0; r < comm.size(); ++r)
             for (const float x : values(r, n)) p.expected.push_back(x);
         p.request = comm.allgather_async(p.in, hvd::into(p.out), {.timeout = timeout});
     }},
    {"alltoall",
     [](rank_by_hand& comm, part& p, std::size_t n, hvd::time_limit timeout) {
         const auto rank = std::size_t(comm.rank()), size = std::size_t(comm.size());
         p.in = values(comm.rank(), n * size);
         p.out.resize(n * size);
         for (int r = 0; r < comm.size(); ++r)
             for (std::size_t i = 0; i < n; ++i) p.expected.push_back(value(r, n * rank + i));
         p.request = comm.alltoall_async(p.in, hvd::into(p.out), {.timeout = timeout});
     }},
};

enum class outcome { under_way, ended_well, failed };

// One call, in which the ranks in `givers` have a timeout, which passes at some moment.
void try_once(const kind& call, const way& how, int ranks, std::size_t n,
              const std::vector<int>& givers, std::mt19937& random) {
    constexpr auto patience = 2ms;
    auto comms = ranks_by_hand(ranks, how, 4096);
    const auto gives_up = [&](int r) {
        return std::find(givers.begin(), givers.end(), r) != givers.end();
    };
    std::vector<part> parts(static_cast<std::size_t>(ranks));
    std::vector<outcome> outcomes(parts.size(), outcome::under_way);
    const auto start = std::chrono::steady_clock::now();
    for (int r = 0; r < ranks; ++r)
        call.begin(comms[std::size_t(r)], parts[std::size_t(r)], n,
                   gives_up(r) ? hvd::time_limit(patience) : hvd::time_limit());
    std::size_t turns_before = 1 + random() % (std::size_t(ranks) * (1 + random() % 8));
    std::vector<int> order(parts.size());
    std::iota(order.begin(), order.end(), 0);
    const auto one_turn = [&](int r) {
        const auto i = std::size_t(r);
        if (outcomes[i] != outcome::under_way) return;
        CAPTURE(r);
        try {
            if (!parts[i].request.test()) return;
            outcomes[i] = outcome::ended_well;
            if (!parts[i].expected.empty()) CHECK(parts[i].out == parts[i].expected);
        } catch (const hvd::peer_error& e) {
            outcomes[i] = outcome::failed;
            INFO(std::string(e.what()));
            for (const int peer : e.peers()) {
                CHECK(peer != r);
                if (!gives_up(r) && !how.crosses) CHECK(gives_up(peer));
            }
            // The tensors are the caller's again.
            std::fill(parts[i].in.begin(), parts[i].in.end(), -1.f);
            std::fill(parts[i].out.begin(), parts[i].out.end(), -1.f);
            std::fill(parts[i].more.begin(), parts[i].more.end(), -1.f);
        }
    };
    const auto limit = start + 30s;
    while (std::count(outcomes.begin(), outcomes.end(), outcome::under_way) > 0) {
        std::shuffle(order.begin(), order.end(), random);
        for (const int r : order) {
            one_turn(r);
            if (--turns_before != 0) continue;
            std::this_thread::sleep_for(patience);
            for (const int giver : givers) one_turn(giver);
        }
        if (std::chrono::steady_clock::now() > limit) {
            FAIL_CHECK("a rank waits without end");
            break;
        }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (outcomes[i] != outcome::failed) continue;
        for (const auto* x : {&parts[i].in, &parts[i].out, &parts[i].more})
            CHECK(std::count(x->begin(), x->end(), -1.f) == std::ptrdiff_t(x->size()));
    }
}

}  // namespace

TEST_CASE("no rank ends a call well without its whole result, whoever gives up and when") {
    for (const way& how : ways)
        for (const kind& call : kinds)
            for (int ranks = 2; ranks <= 4; ++ranks) {
                // Between nodes ranks that are silent are waited for, and the kinds share the time.
                if (how.crosses && ranks != 2 + int(&call - kinds) % 3) continue;
                for (unsigned seed = 0; seed < (how.crosses ? 1u : 25u); ++seed) {
                    INFO(std::string(how.name), ", ", std::string(call.name));
                    CAPTURE(ranks);
                    CAPTURE(seed);
                    std::mt19937 random(seed * 7919u + unsigned(ranks));
                    constexpr std::size_t sizes[] = {5, 1500, 9001};
                    std::vector<int> givers{int(random() % unsigned(ranks))};
                    if (ranks > 2 && random() % 3 == 0) givers.push_back((givers[0] + 1) % ranks);
                    try_once(call, how, ranks, sizes[random() % 3], givers, random);
                }
            }
}

namespace {

// A step whose update finds no memory on the last rank.
struct step_without_memory {
    std::vector<float>& parameters;
    bool fails;
    std::vector<hvd::detail::tensor_ref> targets{
        hvd::detail::erase(hvd::view(parameters.data(), parameters.size()))};
    hvd::detail::fused_update update{targets, hvd::dtype::float32, &apply, this};

    const hvd::detail::fused_update& begin(hvd::detail::ranks_of_plan&) { return update; }
    void end() {}
    static void apply(void* self, std::size_t, std::size_t, std::size_t, std::byte*,
                      const std::byte*) {
        if (static_cast<step_without_memory*>(self)->fails) throw std::bad_alloc();
    }
};

}  // namespace

TEST_CASE("an update that throws on one rank fails on all, and ends the communicator") {
    for (const way& how : ways) {
        if (how.crosses) continue;
        for (int ranks = 1; ranks <= 4; ++ranks)
            for (const std::size_t n : {50, 5000, 40001}) {
                INFO(std::string(how.name));
                CAPTURE(ranks);
                CAPTURE(n);
                ranks_by_hand(ranks, how, 4096, [n](rank_by_hand& comm) {
                    const bool fails = comm.rank() == comm.size() - 1;
                    std::vector<float> gradients(n, 1), parameters(n, 2);
                    step_without_memory step{parameters, fails};
                    auto plan = comm.plan_allreduce(hvd::fuse(gradients), hvd::average);
                    if (fails) {
                        CHECK_THROWS_AS(plan.run_and_apply(step), std::bad_alloc);
                    } else {
                        try {
                            plan.run_and_apply(step);
                            FAIL_CHECK("a part of the parameters was not updated");
                        } catch (const hvd::peer_error& e) {
                            CHECK(e.peers() == std::vector<int>{comm.size() - 1});
                            CHECK(std::string(e.what()).find("bad_alloc") != std::string::npos);
                        }
                    }
                    CHECK_THROWS_AS(comm.barrier(), hvd::peer_error);
                });
            }
    }
}

}  // namespace giving_up_tests
