// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>

#include <hvd/hvd.hpp>
#include <hvd/train_engine.hpp>
#if defined(HVD_TEST_OPENSSL)
#include <hvd/interop/openssl.hpp>
#endif

#include "elastic_test.hpp"
#include "tcp_backend.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

namespace runs_tests {

// Elastic jobs on threads: ranks leave by an exception, and others come.

using namespace hvd_test;

static_assert(hvd::detail::is_elastic<hvd::tcp> && !hvd::detail::is_elastic<hvd::threads>);

namespace {

constexpr std::int64_t samples = 24;

// A trainer whose result does not depend on the number of ranks: in each step every sample adds to
// the weights, whoever has it. The numbers are small enough for sums without rounding.
struct trainer {
    std::vector<float> weights = std::vector<float>(3, 0);
    std::map<int, std::int64_t>* seen = nullptr;

    template <class Comm>
    void step(Comm& comm, std::int64_t number) {
        std::vector<float> gradient(weights.size(), 0);
        for (std::int64_t s = comm.rank(); s < samples; s += comm.size())
            for (std::size_t i = 0; i < gradient.size(); ++i)
                gradient[i] += float((number + s) % 7 + std::int64_t(i));
        comm.allreduce(gradient, hvd::sum);
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += gradient[i];
    }
};

std::vector<float> expected(std::int64_t steps) {
    trainer alone;
    for (std::int64_t n = 0; n < steps; ++n)
        for (std::int64_t s = 0; s < samples; ++s)
            for (std::size_t i = 0; i < alone.weights.size(); ++i)
                alone.weights[i] += float((n + s) % 7 + std::int64_t(i));
    return alone.weights;
}

class leaves : public std::exception {};

// Trains to the end, unless `fault` throws in a step.
struct report {
    std::vector<float> weights;
    std::int64_t step = -1, began_at = -1;
    std::vector<int> sizes;  // of the epochs
    bool was_thrown_back = false, left = false;
};
template <class Backend = hvd_test::tcp, class Fault>
report train(const hvd::elastic::options& o, std::int64_t steps, Fault fault,
             const std::string& directory = "") {
    trainer t;
    report r;
    hvd::elastic::state state(t.weights);
    if (!directory.empty()) state.persist_in(directory);
    state.on_reset([&](int, int size) { r.sizes.push_back(size); });
    std::int64_t committed = 0;
    try {
        hvd::elastic::run<Backend>(
            state,
            [&](auto& comm) {
                if (state.step() < committed) r.was_thrown_back = true;
                if (r.began_at < 0) r.began_at = state.step();
                while (state.step() < steps) {
                    fault(comm, state.step());
                    t.step(comm, state.step());
                    committed = state.step() + 1;
                    state.commit();
                }
            },
            o);
    } catch (const leaves&) {
        r.left = true;
    }
    r.weights = t.weights;
    r.step = state.step();
    return r;
}

constexpr auto nothing = [](auto&, std::int64_t) {};

// Keeps the lines that hvd writes meanwhile.
class kept_lines {
public:
    kept_lines() { all().clear(); }
    kept_lines(const kept_lines&) = delete;
    ~kept_lines() { hvd::set_message_sink(before_); }

