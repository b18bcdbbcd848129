// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Batches in memory of the user.

#include <algorithm>
#include <array>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <hvd/arena.hpp>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_into_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;

namespace {

// Points (i, 2 i), and i modulo 5 copies of i.
auto points(int samples) {
    return data::from(numbers_below(samples)) |
           data::map([](int i) { return std::array<float, 2>{float(i), float(2 * i)}; }) |
           data::shuffle({.seed = 3});
}
auto texts(int samples) {
    return data::from(numbers_below(samples)) |
           data::map([](int i) { return std::string(std::size_t(i % 5), char('a' + i % 26)); });
}

// The bytes that are taken from another resource, and how often.
class counting_resource : public std::pmr::memory_resource {
public:
    std::size_t taken = 0, allocations = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
        taken += bytes;
        ++allocations;
        return std::pmr::new_delete_resource()->allocate(bytes, align);
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t align) override {
        taken -= bytes;
        std::pmr::new_delete_resource()->deallocate(memory, bytes, align);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }
};

}  // namespace

TEST_CASE("batches in an arena have the values of others, lie in it, and give its memory back") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        hvd::arena arena{world, 65536};
        const std::size_t all = arena.available();
        const auto* const first = arena.allocate(1);
        arena.deallocate(const_cast<void*>(first), 1);
        for (const std::size_t threads : {0, 1, 3}) {
            data::loader expected(points(100) | data::batch(16), world);
            data::loader loader(
                points(100) | data::batch(16) | data::into(arena) | data::prefetch(3), world,
                {.threads = threads});
            for (const std::uint64_t epoch : {0, 1}) {
                expected.begin_epoch(epoch);
                for (const auto& batch : loader.epoch(epoch)) {
                    const auto wanted = expected.next();
                    REQUIRE(wanted);
                    CHECK(batch.width == wanted->width);
                    CHECK(std::equal(batch.values.begin(), batch.values.end(),
                                     wanted->values.begin(), wanted->values.end()));
                    const auto place = reinterpret_cast<const char*>(batch.values.data()) -
                                       static_cast<const char*>(first);
                    if (batch.size() > 0) CHECK((place >= 0 && place < 65536));
                }
                CHECK_FALSE(expected.next());
            }
            CHECK(loader.fingerprint() == expected.fingerprint());
        }
        CHECK(arena.available() == all);
    });
}

TEST_CASE("a batch in an arena is reduced where it lies") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        hvd::arena arena{world, 65536};
        const std::uint64_t ranks = std::uint64_t(world.size());
        auto batches = data::from(numbers_below(int(200 * ranks))) |
                       data::map([](int i) { return std::array<float, 2>{float(i), 1}; }) |
                       data::equal_batch(100 * ranks);
        data::loader loader(batches | data::into(arena), world);
        data::loader alone(batches, hvd::part{});
        for (auto& batch : loader.epoch(0)) {
            const auto whole = alone.next();
            REQUIRE(whole);
            world.allreduce(batch.values, hvd::sum);
            for (std::size_t i = 0; i < batch.values.size(); ++i) {
                float sum = 0;
                for (std::size_t r = 0; r < ranks; ++r)
                    sum += whole->values[r * batch.values.size() + i];
                CHECK(batch.values[i] == sum);
            }
        }
    });
}

TEST_CASE("vectors, texts, ragged rows, tuples and pairs lie in the memory, each copied once") {
    counting_resource memory;
    const std::size_t samples = 40;
    {
        data::loader loader(texts(40) | data::batch(samples, data::concatenate) |
                                data::into(memory) | data::prefetch(0),
                            hvd::part{});
        data::loader expected(texts(40) | data::batch(samples, data::concatenate), hvd::part{});
        const auto batch = loader.next();
        const auto wanted = expected.next();
        CHECK(std::equal(batch->values.begin(), batch->values.end(), wanted->values.begin(),
                         wanted->values.end()));
        CHECK(std::equal(batch->offsets.begin(), batch->offsets.end(), wanted->offsets.begin(),
                         wanted->offsets.end()));
        CHECK(memory.taken == wanted->values.size() + (samples + 1) * sizeof(std::size_t));
        CHECK(memory.allocations == 2);
    }
    CHECK(memory.taken == 0);
    const auto collate = [](const std::vector<int>& all) {
        return std::tuple(all, std::pair(data::rows<int>{all, 2},
                                         std::vector<std::string>(3, std::string(100, 'x'))));
    };
    data::loader loader(data::from(numbers_below(8)) | data::batch(8, collate) |
                            data::into(memory) | data::prefetch(0),
                        hvd::part{});
    {
        memory.allocations = 0;
        const auto batch = loader.next();
        const auto& [numbers, other] = *batch;
        CHECK(std::vector<int>(numbers.begin(), numbers.end()) == numbers_below(8));
        CHECK(other.first[1][1] == 3);
        CHECK(other.second.size() == 3);
        CHECK(std::string_view(other.second[2]) == std::string(100, 'x'));
        CHECK(other.second[2].get_allocator().resource() == &memory);
        CHECK(memory.allocations == 6);
    }
    CHECK(memory.taken == 0);
}

