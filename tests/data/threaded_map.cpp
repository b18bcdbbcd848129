// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Stages that have threads and a queue of their own.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "data_test.hpp"
#include "hvd_test.hpp"

namespace data_threaded_map_tests {

namespace data = hvd::data;
using data_tests::batches_of;
using data_tests::numbers_below;
using data_tests::on_all_ranks;
using namespace std::chrono_literals;

namespace {

// The most callers that were inside at once, and all threads that ever were.
class callers {
public:
    template <class F>
    auto count(F f) {
        const int inside = ++inside_;
        for (int most = most_; most < inside && !most_.compare_exchange_weak(most, inside);)
            continue;
        {
            const std::lock_guard held(mutex_);
            threads_.insert(std::this_thread::get_id());
        }
        auto result = f();
        --inside_;
        return result;
    }
    int most() const { return most_; }
    std::size_t threads() const { return threads_.size(); }
    bool has(std::thread::id id) const { return threads_.count(id) > 0; }

private:
    std::atomic<int> inside_ = 0, most_ = 0;
    std::mutex mutex_;
    std::set<std::thread::id> threads_;
};

template <class F>
bool becomes_true(F f) {
    for (int i = 0; i < 4000; ++i) {
        if (f()) return true;
        std::this_thread::sleep_for(5ms);
    }
    return false;
}

const auto draw = [](int i, data::random& draws) { return 100 * i + int(draws.below(100)); };
const auto some = [](int x) { return x % 7 != 0; };
const auto fail_at_5 = [](int x) {
    return x % 10 == 5 ? throw std::runtime_error("no such picture") : x;
};

}  // namespace

TEST_CASE("stages with threads make the same batches, whatever their threads and queues") {
    const auto of = [](auto first, auto second) {
        return data::from(numbers_below(150)) | std::move(first) | data::filter(some) |
               data::map([](int x) { return x + 1; }) | std::move(second) |
               data::skip_errors({.at_most = 1000}) | data::shuffle({.seed = 4}) | data::batch(16);
    };
    const auto fused = of(data::map(draw), data::map(fail_at_5));
    for (const std::size_t threads : {0, 1, 2, 4})
        for (const std::size_t queue : {0, 1, 3}) {
            const auto staged = of(data::map(draw, {.threads = threads, .queue = queue}),
                                   data::map(fail_at_5, {.threads = 3 - threads / 2}));
            const auto one = of(data::map(draw), data::map(fail_at_5, {threads, queue}));
            for (const std::size_t of_loader : {0, 1, 3})
                for (const int ranks : {1, 2, 3}) {
                    INFO(threads, " threads, queue ", queue, ", ", of_loader, " of the loader, ",
                         ranks, " ranks");
                    const auto expected = on_all_ranks(fused, ranks, 1, of_loader);
                    CHECK(on_all_ranks(staged | data::prefetch(3), ranks, 1, of_loader) ==
                          expected);
                    CHECK(on_all_ranks(one, ranks, 1, of_loader) == expected);
                }
        }
    data::loader expected(fused, hvd::part{});
    data::loader got(of(data::map(draw, {.threads = 2}), data::map(fail_at_5, {.threads = 2})),
                     hvd::part{});
    CHECK(batches_of(got, 0) == batches_of(expected, 0));
    CHECK(got.skipped() == expected.skipped());
    CHECK(got.skipped() > 0);
}

TEST_CASE("each stage has its number of threads, and none of them is a loader's") {
    callers slow, quick, behind;
    const auto meet = [&](int i) {  // four are inside at once
        return slow.count([&] {
            CHECK(becomes_true([&] { return slow.most() >= 4; }));
            return i;
        });
    };
    const auto pipeline =
        data::from(numbers_below(200)) | data::map(meet, {.threads = 4, .queue = 8}) |
        data::map([&](int i) { return quick.count([&] { return i; }); }, {.threads = 1}) |
        data::map([&](int i) { return behind.count([&] { return i; }); }) | data::batch(20);
    data::loader loader(pipeline, hvd::part{}, {.threads = 0});
    std::vector<int> all;
    for (const auto& batch : loader.epoch(0)) all.insert(all.end(), batch.begin(), batch.end());
    CHECK(all == numbers_below(200));
    CHECK(slow.most() == 4);
    CHECK(slow.threads() == 4);
    CHECK(quick.threads() == 1);
    CHECK(behind.threads() == 1);
    const auto here = std::this_thread::get_id();
    CHECK(behind.has(here));
    CHECK_FALSE(slow.has(here));
    CHECK_FALSE(quick.has(here));
}

TEST_CASE("a stage makes no more samples than its queue has room for before they are taken") {
    for (const std::size_t queue : {1, 2, 5}) {
        std::atomic<int> begun = 0, taken = 0, most = 0;
        const auto made = [&](int i) {
            const int ahead = ++begun - taken;
            if (ahead > most) most = ahead;
            return i;
        };
        const auto take = [&](int i) {
            ++taken;
            std::this_thread::sleep_for(300us);
            return i;
        };
        const auto pipeline = data::from(numbers_below(100)) |
                              data::map(made, {.threads = 3, .queue = queue}) | data::map(take) |
                              data::batch(50);
        data::loader loader(pipeline, hvd::part{}, {.threads = 0});
        CHECK(batches_of(loader, 0).size() == 2);
        // one was taken out of the queue, and is not counted yet
        CHECK(most <= int(queue) + 1);
        const auto stages = loader.stages();
        REQUIRE(stages.size() == 1);
        CHECK(stages[0].without_room > 0);
    }
}

TEST_CASE("an exception in a stage with threads names stage and sample, the first one in order") {
    for (const std::size_t threads : {1, 4})
        for (const std::size_t of_loader : {0, 1, 3}) {
            const auto late = [](int i) {  // later samples fail before
                if (i == 17) std::this_thread::sleep_for(5ms);
                return i >= 17 ? throw std::runtime_error("no such picture") : i;
            };
            const auto pipeline = data::from(numbers_below(30)) |
                                  data::map([](int i) { return i; }, {.threads = threads}) |
                                  data::map(late, {.threads = threads, .queue = 6}) |
                                  data::map([](int i) { return i; }, {.threads = threads}) |
                                  data::batch(5) | data::prefetch(3);
            data::loader loader(pipeline, hvd::part{}, {.threads = of_loader});
            loader.begin_epoch(2);
            for (int i = 0; i < 3; ++i) CHECK(loader.next()->at(0) == 5 * i);
            for (int twice = 0; twice < 2; ++twice) try {
                    (void)loader.next();
                    FAIL("no exception");
                } catch (const data::stage_error& e) {
                    CHECK(std::string(e.what()) ==
                          "stage 2 (map), sample 17 of epoch 2: no such picture");
                    CHECK(e.stage() == 2);
                    CHECK(e.sample() == 17);
                    CHECK_THROWS_AS(std::rethrow_exception(e.cause()), std::runtime_error);
                }
            loader.begin_epoch(3);
            CHECK(loader.next()->at(0) == 0);
        }
}

TEST_CASE("samples of a batch that failed are not counted as ready") {
    std::atomic<int> made = 0;
    const auto fails = [&](int i) {
        if (i < 2) return i;
        CHECK(becomes_true([&] { return made >= 8; }));  // others lie in the queue
        throw std::runtime_error("no such picture");
    };
    const auto pipeline = data::from(numbers_below(30)) |
                          data::map([&](int i) { return ++made, i; }, {.threads = 2, .queue = 8}) |
                          data::map(fails) | data::batch(30);
    data::loader loader(pipeline, hvd::part{}, {.threads = 0});
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        made = 0;
        loader.begin_epoch(epoch);
        CHECK_THROWS_AS((void)loader.next(), data::stage_error);
        const auto s = loader.stages().at(0);
        CHECK(s.ready == 0);
        CHECK(s.making == 0);
    }
}

