// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <random>
#include <set>

#include "reference.hpp"
#include "support.hpp"

namespace tuning_tests {

using namespace hvd_test;

// Thresholds that a program changes: results are the same whatever they are.

namespace {

namespace tuning = hvd::detail::tuning;
using hvd::detail::tuning_range;
using hvd::detail::tuning_ranges;

constexpr std::size_t longest = 300 * tuning::KiB;  // of a tensor in these tests

template <class Comm>
void check_prefixes(Comm& comm, std::size_t n) {
    std::vector<std::int64_t> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = std::int64_t(i % 1000) * (comm.rank() + 1);
    comm.scan(x, hvd::sum);
    const std::int64_t ranks = comm.rank() + 1, factor = ranks * (ranks + 1) / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) wrong += x[i] != std::int64_t(i % 1000) * factor;
    CHECK(wrong == 0);
}

template <class T, class Comm>
void check_reductions(Comm& comm, std::size_t n) {
    const tensor<T> expected = reference<T>(hvd::sum, comm.size());
    tensor<T> x = input<T>(comm.rank(), n);
    const part mine(n, comm.rank(), comm.size());
    CHECK(wrong(comm.reduce_scatter(x, hvd::sum), mine.count, expected, mine.first) == 0);
    comm.allreduce(x, hvd::sum);
    CHECK(wrong(x, n, expected) == 0);
}

template <class T, class Comm>
void check_movements(Comm& comm, std::size_t n) {
    const tensor<T> mine = input<T>(comm.rank(), n);
    tensor<T> from_last = mine;
    comm.broadcast(from_last, hvd::root{comm.size() - 1});
    CHECK(wrong_input<T>(from_last, n, comm.size() - 1) == 0);
    const auto all = comm.allgather(mine);
    REQUIRE(all.values.size() == n * size_of(comm));
    const auto shuffled = comm.alltoall(input<T>(comm.rank(), n * size_of(comm)));
    REQUIRE(shuffled.values.size() == n * size_of(comm));
    for (std::size_t r = 0; r < size_of(comm); ++r) {
        CHECK(wrong_input<T>(std::span(all.values).subspan(r * n, n), n, int(r)) == 0);
        CHECK(wrong_input<T>(std::span(shuffled.values).subspan(r * n, n), n, int(r),
                             rank_of(comm) * n) == 0);
    }
}

template <class Comm>
void check_calls(Comm& comm, std::size_t bytes) {
    INFO(bytes, " bytes");
    check_reductions<float>(comm, bytes / sizeof(float));
    check_reductions<hvd::bfloat16>(comm, bytes / sizeof(hvd::bfloat16));
    check_movements<float>(comm, bytes / sizeof(float));
    check_prefixes(comm, bytes / sizeof(std::int64_t));
}

// The limits that hold for all ranks together are met by tensors of an n-th.
template <class Comm>
std::set<std::size_t> sizes_around(const Comm& comm, std::size_t value) {
    std::set<std::size_t> sizes{0, 8};
    for (const std::size_t bytes : {value, value / size_of(comm)})
        for (const std::size_t near : {bytes - 8, bytes, bytes + 8})
            if (near <= longest) sizes.insert(near);
    return sizes;
}

std::size_t permitted(const tuning_range& r, std::size_t value) {
    return std::clamp(value / r.multiple * r.multiple, r.least, r.most);
}

}  // namespace

TEST_CASE("results are right around each threshold at its ends and in between") {
    on_every_transport([](auto& comm) {
        for (const tuning_range& r : tuning_ranges)
            for (const std::size_t value : {r.least, permitted(r, 5000), r.most}) {
                INFO(std::string(r.name), " = ", value);
                hvd::tuning_options tuned;
                r.member(tuned) = value;
                comm.retune(tuned);
                CHECK(comm.tuning() == tuned);
                for (const std::size_t bytes : sizes_around(comm, value)) check_calls(comm, bytes);
            }
    });
}

