// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The times of steps, by a clock that the test turns.

#include <clocale>
#include <hvd/train.hpp>

#include "hvd_test.hpp"

namespace step_watch_tests {

using communicator = hvd_test::communicator;
using doctest::Approx;
using doctest::Contains;

namespace {

// Each look at the clock of this rank takes one of three times, in turn.
constexpr std::int64_t second = 1'000'000'000;
thread_local std::int64_t fake_time = 0;
thread_local int looks = 0, slowness = 1;

std::int64_t fake_clock() {
    // begin of a step: after computing; gradients complete: after waiting; end: after updating
    const std::int64_t spent[] = {10 * slowness, 3, 2};
    return fake_time += second * spent[looks++ % 3];
}

template <class Comm>
struct trainer {
    std::vector<float> a = std::vector<float>(100), b = std::vector<float>(7);
    std::vector<float> da = std::vector<float>(100, 1), db = std::vector<float>(7, 1);
    hvd::distributed_optimizer<Comm, hvd::optimizers::sgd<float>, float> optimizer;
    hvd::step_watch<Comm, hvd::optimizers::sgd<float>, float> watch;

    explicit trainer(Comm& comm, std::int64_t (*clock)())
        : optimizer(comm, {1}, {.bucket_bytes = 1}), watch(optimizer, clock) {
        fake_time = looks = 0;
        slowness = comm.rank() + 1;
        optimizer.register_parameter("a", a, da);
        optimizer.register_parameter("b", b, db);
    }
};

// Runs f on communicators that time their buckets.
template <class F>
void on_observed_ranks(F f) {
    using policy = hvd::observed<hvd_test::backend, hvd::bucket_times>;
#if defined(HVD_TEST_BACKEND_MPI)
    const hvd_test::failing_rank_does_not_hang guard;
    auto world = hvd::communicator<policy>::world();
    f(world);
#else
    for (const int ranks : hvd_test::thread_counts()) hvd::run_threads<policy>(ranks, f);
#endif
}

hvd::event call_of(const char* name, std::size_t bytes, std::int64_t time) {
    return {"allreduce", name, hvd::dtype::float32, bytes, 0, 1, time};
}

}  // namespace

TEST_CASE("a summary has the times of all ranks, and names the one for which the others wait") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, fake_clock);
        for (int step = 0; step < 5; ++step)  // the first does not count
            CHECK(t.watch.step(step == 0 ? 1000 : 8 + comm.rank()));
        const hvd::step_summary s = t.watch.summary();
        CHECK(s.steps == 4);
        REQUIRE(s.ranks.size() == std::size_t(comm.size()));
        double samples = 0;
        for (int r = 0; r < comm.size(); ++r) {
            const hvd::step_times& times = s.ranks[std::size_t(r)];
            CHECK(times.computing == Approx(10 * (r + 1)));
            CHECK(times.waiting == Approx(3));
            CHECK(times.updating == Approx(2));
            CHECK(times.communicating == 0);
            CHECK(times.overlap() == 0);
            CHECK(times.samples == 8 + r);
            samples += times.samples;
        }
        CHECK(s.slowest == comm.size() - 1);
        CHECK(s.samples_per_second == Approx(samples / (10 * comm.size() + 5)));
        CHECK(s.buckets.empty());
        // nobody has timed the buckets: the table says no number
        CHECK(s.text().find(" 0 %") == std::string::npos);
        CHECK(s.text().find("             -                          -\n") != std::string::npos);
        CHECK(t.a[0] == -5);
    });
}

TEST_CASE("a summary is of the steps since the last one") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, fake_clock);
        CHECK(t.watch.summary().steps == 0);
        looks = 0;
        for (int step = 0; step < 3; ++step) t.watch.step(1);
        CHECK(t.watch.summary().steps == 2);
        looks = 0;  // the summary looked at the clock, too
        for (int step = 0; step < 7; ++step) t.watch.step(2);
        const auto s = t.watch.summary();
        CHECK(s.steps == 7);
        CHECK(s.ranks[0].samples == 2);
        CHECK(s.ranks[0].computing == Approx(10));
        CHECK(t.watch.summary().samples_per_second == 0);
    });
}

