// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Trainers of a data service that take batches first come, first served.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hvd/data_service.hpp>
#include <hvd/threads.hpp>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_first_come_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;
using namespace std::chrono_literals;
using world_type = hvd::communicator<hvd::threads>;
using all_batches = std::vector<std::vector<int>>;

namespace {

constexpr auto mode = data::processing_mode::first_come_first_served;

auto pipeline_of(int samples, data::last_batch last = data::last_batch::keep) {
    return data::from(numbers_below(samples)) |
           data::map([](int i, data::random& draws) { return 10 * i + int(draws.below(10)); }) |
           data::shuffle({.seed = 5}) | data::batch(7, {.last = last});
}
using worker = data::service_worker<decltype(pipeline_of(1))>;

struct running_service {
    explicit running_service(int samples = 200, data::last_batch last = data::last_batch::keep)
        : pipeline(pipeline_of(samples, last)) {
        config.timeout = 5s;
        for (int i = 0; i < 2; ++i) {
            workers.push_back(std::make_unique<worker>(pipeline, config));
            config.worker_addresses.push_back("127.0.0.1:" +
                                              std::to_string(workers.back()->port()));
        }
    }
    void end(std::size_t which) { workers[which].reset(); }
    void start(std::size_t which) {
        const std::string& at = config.worker_addresses[which];
        workers[which] = std::make_unique<worker>(
            pipeline, config,
            data::worker_options{.port = std::uint16_t(std::stoi(at.substr(at.find(':') + 1)))});
    }
    // The batches of an epoch without ranks and a service, sorted.
    all_batches expected(std::uint64_t epoch) const {
        data::loader whole(pipeline, hvd::part{});
        return sorted(batches_of(whole, epoch));
    }
    static all_batches sorted(all_batches all) {
        std::sort(all.begin(), all.end());
        return all;
    }
    decltype(pipeline_of(1)) pipeline;
    data::service_config config = data::service_config::make(0, 0);
    std::vector<std::unique_ptr<worker>> workers;
};

// The batches of all ranks.
class gathered {
public:
    void add(const std::vector<int>& batch) {
        const hvd::detail::lock_guard held(mutex_);
        all_.push_back(batch);
    }
    all_batches sorted() const { return running_service::sorted(all_); }

private:
    hvd::detail::mutex mutex_;
    all_batches all_;
};

template <class F>
std::string thrown_by(F f) {
    try {
        f();
    } catch (const hvd::error& e) {
        return e.what();
    }
    return "nothing was thrown";
}
void check_has(const std::string& whole, const std::string& part) {
    CHECK_MESSAGE(whole.find(part) != std::string::npos, whole);
}

}  // namespace

TEST_CASE("each batch goes to one rank, as a whole") {
    using enum data::last_batch;
    for (const auto last : {keep, drop, fill}) {
        const running_service service(200, last);
        for (const int ranks : {1, 2, 3, 4})
            for (const std::size_t ahead : {0, 1, 4}) {
                gathered all[2];
                hvd::run_threads(ranks, [&](world_type& world) {
                    data::loader loader(
                        service.pipeline | data::send_to_data_service(service.config, world, mode) |
                            data::prefetch(ahead),
                        {.threads = ahead == 4 ? std::size_t(2) : 1});
                    for (const std::uint64_t epoch : {0, 3}) {
                        for (const auto& batch : loader.epoch(epoch)) {
                            CHECK(loader.samples_of_all() == batch.size());
                            all[epoch / 3].add(batch);
                        }
                        CHECK_FALSE(loader.next());
                        world.barrier();
                        if (world.rank() == 0)
                            CHECK(loader.state() == data::loader_state{5, epoch, 200});
                        world.barrier();
                    }
                });
                for (const std::uint64_t epoch : {0, 3})
                    CHECK(all[epoch / 3].sorted() == service.expected(epoch));
            }
    }
}