TEST_CASE("without room for a batch the loader names the sizes, and goes on when there is some") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        hvd::arena arena{world, 3 * 4096};
        auto batches = points(4000) | data::equal_batch(512, {.last = data::last_batch::drop});
        data::loader expected(batches, hvd::part{});
        data::loader loader(batches | data::into(arena), hvd::part{}, {.threads = 0});
        {
            std::vector<decltype(loader)::batch_type> held;
            for (int i = 0; i < 3; ++i) held.push_back(*loader.next());
            CHECK(arena.available() == 0);
            std::string why;
            try {
                (void)loader.next();
            } catch (const data::stage_error& e) {
                why = e.what();
                CHECK(e.stage() == 3);
                CHECK_THROWS_AS(std::rethrow_exception(e.cause()), hvd::usage_error);
            }
            CHECK_MESSAGE(why.find("stage 3 (into), sample ") != why.npos, why);
            CHECK_MESSAGE(why.find("4096 bytes asked for, of 12288 bytes 0 are free") != why.npos,
                          why);
        }
        for (int i = 0; i < 3; ++i) CHECK(expected.next());
        loader.resume(loader.state());
        for (std::optional<data::rows<float>> wanted; (wanted = expected.next());) {
            const auto got = loader.next();
            REQUIRE(got);
            CHECK(std::equal(got->values.begin(), got->values.end(), wanted->values.begin()));
        }
        CHECK_FALSE(loader.next());
    });
}

TEST_CASE("an arena that ends before its loader and its batches is told, and they may end") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        std::optional<hvd::arena> arena(std::in_place, world, 1 << 20);
        const auto batches = points(4000) | data::batch(100) | data::into(*arena);
        std::optional<data::rows<float, std::pmr::polymorphic_allocator<float>>> kept;
        {
            data::loader loader(batches | data::prefetch(3), hvd::part{}, {.threads = 0});
            kept = loader.next();
            REQUIRE(kept);
            arena.reset();
            std::string why;
            try {
                while (loader.next()) continue;
            } catch (const data::stage_error& e) {
                why = e.what();
                CHECK(e.stage() == 3);
            }
            CHECK_MESSAGE(why.find("stage 3 (into), sample ") != why.npos, why);
            CHECK_MESSAGE(why.find("the arena of data::into has ended") != why.npos, why);
        }
        kept.reset();
        world.barrier();
    });
}

TEST_CASE("a loader's threads and the trainer take memory of one arena at once") {
    hvd_test::on_ranks([](hvd_test::communicator& world) {
        hvd::arena arena{world, 1 << 20};
        data::loader loader(data::from(numbers_below(2000)) | data::batch(10) | data::into(arena) |
                                data::prefetch(6),
                            hvd::part{}, {.threads = 3});
        int next = 0;
        for (const auto& batch : loader.epoch(0)) {
            const std::pmr::vector<int> copy(batch.begin(), batch.end(), &arena);
            for (const int x : copy) CHECK(x == next++);
        }
        CHECK(next == 2000);
    });
}

TEST_CASE("an exception of a stage before it names that stage") {
    counting_resource memory;
    data::loader loader(data::from(numbers_below(8)) | data::map([](int i) {
                            return i < 5 ? i : throw std::runtime_error("torn");
                        }) | data::batch(4) |
                            data::into(memory),
                        hvd::part{});
    CHECK(loader.next());
    CHECK_THROWS_WITH_AS((void)loader.next(), "stage 1 (map), sample 5 of epoch 0: torn",
                         data::stage_error);
}

}  // namespace data_into_tests