TEST_CASE("gradients may be changed in a step that is watched, and a failed step does not count") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, fake_clock);
        for (int step = 0; step < 3; ++step)
            t.watch.step(1, [](auto& gradients) { hvd::clip_by_norm(gradients, 0.0); });
        CHECK(t.a[0] == 0);
        CHECK_THROWS_AS(t.watch.step(1, [](auto&) { throw std::runtime_error("no"); }),
                        std::runtime_error);
        for (int step = 0; step < 3; ++step) t.watch.step(1);
        CHECK(t.watch.summary().steps == 4);
    });
}

TEST_CASE("buckets are timed in the order in which they start, and other calls are not") {
    hvd::bucket_times times;
    const auto run = [&](const char* name, std::size_t bytes, std::int64_t from, std::int64_t to) {
        times.on_begin(call_of(name, bytes, from));
        times.on_end(call_of(name, bytes, to), true);
    };
    for (int step = 0; step < 2; ++step) {
        run("gradients", 100, 10, 15);
        run("metrics", 8, 20, 90);
        run("epoch 4: gradients", 200, 100, 107 + step);
        times.end_step();
    }
    REQUIRE(times.buckets().size() == 2);
    CHECK(times.buckets()[0].bytes == 100);
    CHECK(times.buckets()[0].nanoseconds == 10);
    CHECK(times.buckets()[1].bytes == 200);
    CHECK(times.buckets()[1].nanoseconds == 15);
    CHECK(times.buckets()[1].calls == 2);
    // A call that fails is no time of its bucket, and the next one is that of the next bucket.
    times.on_begin(call_of("gradients", 100, 300));
    times.on_end(call_of("gradients", 100, 1000), false);
    run("gradients", 200, 1100, 1101);
    REQUIRE(times.buckets().size() == 2);
    CHECK(times.buckets()[0].calls == 2);
    CHECK(times.buckets()[0].nanoseconds == 10);
    CHECK(times.buckets()[1].calls == 3);
    CHECK(times.buckets()[1].nanoseconds == 16);
    times.clear();
    CHECK(times.buckets().empty());
}

TEST_CASE("the share of the communication during which a rank computed is its overlap") {
    CHECK(hvd::step_times{.waiting = 1, .communicating = 4}.overlap() == 0.75);
    CHECK(hvd::step_times{.waiting = 0, .communicating = 4}.overlap() == 1);
    CHECK(hvd::step_times{.waiting = 5, .communicating = 4}.overlap() == 0);
    CHECK(hvd::step_times{}.overlap() == 0);
}

TEST_CASE("a communicator that times its buckets has them in the summary") {
    on_observed_ranks([](auto& comm) {
        trainer t(comm, fake_clock);
        for (int step = 0; step < 4; ++step) {
            t.optimizer.gradient_ready(1);
            t.optimizer.gradient_ready(0);
            t.watch.step(1);
        }
        const auto s = t.watch.summary();
        REQUIRE(s.buckets.size() == 2);
        CHECK(s.buckets[0].bytes == 7 * sizeof(float));
        CHECK(s.buckets[1].bytes == 100 * sizeof(float));
        for (const auto& times : s.ranks) CHECK(times.communicating >= 0);
        const std::string text = s.text();
        CHECK(text.find("3 steps, ") != std::string::npos);
        CHECK(text.find("bucket 1: 400 bytes") != std::string::npos);
    });
}

TEST_CASE("a summary has points, whatever the locale") {
    const std::string before = std::setlocale(LC_ALL, nullptr);
    for (const char* const name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"})
        if (std::setlocale(LC_ALL, name) != nullptr) break;
    hvd::step_summary s;
    s.steps = 3;
    s.times_buckets = true;
    s.samples_per_second = 12.25;
    s.ranks = {{0.0125, 0.001, 0.0005, 0.002, 4}};
    s.buckets = {{400, 0.00025}};
    const std::string text = s.text();
    std::setlocale(LC_ALL, before.c_str());
    CHECK(text ==
          "3 steps, 12.2 samples/s on 1 ranks; rank 0 is the slowest\n"
          "rank  computing  waiting  updating  communicating (ms a step)  overlapped\n"
          "   0     12.500    1.000     0.500          2.000                       50 %\n"
          "bucket 0: 400 bytes, 0.250 ms\n");
}

}  // namespace step_watch_tests