TEST_CASE("a rank that stands still gets no more than it has asked for, and others get the rest") {
    const running_service service(500);
    for (const int ranks : {2, 3, 4})
        for (const std::size_t ahead : {0, 4}) {
            gathered all;
            std::atomic<int> ended = 0;
            std::atomic<std::size_t> of_slow = 0;
            hvd::run_threads(ranks, [&](world_type& world) {
                data::loader loader(service.pipeline |
                                    data::send_to_data_service(service.config, world, mode) |
                                    data::prefetch(ahead));
                const bool is_slow = world.rank() == 1;
                for (const auto& batch : loader.epoch(0)) {
                    all.add(batch);
                    if (is_slow) ++of_slow;
                    while (is_slow && ended < ranks - 1) std::this_thread::sleep_for(1ms);
                }
                ++ended;
                world.barrier();
            });
            CHECK(of_slow <= ahead + 3);
            CHECK(all.sorted() == service.expected(0));
        }
}

TEST_CASE("workers that go and come lose and repeat no batch of first come, first served") {
    running_service service(2000);
    gathered all;
    hvd::run_threads(3, [&](world_type& world) {
        data::loader loader(service.pipeline |
                            data::send_to_data_service(service.config, world, mode) |
                            data::prefetch(4));
        std::size_t step = 0;
        for (const auto& batch : loader.epoch(1)) {
            all.add(batch);
            const std::size_t which = step / 10 % 2;
            if (world.rank() == 0 && step % 10 == 3) service.end(which);
            if (world.rank() == 0 && step % 10 == 7) service.start(which);
            ++step;
            std::this_thread::sleep_for(1ms);
        }
        world.barrier();
    });
    CHECK(all.sorted() == service.expected(1));
}

TEST_CASE("without a dispatcher first come, first served goes on") {
    running_service service(0);
    auto config = data::service_config::make(1, 1);
    std::optional<data::service_dispatcher> dispatcher(std::in_place, config);
    config.addresses = {dispatcher->addresses()};
    const auto pipeline = pipeline_of(600);
    const worker one(pipeline, config);
    gathered all;
    hvd::run_threads(2, [&](world_type& world) {
        data::loader loader(pipeline | data::send_to_data_service(config, world, mode) |
                            data::prefetch(2));
        all.add(*loader.next());  // by now it knows the worker
        world.barrier();
        if (world.rank() == 0) dispatcher.reset();
        while (const auto batch = loader.next()) all.add(*batch);
        world.barrier();
    });
    data::loader whole(pipeline, hvd::part{});
    CHECK(all.sorted() == running_service::sorted(batches_of(whole, 0)));
}

TEST_CASE("rank 0's position is one before which no batch is missing, for any number of ranks") {
    const running_service service(1500);
    data::loader_state at{5, 2, 0};
    gathered all;
    std::size_t taken = 0;
    for (const int ranks : {3, 1, 2, 4}) {
        gathered these;
        data::loader_state after;
        hvd::run_threads(ranks, [&](world_type& world) {
            data::loader loader(service.pipeline |
                                data::send_to_data_service(service.config, world, mode) |
                                data::prefetch(3));
            loader.resume(at);
            for (int step = 0; step < 12 + world.rank(); ++step)
                if (const auto batch = loader.next()) these.add(*batch);
            world.barrier();
            if (world.rank() == 0) after = loader.state();
            world.barrier();
        });
        CHECK(after.epoch == 2);
        CHECK(after.samples_done > at.samples_done);
        // all before it have come
        const data::permutation order(1500, 5, 2);
        for (std::uint64_t i = at.samples_done; i < after.samples_done; ++i) {
            const int sample = int(order(i));
            const auto has = [&](const auto& batch) {
                return std::any_of(batch.begin(), batch.end(),
                                   [&](int x) { return x / 10 == sample; });
            };
            const all_batches came = these.sorted();
            CHECK(std::any_of(came.begin(), came.end(), has));
        }
        for (const auto& batch : these.sorted()) all.add(batch);
        taken += these.sorted().size();
        at = after;
    }
    CHECK(taken > 100);
}

TEST_CASE("two trainings at once get all batches each, first come, first served") {
    const running_service service(500);
    gathered all[2];
    std::vector<std::thread> trainings;
    for (int i = 0; i < 2; ++i)
        trainings.emplace_back([&, i] {
            hvd::run_threads(2, [&](world_type& world) {
                data::loader loader(service.pipeline |
                                    data::send_to_data_service(service.config, world, mode));
                for (const auto& batch : loader.epoch(0)) all[i].add(batch);
                world.barrier();
            });
        });
    for (std::thread& each : trainings) each.join();
    for (const auto& each : all) CHECK(each.sorted() == service.expected(0));
}