    std::ptrdiff_t count(std::string_view text) const {
        const std::lock_guard lock(mutex());
        return std::ranges::count_if(
            all(), [&](const std::string& line) { return line.find(text) != std::string::npos; });
    }

private:
    static std::mutex& mutex() {
        static std::mutex one;
        return one;
    }
    static std::vector<std::string>& all() {
        static std::vector<std::string> lines;
        return lines;
    }
    static void keep(std::string_view line) {
        const std::lock_guard lock(mutex());
        all().emplace_back(line);
    }
    hvd::message_sink before_ = hvd::set_message_sink(&keep);
};

}  // namespace

TEST_CASE("a process without a launcher is an elastic job of its own") {
    hvd::elastic::options o;
    o.tcp = {};
    const report r = train(o, 5, nothing);
    CHECK(r.weights == expected(5));
    CHECK(r.step == 5);
    CHECK(r.sizes == std::vector<int>{1});
}

TEST_CASE("a process that a launcher has started with others is no job of its own") {
    struct launcher_of_two {
        launcher_of_two() { setenv("OMPI_COMM_WORLD_SIZE", "2", 1); }
        ~launcher_of_two() { unsetenv("OMPI_COMM_WORLD_SIZE"); }
    } const mpirun;
    hvd::elastic::options o;
    o.tcp = {};
    const auto is_refused = [&](auto backend) {
        CHECK_THROWS_WITH_AS(
            train<decltype(backend)>(o, 5, nothing),
            doctest::Contains("has one rank, but OMPI_COMM_WORLD_SIZE says that 2 were started"),
            hvd::usage_error);
    };
    is_refused(hvd_test::tcp());
#if defined(HVD_TEST_OPENSSL)
    is_refused(hvd::encrypted<hvd::tcp>());
#endif
    const variables told({{"HVD_ALONE", "1"}});
    CHECK(train(o, 5, nothing).weights == expected(5));
}

TEST_CASE("ranks train to the end, with the result of one") {
    for (const int size : {1, 2, 3, 4})
        for (const bool has_launcher : {false, true}) {
            CAPTURE(size);
            elastic_job job(size, has_launcher);
            std::vector<report> all(static_cast<std::size_t>(size));
            for (int r = 0; r < size; ++r)
                job.start(r, [&, r](auto& o) { all[std::size_t(r)] = train(o, 20, nothing); });
            job.await();
            for (const report& r : all) {
                CHECK(r.weights == expected(20));
                CHECK(r.step == 20);
                CHECK(r.sizes == std::vector<int>{size});
            }
        }
}

#if defined(HVD_TEST_OPENSSL)
TEST_CASE("the others go on over encrypted connections without a rank that leaves") {
    elastic_job job(3);
    std::vector<report> all(3);
    for (int r = 0; r < 3; ++r)
        job.start(r, [&, r](auto& o) {
            const auto fault = [&](auto&, std::int64_t step) {
                if (r == 1 && step == 9) throw leaves();
            };
            all[std::size_t(r)] = train<hvd::encrypted<hvd::tcp>>(o, 20, fault);
        });
    job.await();
    for (const int r : {0, 2}) {
        CHECK(all[std::size_t(r)].weights == expected(20));
        CHECK(all[std::size_t(r)].sizes == std::vector<int>{3, 2});
    }
}
#endif

TEST_CASE("the others go on without a rank that leaves, and lose no step") {
    for (const int size : {2, 3, 4})
        for (int gone = 0; gone < size; ++gone)
            for (const bool has_launcher : {false, true}) {
                CAPTURE(size);
                CAPTURE(gone);
                CAPTURE(has_launcher);
                elastic_job job(size, has_launcher);
                std::vector<report> all(static_cast<std::size_t>(size));
                for (int r = 0; r < size; ++r)
                    job.start(r, [&, r](auto& o) {
                        all[std::size_t(r)] = train(o, 20, [&](auto&, std::int64_t step) {
                            if (r == gone && step == 9) throw leaves();
                        });
                    });
                job.await();
                for (int r = 0; r < size; ++r) {
                    const report& one = all[std::size_t(r)];
                    CHECK(one.left == (r == gone));
                    if (r == gone) continue;
                    CHECK(one.weights == expected(20));
                    CHECK(!one.was_thrown_back);
                    // A rank that the machine keeps comes an epoch later than the others.
                    CHECK(one.sizes.size() >= 2);
                    CHECK(one.sizes.front() == size);
                    CHECK(one.sizes.back() == size - 1);
                }
            }
}

TEST_CASE("the others go on without several ranks of their host that leave at one moment") {
    hvd::elastic::bounds bounds;
    bounds.timeout = std::chrono::seconds(40);  // they need no such time
    const std::pair<int, std::set<int>> jobs[] = {
        {3, {0, 1}}, {3, {0, 2}}, {4, {0, 1}}, {4, {0, 3}}, {4, {1, 2, 3}}};
    for (const auto& [size, gone] : jobs) {
        CAPTURE(size);
        CAPTURE(gone.size());
        elastic_job job(size, false, bounds);
        std::vector<report> all(static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
            job.start(r, [&, r, leave = gone.contains(r)](auto& o) {
                try {
                    all[std::size_t(r)] = train(o, 20, [&](auto&, std::int64_t step) {
                        if (leave && step == 9) throw leaves();
                    });
                } catch (const hvd::peer_error& e) {
                    FAIL_CHECK(std::string(e.what()));
                }
            });
        job.await();
        for (int r = 0; r < size; ++r) {
            if (gone.contains(r)) continue;
            CHECK(all[std::size_t(r)].weights == expected(20));
            CHECK(!all[std::size_t(r)].was_thrown_back);
        }
    }
}

TEST_CASE("steps between commits are counted, and done again when a rank is lost") {
    elastic_job job(3);
    std::vector<report> all(3);
    std::atomic<int> repeated{0};
    for (int r = 0; r < 3; ++r)
        job.start(r, [&, r](auto& o) {
            trainer t;
            hvd::elastic::state state(t.weights);
            std::int64_t furthest = 0;
            try {
                hvd::elastic::run<hvd_test::tcp>(
                    state,
                    [&](auto& comm) {
                        CHECK(state.step() % 10 == 0);
                        if (state.step() < furthest) ++repeated;
                        while (state.step() < 40) {
                            if (r == 1 && state.step() == 27) throw leaves();
                            t.step(comm, state.step());
                            state.end_step();
                            furthest = std::max(furthest, state.step());
                            if (state.step() % 10 == 0) state.commit();
                        }
                    },
                    o);
            } catch (const leaves&) {
                all[std::size_t(r)].left = true;
            }
            all[std::size_t(r)].weights = t.weights;
            all[std::size_t(r)].step = state.step();
        });
    job.await();
    CHECK(repeated == 2);
    for (const int r : {0, 2}) {
        CHECK(all[std::size_t(r)].weights == expected(40));
        CHECK(all[std::size_t(r)].step == 40);
    }
    CHECK(all[1].left);
}

TEST_CASE("steps that have ended are forgotten by restore and by resume_from") {
    int object = 0;
    hvd::elastic::state state(object);
    state.end_step();
    state.end_step();
    CHECK(state.step() == 2);
    object = 7;
    state.restore();
    CHECK(state.step() == 0);
    CHECK(object == 0);
    state.end_step();
    state.resume_from(100);
    CHECK(state.step() == 100);
    state.commit();
    CHECK(state.step() == 101);
    state.end_step();
    state.commit();
    CHECK(state.step() == 102);
}

TEST_CASE("a function that catches what ends its epoch commits no failed step, and is told") {
    for (const bool returns : {false, true}) {
        CAPTURE(returns);
        const kept_lines lines;
        elastic_job job(3);
        std::vector<report> all(3);
        for (int r = 0; r < 3; ++r)
            job.start(r, [&, r](auto& o) {
                trainer t;
                hvd::elastic::state state(t.weights);
                try {
                    hvd::elastic::run<hvd_test::tcp>(
                        state,
                        [&](auto& comm) {
                            while (state.step() < 20) {
                                if (r == 1 && state.step() == 9) throw leaves();
                                try {
                                    t.step(comm, state.step());
                                } catch (const std::exception&) {  // of a library, it believes
                                    if (returns) return;
                                }
                                state.commit();
                            }
                        },
                        o);
                } catch (const leaves&) {
                    return;
                }
                all[std::size_t(r)].weights = t.weights;
                all[std::size_t(r)].step = state.step();
            });
        job.await();
        for (const int r : {0, 2}) {
            CHECK(all[std::size_t(r)].weights == expected(20));
            CHECK(all[std::size_t(r)].step == 20);
        }
        CHECK(lines.count(returns ? "has caught hvd::peer_error and gone on to its end"
                                  : "has caught hvd::peer_error and gone on to commit()") == 2);
    }
}

TEST_CASE("a function that catches a change of the job's size goes on to the next epoch") {
    const kept_lines lines;
    elastic_job job(1);
    std::atomic<int> epochs{0}, newcomers{0};
    const auto work = [&](const auto& o, bool begins) {
        int object = 0;
        hvd::elastic::state state(object);
        hvd::elastic::run<hvd_test::tcp>(
            state,
            [&](auto& comm) {
                ++epochs;
                if (begins && comm.size() == 1)
                    job.start(1, [&](auto& other) {
                        ++newcomers;
                        int own = 0;
                        hvd::elastic::state theirs(own);
                        hvd::elastic::run<hvd_test::tcp>(theirs, [](auto&) {}, other);
                    });
                while (comm.size() == 1) {
                    try {
                        state.commit();
                    } catch (...) {
                        return;
                    }
                }
            },
            o);
    };
    std::thread first([&] { work(job.options(0), true); });
    first.join();
    job.await();
    CHECK(newcomers == 1);
    CHECK(epochs == 2);
    CHECK(lines.count("has caught hvd::elastic::membership_change and gone on to its end") == 1);
}

TEST_CASE("a newcomer gets the state of the others, and takes part") {
    for (const bool has_launcher : {false, true}) {
        elastic_job job(2, has_launcher);
        std::atomic<bool> comes{false}, is_there{false};
        std::vector<report> all(3);
        const auto wait = [&](auto& comm, std::int64_t step) {
            if (step == 5 && comm.rank() == 0) comes = true;
            if (comm.size() == 3) is_there = true;
            if (step == 30)
                while (!is_there) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        // The two go on until the third is there: it must not be needed for a collective before.
        const auto slow = [&](auto& comm, std::int64_t step) {
            if (step < 30) wait(comm, step);
            else if (comm.size() == 3) is_there = true;
        };
        const auto until_there = [&](auto& o) {
            trainer t;
            report r;
            hvd::elastic::state state(t.weights);
            state.on_reset([&](int, int size) { r.sizes.push_back(size); });
            hvd::elastic::run<hvd_test::tcp>(
                state,
                [&](auto& comm) {
                    while (comm.size() < 3 || state.step() % 40 != 0) {
                        slow(comm, state.step());
                        t.step(comm, state.step());
                        state.commit();
                    }
                },
                o);
            r.weights = t.weights;
            r.step = state.step();
            return r;
        };
        for (int r = 0; r < 2; ++r)
            job.start(r, [&, r](auto& o) { all[std::size_t(r)] = until_there(o); });
        while (!comes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        job.start(7, [&](auto& o) { all[2] = until_there(o); });
        job.await();
        CHECK(all[0].sizes == std::vector<int>{2, 3});
        CHECK(all[2].sizes == std::vector<int>{3});
        for (const report& r : all) {
            CHECK(r.step == all[0].step);
            CHECK(r.weights == expected(r.step));
        }
    }
}

TEST_CASE("a job that asks between its commits lets newcomers in, from the last commit on") {
    elastic_job job(2);
    std::atomic<bool> comes{false};
    std::atomic<int> begun_at_3{0};
    std::vector<report> all(3);
    const auto work = [&](auto& o) {
        trainer t;
        report r;
        hvd::elastic::state state(t.weights);
        hvd::elastic::run<hvd_test::tcp>(
            state,
            [&](auto& comm) {
                if (comm.size() == 3 && state.step() == 3 && t.weights == expected(3)) ++begun_at_3;
                while (comm.size() < 3 || state.step() < 40) {
                    t.step(comm, state.step());
                    state.end_step();
                    if (state.step() == 3 || state.step() == 40) state.commit();
                    else state.check_host_updates();
                    if (state.step() == 5) comes = true;
                    // They go on until the third is there.
                    if (comm.size() == 2 && state.step() == 39) state.restore();
                }
            },
            o);
        r.weights = t.weights;
        r.step = state.step();
        return r;
    };
    for (int r = 0; r < 2; ++r) job.start(r, [&, r](auto& o) { all[std::size_t(r)] = work(o); });
    while (!comes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    job.start(7, [&](auto& o) { all[2] = work(o); });
    job.await();
    CHECK(begun_at_3 == 3);
    for (const report& r : all) {
        CHECK(r.step == 40);
        CHECK(r.weights == expected(40));
    }
}

// ---- steps of optimizers, which bring the answer that a commit needs ----------------------------

namespace {

// Counts the calls by which commits ask whether newcomers wait.
struct asking {
    void on_begin(const hvd::event& e) {
        if (e.name == "elastic membership") ++calls;
    }
    void on_end(const hvd::event&, bool) {}
    int calls = 0;
};
using watched = hvd::observed<hvd_test::tcp, asking>;

// Parameters that an optimizer steps from gradients which differ between ranks.
struct model {
    std::vector<float> x = std::vector<float>(5, 1), dx = x, y = std::vector<float>(2, 1), dy = y;

    template <class Optimizer>
    void step(Optimizer& optimizer) {
        dx.assign(5, float(optimizer.comm().rank() + 1));
        dy.assign(2, 1);
        optimizer.step();
    }
};
template <class Comm>
struct optimized : model {
    hvd::distributed_optimizer<Comm, hvd::optimizers::sgd<float>> optimizer;

    explicit optimized(Comm& comm, const hvd::optimizer_options& options = {})
        : optimizer(comm, {.rate = 1}, options) {
        optimizer.register_parameter("x", x, dx);
        optimizer.register_parameter("y", y, dy);
    }
    void step() { model::step(optimizer); }
};

// All ways of a step. The function takes the name of one, does it, and says how many calls the
// commit after it makes.
template <class Comm, class F>
void for_each_way(Comm& comm, F check) {
    constexpr auto float16 = hvd::codec::cast<hvd::float16>;
    optimized first(comm), second(comm), halved(comm, {.codec = float16}),
        with_feedback(comm, {.codec = hvd::codec::error_feedback(float16)}),
        by_adasum(comm, {.op = hvd::adasum}), careful(comm, {.skip_nonfinite = true});
    hvd::engine engine(comm);
    optimized by_name(engine);
    check("nothing", 1, [] {});
    check("a step", 0, [&] { first.step(); });
    check("nothing after a step", 1, [] {});
    check("steps of two optimizers", 0, [&] {
        first.step();
        second.step();
    });
    check("a step beside other calls", 0, [&] {
        comm.barrier();
        first.step();
        comm.barrier();
    });
    check("another call", 1, [&] { comm.allreduce(first.x, hvd::average); });
    check("a pass whose gradients stay", 1, [&] {
        const auto held = first.optimizer.no_sync();
        first.optimizer.gradient_ready(0);
    });
    check("the step after it", 0, [&] { first.step(); });
    check("a step that is dropped", 0, [&] { auto unused = second.optimizer.synchronize(); });
    check("a step that is left out", 0, [&] {
        careful.dx.assign(5, comm.rank() == 0 ? HUGE_VALF : 0);
        CHECK(!careful.optimizer.step());
        CHECK(careful.x == std::vector<float>(5, 1));
    });
    check("a codec", 0, [&] { halved.step(); });
    check("error feedback", 0, [&] { with_feedback.step(); });
    check("Adasum", 0, [&] { by_adasum.step(); });
    check("an engine", 0, [&] { by_name.step(); });
    check("frozen parameters", 1, [&] {
        for (const std::size_t i : {0, 1}) second.optimizer.freeze(i);
        second.step();
    });
    // One rank steps more often than the others do.
    auto some = comm.split(comm.rank() == 0 ? 0 : 1);
    optimized apart(some);
    check("steps of some ranks", 1, [&] {
        for (int n = comm.rank() == 0 ? 2 : 1; n > 0; --n) apart.step();
    });
    check("a step that one rank gives up", 0, [&] {
        if (comm.size() == 1) return first.step();
        optimized by_one(comm, {.bucket_bytes = 1});
        by_one.step();
        // Its smaller bucket has the question, and has started on all ranks.
        by_one.optimizer.gradient_ready(1);
        if (comm.rank() == 0) {
            by_one.optimizer.abandon("as if it failed");
        } else {
            by_one.optimizer.gradient_ready(0);
            CHECK_THROWS_AS(by_one.optimizer.step(), hvd::peer_error);
        }
    });
}

}  // namespace

TEST_CASE("a commit asks by a call of its own only if no step has brought the answer") {
    for (const int size : {1, 2, 3, 4}) {
        CAPTURE(size);
        elastic_job job(size);
        std::atomic<int> ways{0};
        for (int r = 0; r < size; ++r)
            job.start(r, [&](auto& o) {
                float x = 0;
                hvd::elastic::state state(x);
                hvd::elastic::run<watched>(
                    state,
                    [&](auto& comm) {
                        for_each_way(comm, [&](const std::string& way, int calls, auto step) {
                            step();
                            const int before = comm.observer().calls;
                            state.commit();
                            CAPTURE(way);
                            CHECK(comm.observer().calls - before == calls);
                            ++ways;
                        });
                    },
                    o);
            });
        job.await();
        CHECK(ways == 17 * size);
    }
}

TEST_CASE("a commit with local objects asks by a call of its own, which ends their exchange") {
    elastic_job job(2);
    for (int r = 0; r < 2; ++r)
        job.start(r, [&](auto& o) {
            float x = 0;
            hvd::elastic::local own(x);
            hvd::elastic::state state(own);
            hvd::elastic::run<watched>(
                state,
                [&](auto& comm) {
                    optimized one(comm);
                    while (state.step() < 3) {
                        one.step();
                        state.commit();
                        CHECK(comm.observer().calls == state.step());
                    }
                },
                o);
        });
    job.await();
}

TEST_CASE("ranks that only step optimizers let newcomers in, after the same step") {
    for (const auto codec : std::initializer_list<hvd::gradient_codec>{
             hvd::codec::none, hvd::codec::cast<hvd::float16>}) {
        elastic_job job(1, true);
        constexpr int most = 4;
        std::vector<std::map<int, std::int64_t>> began(most);  // by rank and size of the epoch
        std::vector<std::vector<float>> all(most);
        std::atomic<int> is_there{0};
        const auto train = [&](auto& o, std::size_t who) {
            model m;
            hvd::elastic::state state(m.x, m.y);
            hvd::elastic::run<watched>(
                state,
                [&](auto& comm) {
                    began[who][comm.size()] = state.step();
                    hvd::distributed_optimizer optimizer(
                        comm, hvd::optimizers::sgd<float>{1},
                        {.gradient_predivide_factor = 1e9, .codec = codec});
                    optimizer.register_parameter("x", m.x, m.dx);
                    optimizer.register_parameter("y", m.y, m.dy);
                    if (comm.rank() == 0) is_there = comm.size();
                    while (comm.size() < most) {
                        m.step(optimizer);
                        CHECK(comm.observer().calls == 0);
                        state.commit();
                    }
                },
                o);
            all[who] = m.x;
        };
        for (int r = 0; r < most; ++r) {
            job.start(r, [&, r](auto& o) { train(o, std::size_t(r)); });
            while (is_there <= r) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        job.await();
        for (int size = 2; size <= most; ++size)
            for (int r = 0; r < size; ++r) {
                CHECK(began[std::size_t(r)].at(size) == began[0].at(size));
                CHECK(began[0].at(size) > began[0].at(size - 1));
            }
        for (const auto& x : all) CHECK(x == all[0]);
    }
}

TEST_CASE("the job goes on without its launcher") {
    elastic_job job(3, true);
    std::atomic<bool> is_dead{false};
    std::vector<report> all(3);
    for (int r = 0; r < 3; ++r)
        job.start(r, [&, r](auto& o) {
            all[std::size_t(r)] = train(o, 20, [&](auto& comm, std::int64_t step) {
                if (step == 9 && comm.rank() == 0 && !is_dead.exchange(true)) job.kill_launcher();
            });
        });
    job.await();
    for (const report& r : all) CHECK(r.weights == expected(20));
}

TEST_CASE("a rank that has finished waits for the others, however long their launcher is dead") {
    hvd::elastic::bounds bounds;
    bounds.launcher_timeout = std::chrono::milliseconds(200);
    elastic_job job(2, true, bounds);
    std::atomic<bool> is_dead{false};
    std::string why[2];
    std::int64_t done[2] = {};
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            trainer t;
            hvd::elastic::state state(t.weights);
            try {
                hvd::elastic::run<hvd_test::tcp>(
                    state,
                    [&](auto& comm) {
                        while (state.step() < 5) {
                            t.step(comm, state.step());
                            state.commit();
                        }
                        if (r == 0 || is_dead.exchange(true)) return;
                        // The other rank has finished. This one writes its results, say.
                        std::this_thread::sleep_for(std::chrono::milliseconds(100));
                        job.kill_launcher();
                        std::this_thread::sleep_for(std::chrono::milliseconds(800));
                    },
                    o);
            } catch (const hvd::peer_error& e) {
                why[r] = e.what();
            }
            done[r] = state.step();
        });
    job.await();
    for (int r = 0; r < 2; ++r) {
        CHECK(why[r] == "");
        CHECK(done[r] == 5);
    }
}

TEST_CASE("a job goes on though another one has taken the port of its coordinator") {
    for (const bool has_launcher : {false, true}) {
        elastic_job job(3, has_launcher);
        std::optional<hvd::detail::coordinator_server> other;
        std::atomic<bool> is_taken{false};
        const auto take_port = [&] {
            if (has_launcher) job.kill_launcher();
            other.emplace(hvd::detail::coordinator_rules(), hvd::detail::new_secret(), job.port());
            is_taken = true;
        };
        std::vector<report> all(3);
        for (int r = 0; r < 3; ++r)
            job.start(r, [&, r](auto& o) {
                const auto fault = [&](auto&, std::int64_t step) {
                    if (step != 9) return;
                    if (r == 0 && !has_launcher) throw leaves();
                    if (r == 0 && !is_taken) take_port();
                    while (!is_taken) std::this_thread::yield();
                };
                try {
                    all[std::size_t(r)] = train(o, 20, fault);
                } catch (const hvd::usage_error& e) {
                    FAIL_CHECK(std::string(e.what()));
                }
                if (all[std::size_t(r)].left) take_port();
            });
        job.await();
        for (const report& r : all)
            if (!r.left) CHECK(r.weights == expected(20));
    }
}

TEST_CASE("a rank gives up when it is cut off from its launcher and from most others") {
    hvd::elastic::bounds bounds;
    // In the longer time the rank hears from its own coordinator that the others are missing.
    for (const auto& [size, cut_off] : {std::pair{2, 300}, {3, 300}, {4, 300}, {2, 5500}}) {
        CAPTURE(size);
        bounds.launcher_timeout = std::chrono::milliseconds(cut_off);
        elastic_job job(size, true, bounds);
        std::atomic<bool> is_dead{false};
        std::string text;
        for (int r = 0; r < size; ++r)
            job.start(r, [&, r, size = size](auto& o) {
                const auto fault = [&](auto& comm, std::int64_t step) {
                    if (step != 9) return;
                    if (comm.rank() == 0) {
                        job.kill_launcher();
                        is_dead = true;
                    }
                    while (!is_dead) std::this_thread::yield();
                    if (r < size - 1) throw leaves();
                };
                try {
                    train(o, 20, fault);
                } catch (const hvd::peer_error& e) {
                    text = e.what();
                }
            });
        job.await();
        const std::string why = "has not answered for " + std::to_string(cut_off) +
                                " ms (HVD_ELASTIC_LAUNCHER_TIMEOUT)";
        CHECK(text.find(why) != std::string::npos);
    }
}

TEST_CASE("a rank whose launcher answers waits longer than it would without") {
    hvd::elastic::bounds bounds;
    bounds.min_size = 2;
    bounds.launcher_timeout = std::chrono::milliseconds(1);
    elastic_job job(2, true, bounds);
    std::atomic<bool> has_left{false};
    std::vector<report> all(3);
    const auto leave = [](auto&, std::int64_t step) {
        if (step == 9) throw leaves();
    };
    job.start(0, [&](auto& o) { all[0] = train(o, 20, nothing); });
    job.start(1, [&](auto& o) {
        all[1] = train(o, 20, leave);
        has_left = true;
    });
    job.start(2, [&](auto& o) {
        while (!has_left) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        all[2] = train(o, 20, nothing);
    });
    job.await();
    CHECK(all[0].weights == expected(20));
    CHECK(all[2].weights == expected(20));
    CHECK(all[0].sizes == std::vector<int>{2, 2});
}

TEST_CASE("fewer ranks than the least wait, and give up in time") {
    hvd::elastic::bounds bounds;
    bounds.min_size = 2;
    bounds.timeout = std::chrono::seconds(2);  // the two come in time, also if kept
    elastic_job job(2, true, bounds);
    std::string text;
    job.start(0, [&](auto& o) {
        try {
            train(o, 20, nothing);
        } catch (const hvd::peer_error& e) {
            text = e.what();
        }
    });
    job.start(1, [&](auto& o) {
        train(o, 20, [](auto&, std::int64_t step) {
            if (step == 5) throw leaves();
        });
    });
    job.await();
    for (const char* part :
         {"processes here: 1, needed: 2 (HVD_ELASTIC_MIN_SIZE)", "missing: HVD_RANK 1;",
          "HVD_ELASTIC_TIMEOUT is 2 s", "after epoch 1", "waited"}) {
        CAPTURE(text);
        CHECK(text.find(part) != std::string::npos);
    }
}

TEST_CASE("a first epoch that does not begin says which ranks have not come") {
    hvd::elastic::bounds bounds;
    bounds.min_size = 2;
    bounds.timeout = std::chrono::milliseconds(300);
    elastic_job job(4, true, bounds);
    std::string text;
    job.start(2, [&](auto& o) {
        try {
            train(o, 20, nothing);
        } catch (const hvd::peer_error& e) {
            text = e.what();
        }
    });
    job.await();
    CAPTURE(text);
    CHECK(text.find("missing: HVD_RANK 0, 1, 3;") != std::string::npos);
}

TEST_CASE("errors that no lost rank explains do not repeat for ever") {
    elastic_job job(1);
    int epochs = 0;
    std::string text;
    job.start(0, [&](auto& o) {
        float x = 0;
        hvd::elastic::state state(x);
        state.resume_from(7);
        const auto fails = [&](auto&) {
            ++epochs;
            throw hvd::peer_error(0, "again", {});
        };
        try {
            hvd::elastic::run<hvd_test::tcp>(state, fails, o);
        } catch (const hvd::peer_error& e) {
            text = e.what();
        }
    });
    job.await();
    CHECK(epochs == 10);
    CAPTURE(text);
    for (const char* part : {"10 epochs in a row", "without a commit", "step 7", "again"})
        CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("any number of losses without a commit does not end a job") {
    constexpr int size = 13;
    elastic_job job(size, true);
    std::atomic<int> epochs = 0, ended = 0, failed = 0;
    for (int r = 0; r < size; ++r)
        job.start(r, [&](auto& o) {
            float x = 0;
            hvd::elastic::state state(x);
            try {
                hvd::elastic::run<hvd_test::tcp>(
                    state,
                    [&](auto& comm) {
                        if (comm.rank() == 0) ++epochs;
                        // The last one leaves in each epoch.
                        if (comm.size() > 1 && comm.rank() == comm.size() - 1) throw leaves();
                        comm.barrier();
                        ++ended;
                    },
                    o);
            } catch (const leaves&) {
            } catch (const hvd::peer_error&) {
                ++failed;
            }
        });
    job.await();
    CHECK(epochs == size);
    CHECK(ended == 1);
    CHECK(failed == 0);
}

TEST_CASE("ranks that return after different steps all end with an error") {
    for (int size = 2; size <= 4; ++size) {
        CAPTURE(size);
        elastic_job job(size, size == 4);  // without a launcher one of four has no majority then
        std::vector<std::string> errors(static_cast<std::size_t>(size));
        std::atomic<int> wrong_states = 0;
        for (int r = 0; r < size; ++r)
            job.start(r, [&, r](auto& o) {
                trainer t;
                hvd::elastic::state state(t.weights);
                auto committed = t.weights;
                try {
                    hvd::elastic::run<hvd_test::tcp>(
                        state,
                        [&](auto& comm) {
                            // The state is that of the last commit, also after a return.
                            if (t.weights != committed) ++wrong_states;
                            while (state.step() < (r == 1 ? 5 : 9)) {
                                t.step(comm, state.step());
                                state.commit();
                                committed = t.weights;
                            }
                            t.weights[0] = -1;
                        },
                        o);
                } catch (const hvd::peer_error& e) {
                    errors[std::size_t(r)] = e.what();
                }
            });
        job.await();
        CHECK(wrong_states == 0);
        for (int r = 0; r < size; ++r) {
            CAPTURE(r);
            const std::string& said = errors[std::size_t(r)];
            CHECK_MESSAGE(said.find("step 5") != std::string::npos, said);
            CHECK(said.find("Do all ranks return after the same step?") != std::string::npos);
            CHECK((said.find("returned after step 5") != std::string::npos) == (r == 1));
        }
    }
}

TEST_CASE("options of an elastic job that can't be are refused") {
    float x = 0;
    hvd::elastic::state state(x);
    const auto refusal = [&](auto change) {
        hvd::elastic::options o = elastic_job(2).options(1);
        change(o);
        try {
            hvd::elastic::run<hvd_test::tcp>(state, [](auto&) {}, o);
        } catch (const hvd::usage_error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    CHECK(has(refusal([](auto& o) { o.bounds.min_size = 0; }), "at least 0"));
    CHECK(has(refusal([](auto& o) { o.bounds.min_size = 3, o.bounds.max_size = 2; }), "at most 2"));
    CHECK(has(refusal([](auto& o) { o.bounds.min_size = 3; }), "HVD_SIZE=2"));
    CHECK(has(refusal([](auto& o) { o.tcp.rendezvous = ""; }), "HVD_RENDEZVOUS"));
    CHECK(has(refusal([](auto& o) { o.tcp.rendezvous = "nowhere"; }), "'nowhere'"));
    CHECK(has(refusal([](auto& o) { o.tcp.secret = "12"; }), "HVD_SECRET"));
}

TEST_CASE("a process takes part in a job once, not twice and not inside itself") {
    elastic_job job(1, true);
    job.start(0, [&](auto& o) {
        CHECK_THROWS_AS(train(o, 5, [&](auto&, std::int64_t) { train(o, 5, nothing); }),
                        hvd::usage_error);
        CHECK_THROWS_AS(train(o, 5, nothing), hvd::usage_error);
    });
    job.await();
}

TEST_CASE("a newcomer whose objects do not fit leaves, and the others go on") {
    elastic_job job(2, true);
    std::atomic<bool> has_begun{false}, has_left{false};
    std::vector<report> all(2);
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            trainer t;
            hvd::elastic::state state(t.weights);
            hvd::elastic::run<hvd_test::tcp>(
                state,
                [&](auto& comm) {
                    work_until(has_left, state, comm, [&] {
                        if (state.step() > 0) has_begun = true;
                        t.step(comm, state.step());
                    });
                },
                o);
            all[std::size_t(r)].weights = t.weights;
            all[std::size_t(r)].step = state.step();
        });
    while (!has_begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    job.start(7, [&](auto& o) {
        float memory[8] = {};
        hvd::tensor_view<float> wrong = hvd::view(memory, 8);
        hvd::elastic::state state(wrong);
        CHECK_THROWS_AS(
            hvd::elastic::run<hvd_test::tcp>(state, [](auto&) {}, o), hvd::mismatch_error);
        has_left = true;
    });
    job.await();
    for (const report& r : all) CHECK(r.weights == expected(r.step));
}

TEST_CASE("a job begins at the step of a checkpoint") {
    elastic_job job(2);
    std::vector<std::int64_t> steps(2, 0);
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            float x = 0;
            hvd::elastic::state state(x);
            state.resume_from(7);
            hvd::elastic::run<hvd_test::tcp>(
                state,
                [&](auto&) {
                    while (state.step() < 10) {
                        ++steps[std::size_t(r)];
                        state.commit();
                    }
                },
                o);
        });
    job.await();
    CHECK(steps == std::vector<std::int64_t>{3, 3});
}

TEST_CASE("a state refuses negative steps and samples, and holds nothing then") {
    double loss = 0;
    hvd::elastic::state state(loss);
    CHECK_THROWS_WITH_AS(
        state.resume_from(-2),
        doctest::Contains("resume_from of an elastic state: -2 steps, expected 0 or more"),
        hvd::usage_error);
    loss = 1;
    CHECK_THROWS_WITH_AS(
        state.commit({.samples = -1}),
        doctest::Contains("commit of an elastic state: -1 samples, expected 0 or more"),
        hvd::usage_error);
    CHECK(state.step() == 0);
    state.restore();
    CHECK(loss == 0);
}

TEST_CASE("samples that no number holds stay at the highest one") {
    int value = 0;
    hvd::elastic::state state(value);
    for (int i = 0; i < 3; ++i) state.commit({.samples = INT64_MAX});
    CHECK(hvd::detail::elastic_access::samples_of(state) == INT64_MAX);
    CHECK(state.step() == 3);
}

TEST_CASE("a view that has changed its size can't be put back") {
    std::vector<float> memory(10);
    hvd::tensor_view<float> one = hvd::view(memory.data(), 10);
    std::vector<hvd::tensor_view<float>> list{one};
    hvd::elastic::state state(one, list);
    list.clear();
    CHECK_THROWS_AS(state.restore(), hvd::usage_error);
    list.push_back(one);
    one = hvd::view(memory.data(), 4);
    CHECK_THROWS_AS(state.restore(), hvd::usage_error);
}

TEST_CASE("a process with another secret is refused and harms nobody") {
    elastic_job job(2, true);
    std::vector<report> all(2);
    std::atomic<bool> was_refused{false};
    for (int r = 0; r < 2; ++r)
        job.start(r, [&, r](auto& o) {
            all[std::size_t(r)] = train(o, 20, [&](auto&, std::int64_t step) {
                if (step == 10)
                    while (!was_refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            });
        });
    job.start(2, [&](hvd::elastic::options o) {
        o.tcp.secret = std::string(64, '7');
        CHECK_THROWS_AS(train(o, 20, nothing), hvd::usage_error);
        was_refused = true;
    });
    job.await();
    for (const report& r : all) CHECK(r.weights == expected(20));
}

// ---- states in files ----------------------------------------------------------------------------

namespace {

std::filesystem::path file_in(const std::string& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory))
        if (entry.path().extension() == ".hvd_state") return entry.path();
    return {};
}

std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Trains alone up to a step, and leaves its state in the directory.
void keep(const std::string& directory, std::int64_t steps) {
    hvd::elastic::options o;
    o.tcp = {};
    train(o, steps, nothing, directory);
}

bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

template <class State>
std::string why_it_is_refused(State& state, const std::string& directory) {
    try {
        state.persist_in(directory);
        hvd::detail::elastic_access::read_kept(state);
    } catch (const hvd::checkpoint_error& e) {
        return e.what();
    }
    return "";
}

}  // namespace

TEST_CASE("when all processes have died, another job goes on from their last step") {
    for (const int size : {1, 2, 3, 4})
        for (const bool has_launcher : {false, true}) {
            CAPTURE(size);
            CAPTURE(has_launcher);
            const temporary_directory directory;
            elastic_job first(size, has_launcher);
            for (int r = 0; r < size; ++r)
                first.start(r, [&](auto& o) {
                    train(
                        o, 20,
                        [](auto&, std::int64_t step) {
                            if (step == 9) throw leaves();
                        },
                        directory.path());
                });
            first.await();
            const int next_size = size % 4 + 1;
            elastic_job second(next_size, has_launcher);
            std::vector<report> all(static_cast<std::size_t>(next_size));
            for (int r = 0; r < next_size; ++r)
                second.start(r, [&, r](auto& o) {
                    all[std::size_t(r)] = train(o, 20, nothing, directory.path());
                });
            second.await();
            for (const report& r : all) {
                CHECK(r.began_at == 9);
                CHECK(r.weights == expected(20));
            }
        }
}

TEST_CASE("all hosts go on from the most steps that one of them finds") {
    const temporary_directory directories[3];
    keep(directories[1].path(), 9);
    keep(directories[2].path(), 7);
    elastic_job job(3);
    std::vector<report> all(3);
    for (int r = 0; r < 3; ++r)
        job.start(r, [&, r](hvd::elastic::options o) {
            o.tcp.host_id = "host " + std::to_string(r);
            all[std::size_t(r)] = train(o, 20, nothing, directories[r].path());
        });
    job.await();
    for (const report& r : all) {
        CHECK(r.began_at == 9);
        CHECK(r.weights == expected(20));
    }
    for (const auto& directory : directories) {
        trainer t;
        hvd::elastic::state state(t.weights);
        CHECK(why_it_is_refused(state, directory.path()) == "");
        CHECK(state.step() == 20);
        CHECK(t.weights == expected(20));
    }
}

TEST_CASE("a file is whole at any time, and its state is that of its step") {
    const temporary_directory directory;
    hvd::elastic::options o;
    o.tcp = {};
    std::int64_t last = 0;
    const auto look = [&](auto&, std::int64_t step) {
        trainer t;
        hvd::elastic::state state(t.weights);
        CHECK(why_it_is_refused(state, directory.path()) == "");
        CHECK(state.step() >= last);
        CHECK(state.step() <= step);
        CHECK(t.weights == expected(state.step()));
        last = state.step();
    };
    train(o, 100, look, directory.path());
    look(o, 100);
    CHECK(last == 100);
}

TEST_CASE("every n-th step is kept, and a checkpoint of more steps is taken in its place") {
    const temporary_directory directory;
    hvd::elastic::options o;
    o.tcp = {};
    trainer t;
    {
        hvd::elastic::state state(t.weights);
        CHECK(state.persisted().step == -1);
        state.persist_in(directory.path(), {.every = 10});
        hvd::elastic::run<hvd_test::tcp>(
            state,
            [&](auto& comm) {
                while (state.step() < 10) {
                    CHECK(!std::filesystem::exists(file_in(directory.path())));
                    t.step(comm, state.step());
                    state.commit();
                }
                while (state.persisted().step != 10)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                while (state.step() < 19) {
                    t.step(comm, state.step());
                    state.commit();
                }
            },
            o);
        CHECK(state.persisted().error == "");
    }
    for (const std::int64_t begin : {0, 9, 10, 11}) {
        trainer again;
        hvd::elastic::state state(again.weights);
        state.resume_from(begin);
        CHECK(why_it_is_refused(state, directory.path()) == "");
        CHECK(state.step() == std::max<std::int64_t>(begin, 10));
        CHECK(again.weights == expected(begin < 10 ? 10 : 0));
    }
    CHECK_THROWS_WITH_AS(hvd::elastic::state(o.tcp.rank).persist_in(directory.path(), {.every = 0}),
                         "hvd: persist_in with every = 0: it takes 1 or more steps",
                         hvd::usage_error);
}

TEST_CASE("files of a state are no links, and no user writes into another one's file") {
    const temporary_directory directory;
    const std::filesystem::path victim = std::filesystem::path(directory.path()) / "victim",
                                lock = std::filesystem::path(directory.path()) / "host.hvd_lock";
    std::ofstream(victim) << "somebody's bytes";
    const auto take = [&] { hvd::detail::job_lock(directory.path(), lock.string()).take(7); };
    SUBCASE("a link") { std::filesystem::create_symlink(victim, lock); }
    SUBCASE("another name of a file") { std::filesystem::create_hard_link(victim, lock); }
    CHECK_THROWS_AS(take(), hvd::checkpoint_error);
    std::string bytes;
    std::getline(std::ifstream(victim), bytes);
    CHECK(bytes == "somebody's bytes");
}

TEST_CASE("a state that was planted, or a directory where all users may replace it, is refused") {
    const temporary_directory directory, other;
    keep(directory.path(), 3);
    const auto refusal = [](const std::string& path) {
        trainer again;
        hvd::elastic::state state(again.weights);
        try {
            return why_it_is_refused(state, path);
        } catch (const hvd::error& e) {
            return std::string(e.what());
        }
    };
    SUBCASE("a link") {
        const std::filesystem::path file = file_in(directory.path());
        std::filesystem::create_symlink(file,
                                        std::filesystem::path(other.path()) / file.filename());
        CHECK(refusal(other.path()).find("is a link") != std::string::npos);
    }
    SUBCASE("a directory for all") {
        using std::filesystem::perms;
        std::filesystem::permissions(directory.path(), perms::all);
        CHECK(refusal(directory.path()).find("can be written by all users") != std::string::npos);
        std::filesystem::permissions(directory.path(), perms::owner_all | perms::group_all);
        CHECK(refusal(directory.path()).find("can be written by its group") != std::string::npos);
        std::filesystem::permissions(directory.path(), perms::all | perms::sticky_bit);
        CHECK(refusal(directory.path()) == "");
    }
    SUBCASE("a file that others may write") {
        for (const mode_t mode : {0600, 0644, 0620, 0602, 0666}) {
            CAPTURE(mode);
            REQUIRE(::chmod(file_in(directory.path()).c_str(), mode) == 0);
            const std::string why = refusal(directory.path());
            if ((mode & 022) == 0) CHECK(why == "");
            else CHECK(why.find("can be written by other users: it needs") != std::string::npos);
        }
    }
    SUBCASE("another user's file, for the superuser alone can make one") {
        if (::geteuid() != 0) return;
        CHECK(::chown(file_in(directory.path()).c_str(), 12345, 12345) == 0);
        CHECK(refusal(directory.path()).find("belongs to another user") != std::string::npos);
    }
}

TEST_CASE("a link to a directory is followed if nobody else can change it") {
    const temporary_directory directory, other;
    keep(directory.path(), 3);
    const std::string link = (other / "link").string(), next = (other / "next").string();
    std::filesystem::create_directory_symlink(directory.path() + "/.", link);
    std::filesystem::create_directory_symlink("link/", next);
    float x = 0;
    hvd::elastic::state stranger(x);
    for (const std::string& path : {link, link + "/", next, next + "/./"}) {
        CAPTURE(path);
        trainer t;
        hvd::elastic::state state(t.weights);
        CHECK(why_it_is_refused(state, path) == "");
        CHECK(state.step() == 3);
    }
    SUBCASE("its directory is checked") {
        std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
        CHECK(says(why_it_is_refused(stranger, next), "can be written by all users"));
    }
    SUBCASE("another user's link, for the superuser alone can make one") {
        if (::geteuid() != 0) return;
        CHECK(::lchown(link.c_str(), 12345, 12345) == 0);
        for (const std::string& path : {link, link + "/", link + "/.", next}) {
            const std::string why = why_it_is_refused(stranger, path);
            CAPTURE(why);
            CHECK(says(why, path + ": "));
            CHECK(says(why, "the link " + link + ", which belongs to user 12345"));
        }
    }
    SUBCASE("a link to nothing, and one to itself") {
        std::filesystem::remove_all(directory.path());
        CHECK(says(why_it_is_refused(stranger, next), next + ": "));
        std::filesystem::remove(link);
        std::filesystem::create_directory_symlink("next", link);
        CHECK(says(why_it_is_refused(stranger, next), next + ": "));
    }
}

TEST_CASE("a state stays in the directory that was checked, wherever its name leads later") {
    const temporary_directory directory, later, folder;
    const std::string link = (folder / "link").string();
    std::filesystem::create_directory_symlink(directory.path(), link);
    trainer t;
    {
        hvd::elastic::state state(t.weights);
        state.persist_in(link);
        std::filesystem::remove(link);
        std::filesystem::create_directory_symlink(later.path(), link);
        hvd::elastic::options o;
        o.tcp = {};
        hvd::elastic::run(
            state,
            [&](auto& comm) {
                while (state.step() < 3) {
                    t.step(comm, state.step());
                    state.commit();
                }
            },
            o);
    }
    CHECK(std::filesystem::is_empty(later.path()));
    hvd::elastic::state state(t.weights);
    CHECK(why_it_is_refused(state, directory.path()) == "");
    CHECK(state.step() == 3);
}

TEST_CASE("a sealed state is that of a job with this secret, and of no other") {
    const temporary_directory directory;
    const auto job_with = [&](const std::string& secret) {
        hvd::elastic::options o;
        o.tcp = {};
        o.tcp.secret = secret;
        o.bounds.seal_states = !secret.empty();
        return o;
    };
    // Why a job does not go on from the state, or "" if it has done so.
    const auto refusal = [&](const std::string& secret) -> std::string {
        try {
            const report r = train(job_with(secret), 6, nothing, directory.path());
            return r.began_at == 3 ? "" : "it began anew";
        } catch (const hvd::error& e) {
            return e.what();
        }
    };
    const auto has = [](const std::string& text, const char* part) {
        CAPTURE(text);
        return text.find(part) != std::string::npos;
    };
    const std::string secret(64, '5'), another(64, '7');
    train(job_with(secret), 3, nothing, directory.path());
    const std::filesystem::path path = file_in(directory.path());
    const std::string sealed = bytes_of(path);
    CHECK(has(refusal(another), "is sealed with another secret"));
    CHECK(has(refusal(""), "start it by hvdrun with the same --secret-file"));
    CHECK(has(refusal("beef"), "HVD_SECRET has no secret"));

    // Whoever changes a weight can mend the checksum, and not the seal.
    const std::size_t seal = 32, sum = 8;
    std::string forged = sealed.substr(0, sealed.size() - seal - sum);
    forged.back() = char(forged.back() ^ 1);
    hvd::detail::kept_checksum mended({});
    mended.add(std::as_bytes(std::span(forged)));
    const std::uint64_t value = mended.value();
    forged.append(reinterpret_cast<const char*>(&value), sum);
    forged += sealed.substr(sealed.size() - seal);
    std::ofstream(path, std::ios::binary) << forged;
    CHECK(has(refusal(secret), "is sealed with another secret"));
    for (std::size_t n = 1; n <= seal; ++n) {
        std::ofstream(path, std::ios::binary) << sealed.substr(0, sealed.size() - n);
        CHECK(has(refusal(secret), path.c_str()));
    }
    std::filesystem::remove(path);
    keep(directory.path(), 3);
    CHECK(has(refusal(secret), "has no seal of this job's secret"));

    std::ofstream(path, std::ios::binary) << sealed;
    CHECK(refusal(secret) == "");
}

TEST_CASE("a file that is torn or damaged is refused by its name, and changes nothing") {
    const temporary_directory directory;
    keep(directory.path(), 3);
    const std::filesystem::path path = file_in(directory.path());
    const std::string whole = bytes_of(path);
    const auto is_refused = [&](const std::string& bytes) {
        std::ofstream(path, std::ios::binary) << bytes;
        trainer t;
        hvd::elastic::state state(t.weights);
        const std::string why = why_it_is_refused(state, directory.path());
        return why.find(path.string()) != std::string::npos && t.weights == trainer().weights &&
               state.step() == 0;
    };
    for (std::size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        CHECK(is_refused(whole.substr(0, size)));
        std::string flipped = whole;
        flipped[size] = char(flipped[size] ^ (1 << size % 8));
        CHECK(is_refused(flipped));
    }
    CHECK(is_refused(whole + "more"));
    CHECK(!is_refused(whole));
}

TEST_CASE("a state that is larger than the parts in which it is written comes back as it was") {
    constexpr std::size_t part = hvd::detail::kept_checksum::chunk_bytes;
    const temporary_directory directory;
    std::vector<float> weights(3 * part / sizeof(float));
    std::vector<std::uint8_t> bytes(part + 1);
    std::iota(weights.begin(), weights.end(), 1.0f);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t(3));
    double loss = 7;
    hvd::elastic::options o;
    o.tcp = {};
    {
        hvd::elastic::state state(weights, loss, bytes);
        state.persist_in(directory.path());
        hvd::elastic::run<hvd_test::tcp>(state, [&](auto&) { state.commit(); }, o);
    }
    const auto read = [&] {
        std::vector<float> x;
        std::vector<std::uint8_t> y;
        double z = 0;
        hvd::elastic::state state(x, z, y);
        const std::string why = why_it_is_refused(state, directory.path());
        if (why.empty()) {
            CHECK(x == weights);
            CHECK(y == bytes);
            CHECK(z == loss);
        }
        return why;
    };
    CHECK(read() == "");
    const std::string whole = bytes_of(file_in(directory.path()));
    for (const std::size_t at : {part - 1, part, 2 * part + 77, 4 * part + 1}) {
        CAPTURE(at);
        std::string flipped = whole;
        flipped[at] = char(flipped[at] ^ 4);
        std::ofstream(file_in(directory.path()), std::ios::binary) << flipped;
        CHECK(says(read(), "its checksum is wrong"));
    }
}

TEST_CASE("the file of another program is refused, and says what differs") {
    const temporary_directory directory;
    keep(directory.path(), 3);
    const auto refusal = [&](auto&... objects) {
        hvd::elastic::state state(objects...);
        return why_it_is_refused(state, directory.path());
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    std::vector<double> doubles;
    std::vector<float> floats(2, 5);
    std::string text;
    CHECK(
        has(refusal(doubles), "vector of float32, and that of this program of vector of float64"));
    CHECK(has(refusal(text), "string"));
    CHECK(has(refusal(floats, text), "1 objects"));
    hvd::tensor_view<float> view = hvd::view(floats.data(), 2);
    CHECK(has(refusal(view), "has 2"));
    const std::string sizes = refusal(floats);
    CHECK(has(sizes, "object 1"));
    CHECK(has(sizes, "3 elements"));
    CHECK(has(sizes, "has 2"));
    CHECK(floats == std::vector<float>(2, 5));
    for (const std::size_t size : {3, 0}) {  // an empty vector gets its size later
        floats.assign(size, 5);
        CHECK(refusal(floats) == "");
        CHECK(floats == expected(3));
    }
}

TEST_CASE("a file of other sizes is refused, and what is empty takes its size from it") {
    const temporary_directory directory;
    using tensors = std::vector<std::vector<double>>;
    const tensors kept{{1, 2}, {3}};
    hvd::optimizers::sgd<float> optimizer{.momentum = 0.9f};
    optimizer.for_each_slot([](const char*, auto& slots) { slots.assign(2, {1, 2, 3}); });
    {
        tensors object = kept;
        hvd::elastic::state state(object, optimizer);
        state.persist_in(directory.path());
        hvd::elastic::options o;
        o.tcp = {};
        hvd::elastic::run<hvd_test::tcp>(state, [&](auto&) { state.commit(); }, o);
    }
    const auto refusal = [&](tensors object, std::size_t slots, std::size_t elements) {
        hvd::optimizers::sgd<float> other{.momentum = 0.9f};
        other.for_each_slot([&](const char*, auto& all) {
            all.resize(slots);
            for (auto& slot : all) slot.resize(elements);
        });
        hvd::elastic::state state(object, other);
        const std::string why = why_it_is_refused(state, directory.path());
        if (why.empty()) CHECK(object == kept);
        return why;
    };
    for (const tensors& good : {tensors{}, tensors{{}, {}}, kept}) {
        CHECK(refusal(good, 0, 0) == "");
        CHECK(refusal(good, 2, 0) == "");
        CHECK(refusal(good, 2, 3) == "");
    }
    for (const tensors& bad : {tensors{{}}, tensors{{}, {}, {}}, tensors{{1}, {1}}})
        CHECK(refusal(bad, 0, 0).find("object 1") != std::string::npos);
    CHECK(refusal(kept, 3, 0).find("object 2") != std::string::npos);
    CHECK(refusal(kept, 2, 4).find("object 2") != std::string::npos);
}

TEST_CASE("a directory that can't be used is refused by its name") {
    const temporary_directory directory;
    keep(directory.path(), 3);
    float x = 0;
    hvd::elastic::state state(x);
    for (const std::string& path :
         {directory.path() + "/not/there", file_in(directory.path()).string()})
        CHECK(why_it_is_refused(state, path).find(path) != std::string::npos);
    const std::string file = file_in(directory.path()).string();
    CHECK(why_it_is_refused(state, file).find("is no directory") != std::string::npos);
    CHECK(why_it_is_refused(state, directory.path() + "/new") == "");
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
    CHECK(why_it_is_refused(state, directory.path()).find("no regular file") != std::string::npos);
}

TEST_CASE("a directory that another job writes to is refused until that ends") {
    const temporary_directory directory;
    keep(directory.path(), 3);
    std::string path = file_in(directory.path()).string();
    path.replace(path.rfind('.'), std::string::npos, ".hvd_lock");
    CHECK(std::filesystem::exists(path));
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t other = fork();
    REQUIRE(other >= 0);
    if (other == 0) {
        hvd::detail::job_lock lock(directory.path(), path);
        lock.take(7);
        if (write(ready[1], "", 1) == 1) pause();
        _exit(1);
    }
    char byte;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    std::string why;
    try {
        keep(directory.path(), 5);
    } catch (const hvd::checkpoint_error& e) {
        why = e.what();
    }
    CAPTURE(why);
    CHECK(why.find(directory.path()) != std::string::npos);
    CHECK(why.find("another job") != std::string::npos);
    {
        hvd::detail::job_lock of_same_job(directory.path(), path);
        of_same_job.take(7);  // and goes on
    }
    kill(other, SIGKILL);
    REQUIRE(waitpid(other, nullptr, 0) == other);
    keep(directory.path(), 5);
    trainer t;
    hvd::elastic::state state(t.weights);
    CHECK(why_it_is_refused(state, directory.path()) == "");
    CHECK(state.step() == 5);
    for (const int end : ready) close(end);
}

TEST_CASE("a full disk does not end the job, and the last file stays") {
    const temporary_directory directory;
    std::vector<float> weights(100'000, 1);
    hvd::elastic::state state(weights);
    state.persist_in(directory.path());
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const auto limit_files = [&](rlim_t bytes) {
        const rlimit own{std::min(bytes, limit.rlim_max), limit.rlim_max};
        REQUIRE(setrlimit(RLIMIT_FSIZE, &own) == 0);
    };
    const auto await_step = [&](std::int64_t step) {
        while (state.persisted().step != step)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    static std::atomic<int> lines{0};
    const auto sink = hvd::set_message_sink([](std::string_view) { ++lines; });
    hvd::elastic::options o;
    o.tcp = {};
    hvd::elastic::run<hvd_test::tcp>(
        state,
        [&](auto&) {
            state.commit();
            await_step(1);
            limit_files(64 * 1024);
            for (int n = 0; n < 3; ++n) {
                state.commit();
                while (state.persisted().error.empty())
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            CHECK(state.persisted().error.find(directory.path()) != std::string::npos);
            CHECK(state.persisted().step == 1);
            std::vector<float> in_file;
            hvd::elastic::state other(in_file);
            CHECK(why_it_is_refused(other, directory.path()) == "");
            CHECK(other.step() == 1);
            CHECK(in_file == weights);
            limit_files(limit.rlim_cur);
            state.commit();
            await_step(5);
            CHECK(state.persisted().error == "");
            CHECK(lines == 1);
            limit_files(64 * 1024);  // once more, which is told once more
            state.commit();
            while (state.persisted().error.empty())
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            limit_files(limit.rlim_cur);
        },
        o);
    limit_files(limit.rlim_cur);
    hvd::set_message_sink(sink);
    CHECK(lines == 2);
}

// ---- objects that differ between the ranks ------------------------------------------------------

namespace {

// An account has its value from the steps that are done since it is open, and from who has opened
// it.
struct account {
    std::int64_t opened_by, value, opened_at = -1;
    void step(std::int64_t number) {
        if (opened_at < 0) opened_at = number;
        value = (value * 31 + number) % 1'000'003;
    }
    bool is_exact(std::int64_t steps) const {
        account other{opened_by, opened_by};
        for (std::int64_t n = opened_at; n >= 0 && n < steps; ++n) other.step(n);
        return value == other.value;
    }
};

// Each rank has its own account, and a text that grows. It takes over those that it finds.
struct bank {
    int opened = -1, rank = -1;  // the rank that a launcher gave, and that of the first epoch
    std::vector<account> accounts;
    std::string text;
    trainer shared;
    std::vector<int> lost, gone;  // of the last epoch
    std::int64_t began_at = -1, step = -1;
    bool is_exact = true, has_left = false, was_thrown_back = false;

    bool has_those_of(std::vector<int> others) const {
        std::vector<int> mine;
        for (const account& a : accounts) mine.push_back(int(a.opened_by));
        std::ranges::sort(mine);
        std::ranges::sort(others);
        return mine == others;
    }
};

constexpr auto twenty_steps = [](auto&, std::int64_t step) { return step < 20; };

template <class GoesOn, class Fault>
void run_bank(bank& b, const hvd::elastic::options& o, GoesOn goes_on, Fault fault) {
    hvd::elastic::local accounts(b.accounts);
    hvd::elastic::local text(b.text);
    hvd::elastic::state state(b.shared.weights, accounts, text);
    b.opened = o.tcp.rank;
    b.accounts.push_back({o.tcp.rank, o.tcp.rank});
    std::int64_t committed = 0;
    try {
        hvd::elastic::run<hvd_test::tcp>(
            state,
            [&](auto& comm) {
                if (state.step() < committed) b.was_thrown_back = true;
                if (b.rank < 0) b.rank = comm.rank();
                if (b.began_at < 0) b.began_at = state.step();
                b.lost.clear();
                b.gone = accounts.lost_without_copy();
                for (std::size_t i = 0; i < accounts.copies_of_lost().size(); ++i) {
                    const auto& [rank, lost] = accounts.copies_of_lost()[i];
                    b.lost.push_back(rank);
                    b.accounts.insert(b.accounts.end(), lost.begin(), lost.end());
                    b.is_exact =
                        b.is_exact && text.copies_of_lost()[i].rank == rank &&
                        text.copies_of_lost()[i].object.size() == std::size_t(state.step());
                }
                while (goes_on(comm, state.step())) {
                    for (const account& a : b.accounts)
                        b.is_exact = b.is_exact && a.is_exact(state.step());
                    fault(comm, state);
                    b.shared.step(comm, state.step());
                    for (account& a : b.accounts) a.step(state.step());
                    b.text.resize(std::size_t(state.step() + 1), '.');
                    state.commit();
                    committed = state.step();
                    b.is_exact = b.is_exact && accounts.copies_of_lost().empty() &&
                                 accounts.lost_without_copy().empty();
                }
            },
            o);
    } catch (const leaves&) {
        b.has_left = true;
    }
    b.step = state.step();
}

// Ranks leave after a step. Returns all in the order of their ranks before.
template <class Leaves>
std::vector<bank> banks_after(int size, Leaves leave, std::int64_t at = 9, int hosts = 1) {
    elastic_job job(size, true);
    std::vector<bank> all(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r)
        job.start(r, [&, r](hvd::elastic::options o) {
            if (hosts > 1) o.tcp.host_id = "host " + std::to_string(r * hosts / size);
            bank& b = all[std::size_t(r)];
            run_bank(b, o, twenty_steps, [&](auto&, auto& state) {
                if (state.step() == at && leave(b)) throw leaves();
            });
        });
    job.await();
    for (const bank& b : all) {
        CAPTURE(b.rank);
        CHECK(b.has_left == leave(b));
        CHECK(b.is_exact);
        CHECK(!b.was_thrown_back);
        if (b.has_left) continue;
        CHECK(b.step == 20);
        CHECK(b.shared.weights == expected(20));
        CHECK(std::ranges::all_of(b.accounts, [](const account& a) { return a.is_exact(20); }));
    }
    std::ranges::sort(all, {}, &bank::rank);
    return all;
}

}  // namespace

TEST_CASE("the objects of a lost rank are with the next one, and the others keep theirs") {
    for (const int size : {1, 2, 3, 4})
        for (int gone = -1; gone < (size > 1 ? size : 0); ++gone)
            for (const std::int64_t at : {0, 9}) {
                CAPTURE(size);
                CAPTURE(gone);
                CAPTURE(at);
                const auto all = banks_after(size, [=](auto& b) { return b.rank == gone; }, at);
                for (const bank& b : all) {
                    if (b.rank == gone) continue;
                    CHECK(b.gone.empty());
                    if (gone >= 0 && b.rank == (gone + 1) % size) {
                        CHECK(b.lost == std::vector<int>{gone});
                        CHECK(b.has_those_of({b.opened, all[std::size_t(gone)].opened}));
                    } else {
                        CHECK(b.lost.empty());
                        CHECK(b.has_those_of({b.opened}));
                    }
                }
            }
}

TEST_CASE("the objects of two lost ranks are found, unless one has held those of the other") {
    const auto apart = banks_after(4, [](auto& b) { return b.rank == 1 || b.rank == 3; });
    CHECK(apart[0].has_those_of({apart[0].opened, apart[3].opened}));
    CHECK(apart[2].has_those_of({apart[1].opened, apart[2].opened}));
    CHECK(apart[0].gone.empty());

    const auto neighbours = banks_after(4, [](auto& b) { return b.rank == 1 || b.rank == 2; });
    CHECK(neighbours[0].has_those_of({neighbours[0].opened}));
    CHECK(neighbours[3].has_those_of({neighbours[2].opened, neighbours[3].opened}));
    CHECK(neighbours[0].gone == std::vector<int>{1});
    CHECK(neighbours[3].gone == std::vector<int>{1});

    if (std::getenv("HVD_NODE_SIZE") != nullptr) return;  // which declares other nodes
    const auto of_a_host = banks_after(4, [](auto& b) { return b.opened < 2; }, 9, 2);
    for (const bank& b : of_a_host)
        if (!b.has_left) {
            CHECK(b.accounts.size() == 2);
            CHECK(b.gone.empty());
        }
}

TEST_CASE("copies go to the next node, and to the next rank where all are on one") {
    const auto keepers = [](const std::vector<int>& nodes) {
        std::vector<int> all;
        for (int r = 0; r < int(nodes.size()); ++r) all.push_back(hvd::detail::keeper_of(r, nodes));
        return all;
    };
    CHECK(keepers({0, 0, 0}) == std::vector<int>{1, 2, 0});
    CHECK(keepers({0, 0, 1, 1}) == std::vector<int>{2, 3, 0, 1});
    CHECK(keepers({0, 1, 0, 1}) == std::vector<int>{1, 0, 3, 2});
    CHECK(keepers({0, 0, 0, 1}) == std::vector<int>{3, 3, 3, 0});
    CHECK(keepers({0, 1, 2}) == std::vector<int>{1, 2, 0});
}

TEST_CASE("a rank that is ahead of a copy goes back by a step") {
    for (const int ahead : {0, 1, 2}) {
        CAPTURE(ahead);
        elastic_job job(3, true);
        std::vector<bank> all(3);
        std::vector<std::int64_t> began(3, -1);
        for (int r = 0; r < 3; ++r)
            job.start(r, [&, r](auto& o) {
                bool has_failed = false;
                run_bank(all[std::size_t(r)], o, twenty_steps, [&](auto& comm, auto& state) {
                    if (began[std::size_t(r)] < 0 && has_failed)
                        began[std::size_t(r)] = state.step();
                    if (state.step() != 9 || std::exchange(has_failed, true)) return;
                    comm.barrier();
                    // As if the copies of the others had come, and theirs had not.
                    if (comm.rank() == ahead) {
                        for (account& a : all[std::size_t(r)].accounts) a.step(state.step());
                        hvd::detail::elastic_access::end_exchange(state);
                        hvd::detail::elastic_access::set_watch(state, {}, {});
                        state.commit();
                    }
                    throw hvd::peer_error(0, "as if a rank were lost", {});
                });
            });
        job.await();
        for (int r = 0; r < 3; ++r) {
            CHECK(began[std::size_t(r)] == 9);
            CHECK(all[std::size_t(r)].is_exact);
            CHECK(all[std::size_t(r)].has_those_of({r}));
            CHECK(all[std::size_t(r)].shared.weights == expected(20));
        }
    }
}

TEST_CASE("a newcomer has its own object, and the object is found when the newcomer is lost") {
    elastic_job job(2, true);
    std::atomic<bool> comes{false};
    std::vector<bank> all(3);
    for (int r = 0; r < 3; ++r) {
        const auto run = [&, r](auto& o) {
            bool has_come = false;
            std::int64_t steps = 0;
            run_bank(
                all[std::size_t(r)], o,
                [&](auto& comm, std::int64_t step) {
                    has_come = has_come || comm.size() == 3;
                    return !has_come || comm.size() == 3 || step % 40 != 0;
                },
                [&](auto&, auto& state) {
                    if (state.step() == 5) comes = true;
                    if (r == 2 && ++steps == 5) throw leaves();
                });
        };
        if (r == 2)
            while (!comes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        job.start(r == 2 ? 7 : r, run);
    }
    job.await();
    for (const bank& b : all) {
        if (b.rank == 0) CHECK(b.has_those_of({b.opened, 7}));
        else CHECK(b.has_those_of({b.opened}));
    }
    CHECK(all[2].began_at > 0);
    for (const bank& b : all) {
        CHECK(b.is_exact);
        CHECK(!b.was_thrown_back);
        CHECK(b.gone.empty());
        if (!b.has_left) CHECK(b.shared.weights == expected(b.step));
    }
}

TEST_CASE("a rank that was left out comes again with the object that it has begun with") {
    hvd::elastic::bounds bounds;
    bounds.straggler_timeout = std::chrono::milliseconds(200);
    elastic_job job(3, true, bounds);
    std::atomic<bool> is_left_out{false};
    std::vector<bank> all(3);
    for (int r = 0; r < 3; ++r)
        job.start(r, [&, r](hvd::elastic::options o) {
            o.communicator.timeout = std::chrono::seconds(1);
            bool has_left = false;
            std::int64_t came_at = -1;  // it makes a step at least
            const auto goes_on = [&](auto& comm, std::int64_t step) {
                has_left = has_left || comm.size() == 2;
                if (came_at < 0 && comm.size() == 3 && (has_left || step > 15)) came_at = step;
                return came_at < 0 || step == came_at || step % 40 != 0;
            };
            run_bank(all[std::size_t(r)], o, goes_on, [&](auto& comm, auto& state) {
                if (state.step() == 15) is_left_out = comm.size() == 2;
                if (r == 2 && state.step() == 9)
                    while (!is_left_out) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            });
        });
    job.await();
    std::size_t old = 0;
    for (const bank& b : all) {
        CHECK(b.is_exact);
        CHECK(b.shared.weights == expected(b.step));
        for (const account& a : b.accounts) {
            CHECK(a.is_exact(b.step));
            if (a.opened_by == 2 && a.opened_at == 0) ++old;
        }
    }
    CHECK(old == 1);
    CHECK(all[2].accounts.size() == 1);
    CHECK(all[2].accounts[0].opened_at > 15);
}

namespace {

// Fails when it has sent the copies of a commit, as if it had not heard that all have theirs.
template <class Comm>
struct fails_after_sending {
    Comm& comm;
    int rank() const { return comm.rank(); }
    int size() const { return comm.size(); }
    hvd::gathered<std::byte> alltoall(const std::vector<std::byte>& own,
                                      const std::vector<std::size_t>& counts,
                                      const hvd::options& o) {
        comm.alltoall(own, counts, o);
        throw hvd::peer_error(-1, "as if a rank were lost", {});
    }
    friend const auto& place_of(const fails_after_sending& f) { return place_of(f.comm); }
};

// A rank of a job without a coordinator. Its account is its number and the step.
class rank_alone {
public:
    explicit rank_alone(int number) : own_(1, number) {
        hvd::detail::elastic_access::begin(state_);
    }

    template <class Comm>
    void begin(Comm& comm, const hvd::detail::elastic_epoch& epoch) {
        hvd::detail::elastic_access::set_exchange(state_, comm, epoch);
        hvd::detail::elastic_access::begin_epoch(state_, comm, epoch);
    }
    void commit(int value) {
        own_[0] = value;
        state_.commit();
    }
    template <class Comm>
    void fail_to_commit(Comm& comm, const hvd::detail::elastic_epoch& epoch) {
        fails_after_sending<Comm> fails{comm};
        hvd::detail::elastic_access::set_exchange(state_, fails, epoch);
        CHECK_THROWS_AS(commit(-1), hvd::peer_error);
        state_.restore();
    }
    std::int64_t step() const { return state_.step(); }
    int own() const { return own_[0]; }
    std::vector<int> lost() const {  // their objects
        std::vector<int> all;
        for (const auto& l : local_.copies_of_lost()) all.push_back(l.object[0]);
        return all;
    }
    std::size_t gone() const { return local_.lost_without_copy().size(); }

private:
    std::vector<float> weights_ = {0};
    std::vector<int> own_;
    hvd::elastic::local<std::vector<int>> local_{own_};
    hvd::elastic::state<std::vector<float>, hvd::elastic::local<std::vector<int>>> state_{weights_,
                                                                                          local_};
};

// Runs f(rank, communicator, epoch) on the ranks that an epoch has, with the state of the first.
using ranks_alone = std::vector<rank_alone*>;
template <class F>
void in_epoch(std::uint64_t number, const ranks_alone& ranks, hvd::detail::state_stamp stamp,
              bool is_equal, F f) {
    hvd::run_threads(int(ranks.size()), [&](auto& comm) {
        rank_alone& own = *ranks[std::size_t(comm.rank())];
        hvd::detail::elastic_epoch epoch;
        epoch.number = number;
        epoch.rank = comm.rank();
        epoch.size = comm.size();
        epoch.is_equal = is_equal;
        epoch.stamp = stamp;
        for (const rank_alone* r : ranks) {
            hvd::detail::elastic_member m;
            m.id = std::uint64_t(reinterpret_cast<std::uintptr_t>(r));
            epoch.members.push_back(m);
        }
        own.begin(comm, epoch);
        f(own, comm, epoch);
    });
}

}  // namespace

TEST_CASE("a rank that was left out throws nobody back when it comes again") {
    rank_alone a(1), b(2), c(3);
    in_epoch(1, {&a, &b, &c}, {}, false, [&](rank_alone& own, auto& comm, const auto& epoch) {
        own.commit(10 * own.own());
        if (&own == &b) own.fail_to_commit(comm, epoch);
        else own.commit(10 * own.own());
    });
    CHECK(a.step() == 2);
    CHECK(b.step() == 1);
    const auto fail = [](rank_alone& own, auto& comm, const auto& epoch) {
        own.fail_to_commit(comm, epoch);
    };
    const auto nothing_more = [](auto&...) {};
    SUBCASE("after a commit of the others that has failed") {
        in_epoch(2, {&a, &c}, {2, 1}, true, fail);
    }
    SUBCASE("before a commit of the others") { in_epoch(2, {&a, &c}, {2, 1}, true, nothing_more); }
    CHECK(c.lost() == std::vector<int>{-1});
    for (std::uint64_t epoch : {3, 4}) {  // nobody commits between them
        in_epoch(epoch, {&a, &b, &c}, {2, 1}, epoch == 4, nothing_more);
        for (const rank_alone* r : {&a, &b, &c}) CHECK(r->step() == 2);
        CHECK(a.own() == 100);
        CHECK(b.own() == 2);  // as at the begin
        CHECK(c.own() == 300);
        CHECK(c.lost() == std::vector<int>{-1});
        CHECK(a.lost().empty());
        CHECK(a.gone() + b.gone() + c.gone() == 0);
    }
    in_epoch(5, {&a, &b}, {2, 1}, true, nothing_more);
    CHECK(a.own() == 100);
    CHECK(b.own() == 2);
    CHECK(a.lost() == std::vector<int>{300});  // its keeper is the next rank
}

namespace {

// An object that can't be sent the first time.
struct sent_later {
    int value = 0;
    bool was_sent = false;
};

}  // namespace

}  // namespace runs_tests

template <>
struct hvd::elastic::saved<runs_tests::sent_later> {
    using copy = int;
    static void take(const runs_tests::sent_later& from, copy& to) { to = from.value; }
    static void put_back(const copy& from, runs_tests::sent_later& to) { to.value = from; }
    template <class Comm>
    static void synchronize(Comm&, runs_tests::sent_later& object, hvd::root) {
        if (!std::exchange(object.was_sent, true)) throw hvd::peer_error(0, "as if", {});
    }
};

namespace runs_tests {

TEST_CASE("a job whose first epoch fails begins with the objects as elastic::run has found them") {
    hvd::elastic::options o;
    o.tcp = {};
    sent_later shared, own;
    hvd::elastic::local local(own);
    hvd::elastic::state state(shared, local);
    shared.value = own.value = 7;  // those of a checkpoint
    hvd::elastic::run(state, [](auto&) {}, o);
    CHECK(shared.was_sent);
    CHECK(shared.value == 7);
    CHECK(own.value == 7);
}

}  // namespace runs_tests