#if !defined(HVD_TEST_QUEUES)
namespace {

hvd::tuning_options all_at(std::size_t tuning_range::* end) {
    hvd::tuning_options tuned;
    for (const tuning_range& r : tuning_ranges) r.member(tuned) = permitted(r, r.*end);
    return tuned;
}

}  // namespace

TEST_CASE("a communicator takes the thresholds of its options, and those made of it take them") {
    for (const auto end : {&tuning_range::least, &tuning_range::most}) {
        const hvd::tuning_options tuned = all_at(end);
        on_every_transport(
            [&](auto& comm) {
                CHECK(comm.tuning() == tuned);
                auto everybody = comm.split(0, -comm.rank());
                CHECK(everybody.tuning() == tuned);
                for (const std::size_t bytes : {0, 8, 1000, 20000, 50000}) {
                    check_calls(comm, bytes);
                    check_calls(everybody, bytes);
                }
            },
            {.tuning = tuned});
    }
}
#endif

TEST_CASE("thresholds that change at random between calls change no result") {
    on_every_transport([](auto& comm) {
        std::mt19937 random(7);  // the same on every rank
        const auto roll = [&](std::size_t least, std::size_t most) {
            return std::uniform_int_distribution<std::size_t>(least, most)(random);
        };
        const tensor<float> expected = reference<float>(hvd::sum, comm.size());
        for (int round = 0; round < 30; ++round) {
            hvd::tuning_options tuned;
            for (const tuning_range& r : tuning_ranges)
                r.member(tuned) = permitted(r, std::size_t(1) << roll(0, 20));
            // Calls that are under way when the thresholds change.
            tensor<float> first = input<float>(comm.rank(), roll(0, 20000)), second = first;
            auto pending = comm.allreduce_async(first, hvd::sum);
            auto later = comm.allreduce_async(second, hvd::sum);
            comm.retune(tuned);
            pending.wait();
            later.wait();
            CHECK(wrong(first, first.size(), expected) == 0);
            CHECK(wrong(second, second.size(), expected) == 0);
            check_calls(comm, 8 * roll(0, std::size_t(1) << roll(0, 15)));
        }
    });
}

TEST_CASE("ranks that give different thresholds all get an error with the values, and go on") {
    on_every_transport_from(2, [](auto& comm) {
        hvd::tuning_options tuned;
        tuned.chunk_bytes = comm.rank() == 1 ? 128 : 64;
        const auto error = thrown<hvd::mismatch_error>([&] { comm.retune(tuned); });
        REQUIRE(error);
        const std::string text = error->what();
        CHECK(text.find(".tuning.chunk_bytes") != std::string::npos);
        CHECK(text.find("rank 0: 64\n") != std::string::npos);
        CHECK(text.find("rank 1: 128") != std::string::npos);
        CHECK(comm.tuning() == hvd::tuning_options{});
        check_calls(comm, 1000);
    });
}

TEST_CASE("a threshold outside its range is refused on all ranks, who go on") {
    on_every_transport([](auto& comm) {
        const int wrong = comm.size() - 1;
        hvd::tuning_options tuned;
        if (comm.rank() == wrong) tuned.chunk_bytes = 100;
        const std::string why =
            "hvd: .tuning.chunk_bytes is 100; it takes a multiple of 64 from 64 to 1073741824";
        if (comm.rank() == wrong) {
            const auto error = thrown<hvd::usage_error>([&] { comm.retune(tuned); });
            REQUIRE(error);
            CHECK(error->what() == why);
        } else {
            const auto error = thrown<hvd::peer_error>([&] { comm.retune(tuned); });
            REQUIRE(error);
            CHECK(std::string(error->what()).find(why) != std::string::npos);
        }
        CHECK(comm.tuning() == hvd::tuning_options{});
        check_calls(comm, 1000);
    });
}

