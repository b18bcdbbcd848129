// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "../collective/disagreement.hpp"
#include "../collective/reference.hpp"

using namespace hvd_test;

// Ranks on several hosts, with TCP between them. hosts.py makes the hosts and launches this on
// them.

namespace {

// The lengths range from one message to several chunks of every slice.
constexpr std::size_t lengths[] = {1, 3000, 100003, 700001};

std::vector<float> numbers(int rank, std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] = std::sin(float(i % 1000 + 1) * float(rank + 1)) * float(1 << (i % 11));
    return x;
}

}  // namespace

TEST_CASE("ranks of one host, and no others, share a node") {
    on_ranks([](auto& comm) {
        char name[64] = "";
        REQUIRE(gethostname(name, sizeof name) == 0);
        const auto names = comm.allgather(hvd::view(name, sizeof name)).values;
        int here = 0;
        for (int r = 0; r < comm.size(); ++r)
            here += std::strcmp(&names[std::size_t(r) * sizeof name], name) == 0;
        CHECK(comm.local_size() == here);
        CHECK(comm.local_size() < comm.size());
    });
}

TEST_CASE_TEMPLATE("reductions over hosts equal serial ones", T, float, std::int32_t,
                   hvd::bfloat16) {
    on_ranks([](auto& comm) {
        const tensor<T> expected = reference<T>(hvd::sum, comm.size());
        for (const std::size_t n : lengths) {
            INFO(n, " elements");
            tensor<T> all = input<T>(comm.rank(), n), at_root = all, later = all, planned = all;
            const int root = comm.size() - 1;
            const part mine(n, comm.rank(), comm.size());
            CHECK(wrong(comm.reduce_scatter(all, hvd::sum), mine.count, expected, mine.first) == 0);
            comm.allreduce(all, hvd::sum);
            CHECK(wrong(all, n, expected) == 0);
            comm.reduce(at_root, hvd::sum, hvd::root{root});
            if (comm.rank() == root) CHECK(wrong(at_root, n, expected) == 0);
            auto pending = comm.allreduce_async(later, hvd::sum);
            pending.wait();
            CHECK(wrong(later, n, expected) == 0);
            double other = 1;
            auto plan = comm.plan_allreduce(hvd::fuse(other, planned), hvd::sum);
            plan.run();
            CHECK(other == comm.size());
            CHECK(wrong(planned, n, expected) == 0);
        }
    });
}

TEST_CASE("tensors move between hosts whole") {
    on_ranks([](auto& comm) {
        for (const std::size_t n : lengths)
            for (int root = 0; root < comm.size(); ++root) {
                INFO(n, " elements, root ", root);
                tensor<float> x = input<float>(comm.rank(), n);
                comm.broadcast(x, hvd::root{root});
                CHECK(wrong_input<float>(x, n, root) == 0);
            }
        const auto mine = [&](int rank) { return std::size_t(100000) * std::size_t(rank) + 7; };
        const auto all = comm.allgather(input<float>(comm.rank(), mine(comm.rank())));
        for (int r = 0; r < comm.size(); ++r) {
            const auto theirs = hvd::view(all.values.data() + all.displacements[std::size_t(r)],
                                          all.counts[std::size_t(r)]);
            std::size_t differs = theirs.size() != mine(r);
            const tensor<float> given = input<float>(r, mine(r));
            for (std::size_t i = 0; differs == 0 && i < theirs.size(); ++i)
                differs += theirs.data()[i] != given[i];
            CHECK(differs == 0);
        }
        std::vector<std::size_t> counts(size_of(comm), 400000);
        const std::vector<int> shuffled =
            comm.alltoall(std::vector<int>(counts.size() * 400000, comm.rank()), counts).values;
        for (std::size_t p = 0; p < counts.size(); ++p)
            CHECK(shuffled[p * 400000 + 399999] == int(p));
    });
}

TEST_CASE("every rank of every host gets the same bytes, and gets them again") {
    on_ranks([](auto& comm) {
        for (const std::size_t n : lengths) {
            std::vector<float> first = numbers(comm.rank(), n), second = first;
            comm.allreduce(first, hvd::average, {.prescale = 0.3, .postscale = 1.7});
            comm.allreduce(second, hvd::average, {.prescale = 0.3, .postscale = 1.7});
            CHECK(std::memcmp(first.data(), second.data(), n * sizeof(float)) == 0);
            comm.broadcast(second);
            CHECK(std::memcmp(first.data(), second.data(), n * sizeof(float)) == 0);
        }
    });
}

TEST_CASE("ranks that disagree or refuse are told on every host") {
    on_ranks([](auto& comm) {
        std::vector<float> x(17 + rank_of(comm));
        expect_mismatch(
            comm, "shape", [](int rank) { return "[" + std::to_string(17 + rank) + "]"; },
            [&] { comm.allreduce(x, hvd::sum); });
        const int culprit = comm.size() - 1;
        float* const nothing = nullptr;
        expect_refusal(comm, culprit, "null pointer", [&] {
            comm.allreduce(hvd::view(comm.rank() == culprit ? nothing : x.data(), 17), hvd::sum);
        });
    });
}

// hosts.py counts the bytes that pass through the cables meanwhile.
TEST_CASE("two allreduces of 16 MiB" * doctest::skip()) {
    on_ranks([](auto& comm) {
        std::vector<float> x(std::size_t(4) << 20, 1);
        for (int i = 0; i < 2; ++i) comm.allreduce(x, hvd::sum);
        CHECK(x.back() == float(comm.size() * comm.size()));
    });
}