TEST_CASE("an exception behind the service names the sample of the batch that was claimed") {
    const running_service service(70);
    gathered all;
    hvd::run_threads(2, [&](world_type& world) {
        const auto batches = service.pipeline |
                             data::send_to_data_service(service.config, world, mode) |
                             data::map([&](const std::vector<int>& batch) {
                                 all.add({batch[0] / 10});
                                 if (world.rank() == 1) throw std::runtime_error("no");
                                 return batch;
                             });
        data::loader loader(batches, {.threads = 0});
        if (world.rank() == 1) {
            try {
                (void)loader.next();
                FAIL("a batch came");
            } catch (const data::stage_error& e) {
                CHECK(e.rank() == 1);
                CHECK(all.sorted() == all_batches{{int(e.sample())}});
            }
        }
        world.barrier();
    });
}

TEST_CASE("first come, first served needs a communicator, unless a rank is alone") {
    const running_service service(70);
    data::loader alone(service.pipeline | data::send_to_data_service(service.config, 0, 1, mode));
    CHECK(running_service::sorted(batches_of(alone, 0)) == service.expected(0));
    check_has(thrown_by([&] { (void)data::send_to_data_service(service.config, 1, 2, mode); }),
              "first_come_first_served for rank 1 of 2 without a communicator");
}

TEST_CASE("ranks that begin another epoch, or at another position, are told") {
    const running_service service(70);
    hvd::run_threads(2, [&](world_type& world) {
        data::loader loader(service.pipeline |
                            data::send_to_data_service(service.config, world, mode));
        if (world.rank() == 0) (void)loader.next();
        world.barrier();
        if (world.rank() == 1)
            check_has(thrown_by([&] {
                          loader.begin_epoch(4);
                          (void)loader.next();
                      }),
                      "rank 1 begins epoch 4 of seed 5 behind sample 0 with 10 batches, and rank 0 "
                      "epoch 0 of seed 5 behind sample 0 with 10");
        world.barrier();
    });
}

TEST_CASE("a rank that resumes at the end is told if others do not") {
    const running_service service(70);
    for (const std::size_t ahead : {0, 1, 4})
        hvd::run_threads(2, [&](world_type& world) {
            data::loader loader(service.pipeline |
                                data::send_to_data_service(service.config, world, mode) |
                                data::prefetch(ahead));
            if (world.rank() == 1) CHECK(batches_of(loader, 0).size() == 10);
            world.barrier();
            if (world.rank() == 0) {
                loader.resume({5, 0, 70});
                check_has(thrown_by([&] { (void)loader.next(); }),
                          "rank 0 begins epoch 0 of seed 5 behind sample 70 with 0 batches, and "
                          "rank 1 epoch 0 of seed 5 behind sample 0 with 10");
            }
            world.barrier();
        });
}

TEST_CASE("ranks that all resume at the end have no batch, and the next epoch whole") {
    const running_service service(70);
    for (const std::size_t ahead : {0, 1, 4}) {
        gathered all;
        hvd::run_threads(3, [&](world_type& world) {
            data::loader loader(service.pipeline |
                                data::send_to_data_service(service.config, world, mode) |
                                data::prefetch(ahead));
            loader.resume({5, 0, 70});
            CHECK(!loader.next());
            for (const auto& batch : loader.epoch(1)) all.add(batch);
            world.barrier();
        });
        CHECK(all.sorted() == service.expected(1));
    }
}

TEST_CASE("without rank 0 the others throw the error of a lost rank, as elastic jobs take it") {
    const running_service service(700);
    std::atomic<bool> is_gone = false;
    hvd::run_threads(3, [&](world_type& world) {
        std::optional<data::loader<decltype(service.pipeline |
                                            data::send_to_data_service(service.config, 0, 1))>>
            loader(std::in_place,
                   service.pipeline | data::send_to_data_service(service.config, world, mode));
        CHECK(loader->next());
        world.barrier();
        if (world.rank() == 0) {
            loader.reset();
            is_gone = true;
            return;
        }
        while (!is_gone) std::this_thread::sleep_for(1ms);
        try {
            while (loader->next()) continue;
            FAIL("all batches came");
        } catch (const hvd::peer_error& e) {
            CHECK(e.peers() == std::vector<int>{0});
            check_has(e.what(), "rank 0, which hands out the batches first come, first served");
        }
    });
}

}  // namespace data_first_come_tests