TEST_CASE("a loader of stages with threads may be dropped, and its pipeline has another one") {
    std::atomic<int> made = 0;
    const auto pipeline = data::from(numbers_below(100000)) |
                          data::map([&](int i) { return ++made, i; }, {.threads = 3, .queue = 4}) |
                          data::map([](int i) { return i; }, {.threads = 2, .queue = 1}) |
                          data::batch(1000) | data::prefetch(4);
    for (int i = 0; i < 20; ++i) {
        data::loader loader(pipeline, hvd::part{}, {.threads = 4});
        CHECK(loader.next()->back() == 999);
        loader.begin_epoch(1);
        CHECK(loader.next()->back() == 999);
    }
    const int after = made;
    std::this_thread::sleep_for(5ms);
    CHECK(made == after);
}

TEST_CASE("loaders of several threads share the threads of a stage") {
    callers inside;
    const auto pipeline =
        data::from(numbers_below(2000)) |
        data::map([&](int i) { return inside.count([&] { return i; }); }, {.threads = 2}) |
        data::batch(50) | data::prefetch(5);
    std::vector<std::thread> trainers;
    for (int t = 0; t < 3; ++t)
        trainers.emplace_back([&] {
            data::loader loader(pipeline, hvd::part{}, {.threads = 3});
            std::vector<int> all;
            for (const auto& batch : loader.epoch(0))
                all.insert(all.end(), batch.begin(), batch.end());
            CHECK(all == numbers_below(2000));
        });
    for (auto& each : trainers) each.join();
    CHECK(inside.threads() == 2);
    CHECK(pipeline.stages()[0].made == 6000);
}

