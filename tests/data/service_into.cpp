// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Batches of a data service in an arena of the trainer.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <hvd/arena.hpp>
#include <hvd/data_service.hpp>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_service_into_tests {

namespace data = hvd::data;
using data_tests::numbers_below;
using namespace std::chrono_literals;

namespace {

constexpr int samples = 60;

// A batch of rows of 40,000 bytes, labels, and rows of different lengths.
struct collate {
    auto operator()(const std::vector<int>& all) const {
        data::rows<float> rows{{}, 10000};
        data::ragged_rows<char> texts;
        for (const int i : all) {
            rows.values.insert(rows.values.end(), 10000, float(i));
            texts.values.insert(texts.values.end(), std::size_t(i % 7), char('a' + i % 26));
            texts.offsets.push_back(texts.values.size());
        }
        return std::tuple(rows, all, texts);
    }
};
auto pipeline() {
    return data::from(numbers_below(samples)) | data::shuffle({.seed = 9}) |
           data::batch(6, collate());
}

template <class A, class B>
bool same(const A& a, const B& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
template <class Batch, class Wanted>
void check_same(const Batch& batch, const Wanted& wanted) {
    CHECK(std::get<0>(batch).width == std::get<0>(wanted).width);
    CHECK(same(std::get<0>(batch).values, std::get<0>(wanted).values));
    CHECK(same(std::get<1>(batch), std::get<1>(wanted)));
    CHECK(same(std::get<2>(batch).values, std::get<2>(wanted).values));
    CHECK(same(std::get<2>(batch).offsets, std::get<2>(wanted).offsets));
}

struct running_service {
    explicit running_service(bool shares) {
        config.shared_memory = shares;
        config.timeout = 5s;
        for (int i = 0; i < 2; ++i) {
            workers.push_back(
                std::make_unique<data::service_worker<decltype(pipeline())>>(pipeline(), config));
            config.worker_addresses.push_back("127.0.0.1:" +
                                              std::to_string(workers.back()->port()));
        }
    }
    data::service_config config = data::service_config::make(0, 0);
    std::vector<std::unique_ptr<data::service_worker<decltype(pipeline())>>> workers;
};

}  // namespace

TEST_CASE("batches of a service lie in the trainer's arena, with the bytes of those without it") {
    for (const bool shares : {true, false}) {
        const running_service service(shares);
        for (const int ranks : {1, 2, 3})
            hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
                hvd::arena arena{world, std::size_t(4) << 20};
                const std::size_t all = arena.available();
                const auto* const first = static_cast<const char*>(arena.allocate(1));
                arena.deallocate(const_cast<char*>(first), 1);
                const auto remote = pipeline() | data::send_to_data_service(service.config, world);
                {
                    data::loader expected(pipeline(), world);
                    data::loader loader(remote | data::into(arena) | data::prefetch(4));
                    for (const std::uint64_t epoch : {0, 1, 2}) {
                        expected.begin_epoch(epoch);
                        for (const auto& batch : loader.epoch(epoch)) {
                            const auto wanted = expected.next();
                            REQUIRE(wanted);
                            check_same(batch, *wanted);
                            for (const auto* resource :
                                 {std::get<0>(batch).values.get_allocator().resource(),
                                  std::get<1>(batch).get_allocator().resource(),
                                  std::get<2>(batch).values.get_allocator().resource()})
                                CHECK(resource != std::pmr::get_default_resource());
                            const auto& values = std::get<0>(batch).values;
                            const auto place = reinterpret_cast<const char*>(values.data()) - first;
                            if (!values.empty()) CHECK((place >= 0 && place < (4 << 20)));
                        }
                        CHECK_FALSE(expected.next());
                    }
                }
                CHECK(arena.available() == all);
                CHECK((remote.totals().in_shared_memory > 0) == shares);
            });
    }
}

TEST_CASE("a batch of a service is reduced where it lies in the arena") {
    const running_service service(true);
    for (const int ranks : {1, 2, 3})
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
            hvd::arena arena{world, std::size_t(1) << 20};
            data::loader loader(pipeline() | data::send_to_data_service(service.config, world) |
                                data::into(arena));
            double sum = 0;
            for (auto& batch : loader.epoch(0)) {
                auto& rows = std::get<0>(batch);
                world.allreduce(rows.values, hvd::sum);
                for (std::size_t i = 0; i < rows.size(); ++i) sum += rows[i][9999];
            }
            CHECK(sum == samples * (samples - 1) / 2);
        });
}

TEST_CASE("an arena without room for a batch of a service is an error with the sizes") {
    const running_service service(true);
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& world) {
        hvd::arena arena{world, 100000};
        data::loader loader(pipeline() | data::send_to_data_service(service.config, world) |
                            data::into(arena));
        CHECK_THROWS_WITH_AS(
            (void)loader.next(),
            doctest::Contains("120000 bytes asked for, of 100032 bytes 100032 are free"),
            data::stage_error);
        arena.grow(1 << 20);
        loader.resume({.seed = 9});
        data::loader expected(pipeline(), world);
        check_same(*loader.next(), *expected.next());
    });
}

TEST_CASE("batches in an arena come exactly once while workers go and come") {
    running_service service(true);
    hvd::run_threads(1, [&](hvd::communicator<hvd::threads>& world) {
        hvd::arena arena{world, std::size_t(4) << 20};
        data::loader expected(pipeline(), world);
        data::loader loader(pipeline() | data::send_to_data_service(service.config, world) |
                            data::into(arena) | data::prefetch(3));
        for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
            expected.begin_epoch(epoch);
            int step = 0;
            for (const auto& batch : loader.epoch(epoch)) {
                check_same(batch, *expected.next());
                if (++step == 4) service.workers[epoch % 2].reset();
            }
            CHECK_FALSE(expected.next());
            service.workers[epoch % 2] =
                std::make_unique<data::service_worker<decltype(pipeline())>>(
                    pipeline(), service.config,
                    data::worker_options{
                        .port = std::uint16_t(
                            std::stoi(service.config.worker_addresses[epoch % 2].substr(10)))});
        }
    });
}

}  // namespace data_service_into_tests