TEST_CASE("every threshold is refused beyond each end of its range") {
    for (const tuning_range& r : tuning_ranges) {
        hvd::tuning_options tuned;
        for (const std::size_t value : {r.least - 1, r.most + r.multiple}) {
            if (value > r.most + r.multiple) continue;  // nothing is less than 0
            r.member(tuned) = value;
            INFO(std::string(r.name), " = ", value);
            CHECK(thrown<hvd::usage_error>([&] { hvd::detail::check_tuning(tuned, 0); }));
        }
    }
}

#if defined(HVD_TEST_QUEUES)
namespace {

// The messages that this rank sends in f with these thresholds.
template <class Comm, class F>
std::size_t messages(Comm& comm, const hvd::tuning_options& tuned, F f) {
    comm.retune(tuned);
    auto& endpoint = hvd::detail::access::endpoint_of(comm);
    const std::size_t before = endpoint.sent;
    f();
    return endpoint.sent - before;
}

}  // namespace

TEST_CASE("the transport moves data as the thresholds say, before and after they change") {
    on_every_transport_from(2, [](auto& comm) {
        const std::size_t peers = size_of(comm) - 1;
        std::vector<float> x(size_of(comm) * 4096, 1);
        const auto reduce = [&] { comm.allreduce(x, hvd::sum); };
        const auto exchange = [&] { comm.alltoall(x); };
        for (int round = 0; round < 2; ++round) {
            // A slice of 16 KiB goes in one chunk, or in 16.
            const std::size_t few = messages(comm, {}, reduce);
            CHECK(messages(comm, {.chunk_bytes = 1024}, reduce) == few + 15 * peers);
            const std::size_t whole = messages(comm, {}, exchange);
            CHECK(messages(comm, {.unstable = {.exchange_chunk_bytes = 1024}}, exchange) ==
                  whole + 15 * peers);
            // A float goes with the header, or after it: to be reduced, and as a result.
            float one = 1;
            const auto small = [&] { comm.allreduce(one, hvd::sum); };
            CHECK(messages(comm, {}, small) == peers);
            CHECK(messages(comm, {.unstable = {.most_carried = 0, .least_carried = 0}}, small) >
                  peers);
            std::vector<float> middling(2000, 1);
            const auto medium = [&] { comm.allreduce(middling, hvd::sum); };
            CHECK(messages(comm, {.unstable = {.least_carried = 64 * 1024}}, medium) == peers);
            CHECK(messages(comm, {.unstable = {.most_carried = 0}}, medium) > peers);
        }
    });
}
#endif

#if defined(HVD_TEST_LAUNCHED)
TEST_CASE("ranks whose options differ get an error that names the option, and no communicator") {
    auto all = world();
    if (all.size() == 1) return;
    for (const tuning_range& r : tuning_ranges) {
        hvd::communicator_options options;
        const std::size_t mine = all.rank() == 0 ? r.least : r.most;
        r.member(options.tuning) = mine;
        const auto error = thrown<hvd::mismatch_error>([&] { communicator::world(options); });
        REQUIRE(error);
        const std::string text = error->what();
        CHECK(text.find(std::string(".tuning.") + r.name) != std::string::npos);
        CHECK(text.find("rank 0: " + std::to_string(r.least)) != std::string::npos);
        CHECK(text.find("rank 1: " + std::to_string(r.most)) != std::string::npos);
    }
    float x = 1;
    all.allreduce(x, hvd::sum);
    CHECK(x == float(all.size()));
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("a direct backend has no thresholds to change") {
    auto direct = hvd::communicator<hvd::direct<hvd::mpi>>::world();
    CHECK(thrown<hvd::usage_error>([&] { direct.retune({}); }));
}
#endif
#else
TEST_CASE("options outside their range make no communicator") {
    hvd::communicator_options options;
    options.tuning.unstable.exchange_chunk_bytes = 63;
    const auto error =
        thrown<hvd::usage_error>([&] { hvd_test::run_threads(2, [](communicator&) {}, options); });
    REQUIRE(error);
    CHECK(std::string(error->what()).find(".tuning.unstable.exchange_chunk_bytes is 63") !=
          std::string::npos);
}
#endif

}  // namespace tuning_tests
