// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The examples of docs/data_service.md and of the headers' comments.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include <hvd/arena.hpp>
#include <hvd/data_service.hpp>
#include <hvd/timeline.hpp>
#include <hvd/train/uneven.hpp>

#include "hvd_test.hpp"

namespace data_service_snippets {

namespace data = hvd::data;
using namespace std::chrono_literals;

namespace {

struct folder {
    folder() {
        char name[] = "/tmp/hvd-data-service-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~folder() { std::filesystem::remove_all(path); }
    std::string path;
};

std::string contents(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
}

//! [pipeline]
// service_pipeline.hpp, which the worker's program and the trainer's include
inline auto service_pipeline() {
    std::vector<int> numbers(1000);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = int(i);
    return data::from(std::move(numbers)) | data::map([](int x) { return 2 * x; }) |
           data::shuffle({.seed = 42}) | data::batch(100);
}
//! [pipeline]

}  // namespace

TEST_CASE("one process: a worker, a dispatcher and a trainer") {
    std::size_t samples = 0;
    //! [worker]
    auto config = data::service_config::make(/*dispatchers*/ 0, /*workers_per_dispatcher*/ 0);
    const data::service_worker one(service_pipeline(), config), two(service_pipeline(), config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(one.port()),
                               "127.0.0.1:" + std::to_string(two.port())};
    data::loader loader(service_pipeline() |
                        data::send_to_data_service(config, /*rank*/ 0, /*size*/ 1));
    for (const std::vector<int>& batch : loader.epoch(0)) samples += batch.size();
    //! [worker]
    CHECK(samples == 1000);
    CHECK(one.made() + two.made() == 10);
}

TEST_CASE("trainers of a config file") {
    const folder at;
    const std::string path = at.path + "/compute.json";
    auto service = data::service_config::make(1, 1);
    service.write(path);
    const data::service_dispatcher dispatcher(service);
    dispatcher.register_in(path);
    const data::service_worker worker(service_pipeline(), data::service_config::read(path));
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& world) {
        long sum = 0;
        //! [config]
        const auto config = data::service_config::read(path, data::wait_for_file{30s});
        //! [config]
        //! [trainer]
        data::loader loader(service_pipeline() | data::send_to_data_service(config, world) |
                            data::prefetch(8));
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch)
            for (const std::vector<int>& batch : loader.epoch(epoch))
                for (const int x : batch) sum += x;  // train here
        //! [trainer]
        world.allreduce(sum, hvd::sum);
        CHECK(sum == 3 * 999000);
    });
}