TEST_CASE("the statistics of a stage tell whether it is waited for or waits") {
    for (const bool is_slow : {true, false}) {
        const auto nap = [](int i) { return std::this_thread::sleep_for(2ms), i; };
        const auto at_once = [](int i) { return i; };
        data::loader slow(data::from(numbers_below(40)) |
                              data::map(nap, {.threads = 2, .queue = 4}) | data::map(at_once) |
                              data::batch(40),
                          hvd::part{}, {.threads = 0});
        data::loader quick(data::from(numbers_below(40)) |
                               data::map(at_once, {.threads = 2, .queue = 4}) | data::map(nap) |
                               data::batch(40),
                           hvd::part{}, {.threads = 0});
        CHECK((is_slow ? slow.next() : quick.next()));
        const auto s = is_slow ? slow.stages().at(0) : quick.stages().at(0);
        CHECK(s.stage == 1);
        CHECK(s.threads == 2);
        CHECK(s.queue == 4);
        CHECK(s.made == 40);
        CHECK(s.ready == 0);
        CHECK(s.making == 0);
        CHECK_MESSAGE((is_slow ? s.busy : s.without_room) > 0.5 * 2 * 0.04, s.text());
        CHECK_MESSAGE((is_slow ? s.busy > s.without_room : s.without_room > s.busy), s.text());
        CHECK(s.text().find("stage 1 (map): 2 threads, busy in ") == 0);
        CHECK(s.json().find("\"made\": 40, ") != std::string::npos);
    }
    data::loader fused(data::from(numbers_below(4)) | data::batch(2), hvd::part{});
    CHECK(fused.stages().empty());
    CHECK(fused.prometheus().empty());
}

TEST_CASE("the statistics of stages are a text for Prometheus, with the labels of rank and stage") {
    const auto same = [](int i) { return i; };
    data::loader loader(data::from(numbers_below(40)) | data::map(same, {.threads = 2}) |
                            data::map(same, {.threads = 1}) | data::batch(40),
                        hvd::part{1, 2}, {.threads = 0});
    CHECK(loader.next());
    const std::string text = loader.prometheus();
    const auto has = [&](const std::string& line) {
        CHECK_MESSAGE(text.find(line) != text.npos, text);
    };
    has("# HELP hvd_data_stage_samples_total Samples that the stage made.\n"
        "# TYPE hvd_data_stage_samples_total counter\n"
        "hvd_data_stage_samples_total{rank=\"1\",stage=\"1\"} 20\n"
        "hvd_data_stage_samples_total{rank=\"1\",stage=\"2\"} 20\n");
    has("hvd_data_stage_ready{rank=\"1\",stage=\"2\"} 0\n");
    for (const char* const name : {"thread", "busy", "without_room", "awaited"})
        has("hvd_data_stage_" + std::string(name) + "_seconds_total{rank=\"1\",stage=\"1\"} ");
    const auto s = loader.stages().at(0);
    CHECK(s.thread_seconds == 2 * s.seconds);
}

namespace {

// Keeps what a loader tells of its stages.
struct told_counts {
    void on_begin(const hvd::event&) {}
    void on_end(const hvd::event&, bool) {}
    void on_split(told_counts& parent) { all = parent.all; }
    void on_counts(const hvd::event& e, std::string_view names, const std::int64_t* values) {
        all->push_back({std::string(e.name) + ": " + std::string(names), {values, values + 5}});
    }
    using told = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
    std::shared_ptr<told> all = std::make_shared<told>();
};

}  // namespace

TEST_CASE("an observer is told of the queues and the work of stages with threads") {
    told_counts observer;
    const auto nap = [](int i) { return std::this_thread::sleep_for(5ms), i; };
    data::loader loader(data::from(numbers_below(80)) | data::map(nap, {.threads = 2, .queue = 4}) |
                            data::batch(40),
                        hvd::part{}, {.threads = 0});
    loader.record_waits(observer);
    for (const auto& batch : loader.epoch(0)) CHECK(batch.size() == 40);
    REQUIRE(observer.all->size() >= 2);  // of the first batch, and of the end
    for (const auto& told : *observer.all)
        CHECK(told.first == "stage 1 (map): ready,making,samples per second,busy %,without room %");
    const std::vector<std::int64_t>& first = observer.all->front().second;
    CHECK(first[2] > 0);
    CHECK(first[3] > 0);
    CHECK(observer.all->back().second[0] == 0);
}

TEST_CASE("a loader without an observer of counts, or without threads, tells none") {
    struct waits_alone {
        void on_begin(const hvd::event&) {}
        void on_end(const hvd::event&, bool) {}
        void on_split(waits_alone&) {}
    } observer;
    data::loader loader(data::from(numbers_below(8)) |
                            data::map([](int i) { return i; }, {.threads = 1}) | data::batch(4),
                        hvd::part{});
    loader.record_waits(observer);
    CHECK(batches_of(loader, 0).size() == 2);
    told_counts counts;
    data::loader fused(data::from(numbers_below(8)) | data::batch(4), hvd::part{});
    fused.record_waits(counts);
    CHECK(batches_of(fused, 0).size() == 2);
    CHECK(counts.all->empty());
}

}  // namespace data_threaded_map_tests