TEST_CASE("batches of a service in an arena") {
    auto config = data::service_config::make(0, 0);
    const data::service_worker worker(service_pipeline(), config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    hvd::run_threads(2, [&](hvd::communicator<hvd::threads>& world) {
        long sum = 0;
        //! [into]
        hvd::arena arena{world, std::size_t(1) << 20};
        data::loader loader(service_pipeline() | data::send_to_data_service(config, world) |
                            data::into(arena) | data::prefetch(8));
        for (std::pmr::vector<int>& batch : loader.epoch(0)) {
            world.allreduce(batch, hvd::sum);  // reduced where it lies
            for (const int x : batch) sum += x;
        }
        //! [into]
        CHECK(sum == 999000);
    });
}

TEST_CASE("batches first come, first served") {
    auto config = data::service_config::make(0, 0);
    const data::service_worker worker(service_pipeline(), config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    std::vector<long> sums(3);
    hvd::run_threads(3, [&](hvd::communicator<hvd::threads>& world) {
        long& sum = sums[std::size_t(world.rank())];
        //! [first_come]
        data::loader loader(service_pipeline() |
                            data::send_to_data_service(
                                config, world, data::processing_mode::first_come_first_served));
        hvd::uneven_scope scope(world);
        auto batch = loader.next();
        while (scope.begin_step(batch ? batch->size() : 0)) {
            if (batch) {
                for (const int x : *batch) sum += x;  // train here
                batch = loader.next();
            }
            std::vector<float> gradient(10, 1);
            scope.weigh(gradient);  // zeros on a rank without a batch
            world.allreduce(gradient, hvd::sum);
        }
        //! [first_come]
    });
    CHECK(sums[0] + sums[1] + sums[2] == 999000);
}

TEST_CASE("who waits for whom") {
    auto config = data::service_config::make(0, 0);
    const data::service_worker worker(service_pipeline(), config);
    config.worker_addresses = {"127.0.0.1:" + std::to_string(worker.port())};
    std::string line;
    std::size_t samples = 0;
    //! [statistics]
    const auto batches = service_pipeline() | data::send_to_data_service(config, 0, 1);
    data::loader loader(batches | data::prefetch(4));
    for (const std::vector<int>& batch : loader.epoch(0)) samples += batch.size();  // train here
    line = batches.statistics().text();  // compute-bound: waited 0.2 % of 81.2 s; 812 batches, …
    //! [statistics]
    CHECK(samples == 1000);
    CHECK(line.find("10 batches") != line.npos);
    const folder at;
    const std::string file = at.path + "/hvd_data_rank0.prom";
    //! [prometheus]
    batches.write_prometheus(file);  // hvd_data_waiting_seconds_total{rank="0"} 0.2, …
    //! [prometheus]
    CHECK(contents(file).find("hvd_data_batches_total{rank=\"0\"} 10\n") != line.npos);
    CHECK(std::distance(std::filesystem::directory_iterator(at.path), {}) == 1);
}

TEST_CASE("waits for batches in a timeline") {
    const folder at;
    const std::string file = at.path + "/run.json";
    hvd::run_threads<hvd::observed<hvd::threads, hvd::timeline>>(1, [&](auto& world) {
        std::size_t samples = 0;
        hvd::start_timeline(world, {.file = file});
        //! [timeline]
        data::loader loader(service_pipeline(), world);  // by a service or not
        loader.record_waits(world.observer());           // an hvd::timeline
        for (const std::vector<int>& batch : loader.epoch(0)) samples += batch.size();
        //! [timeline]
        data::loader threads(data::from(std::vector<int>(20, 7)) |
                                 data::map([](int x) { return x; }, {.threads = 1}) |
                                 data::batch(10),
                             world);
        threads.record_waits(world.observer());
        while (threads.next()) continue;
        hvd::stop_timeline(world);
        CHECK(samples == 1000);
    });
    const std::string events = contents(at.path + "/run.0.json");
    std::size_t waits = 0;
    for (std::size_t i = 0; (i = events.find("\"waits for a batch\"", i)) != events.npos; ++i)
        ++waits;
    CHECK(waits == 14);  // with those for the ends
    const std::size_t at_stage =
        events.find("\"stage 1 (map) of communicator 2\",\"args\":{\"ready\":");
    REQUIRE(at_stage != events.npos);
    CHECK(events.rfind("{\"ph\":\"C\",\"pid\":0,", at_stage) > events.rfind('\n', at_stage));
    CHECK(events.find(",\"making\":0,\"samples per second\":", at_stage) != events.npos);
    CHECK(events.find("calls of communicator 1") != events.npos);
}

TEST_CASE("trainers that serve the dispatcher") {
    const folder at;
    const std::string path = at.path + "/compute.json";
    data::service_config::make(1, 1, data::dispatcher_side::training).write(path);
    const data::service_worker worker(service_pipeline(), data::service_config::read(path));
    std::size_t samples = 0;
    hvd::run_threads(1, [&](hvd::communicator<hvd::threads>& world) {
        //! [training_side]
        const data::training_dispatcher dispatcher(path, world);
        const auto config = data::service_config::read(path, data::wait_for_file{30s});
        //! [training_side]
        data::loader loader(service_pipeline() | data::send_to_data_service(config, world));
        for (const auto& batch : loader.epoch(0)) samples += batch.size();
    });
    CHECK(samples == 1000);
}

}  // namespace data_service_snippets
