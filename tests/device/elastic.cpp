// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Elastic jobs over NCCL, on threads with an emulated GPU each. Ranks leave by an exception at a
// step or in the middle of a call, and others come. The program is compiled as with the header of
// NCCL 2.29.2, and runs with libraries of several versions.

#include "newer_nccl.hpp"

#include <atomic>

#include <hvd/elastic_nccl.hpp>
#include <hvd/observed.hpp>
#include "../elastic/elastic_test.hpp"
#include "support.hpp"
#include "temporary_directory.hpp"
#include "trainer.hpp"

namespace elastic_tests {

using namespace device_test;
using hvd_test::elastic_job;

namespace {

using hosts_type = hvd::communicator<hvd::tcp>;

constexpr int growing = 22902, revoking = 22809, older = 22606;

class leaves : public std::exception {};

// A rank with such an observer leaves before a collective of this name.
struct leaving {
    std::string_view at;
    void on_begin(const hvd::event& e) const {
        if (e.collective == at) throw leaves();
    }
    void on_end(const hvd::event&, bool) const {}
};

struct report {
    std::vector<float> weights;
    std::int64_t step = -1;
    std::vector<int> sizes;  // of the epochs
    bool was_thrown_back = false, left = false;
};

// Trains to the end, unless `fault(gpus, hosts, trainer, step)` throws in a step.
template <class Fault>
report train(const hvd::elastic::options& o, std::int64_t steps, Fault fault) {
    report r;
    trainer t;
    auto weights = t.weights.view();
    hvd::elastic::state state(weights);
    state.on_reset([&](int, int size) { r.sizes.push_back(size); });
    std::int64_t committed = 0;
    try {
        hvd::elastic::run<hvd::nccl>(
            state,
            [&](gpus_type& gpus, hosts_type& hosts) {
                CHECK(gpus.rank() == hosts.rank());
                CHECK(gpus.size() == hosts.size());
                if (state.step() < committed) r.was_thrown_back = true;
                while (state.step() < steps) {
                    fault(gpus, hosts, t, state.step());
                    t.step(gpus, state.step());
                    state.commit();
                    committed = state.step();
                }
            },
            o);
    } catch (const leaves&) {
        r.left = true;
        return r;
    }
    r.weights = t.weights.values();
    r.step = state.step();
    return r;
}

// Called on a rank before it looks for its gradient.
thread_local std::function<void()> before_backward;

// It stands for the kernels of a model: the weights are drawn to 1.
double backward(hvd::tensor_view<float, hvd::device> weights,
                hvd::tensor_view<float, hvd::device> gradient, cudaStream_t stream) {
    if (before_backward) before_backward();
    emulation::enqueue(stream, [=] {
        const auto seen = [](const auto& x) {
            return reinterpret_cast<float*>(
                emulation::seen_by_device(x.data(), x.size() * sizeof(float)));
        };
        for (std::size_t i = 0; i < weights.size(); ++i) seen(gradient)[i] = seen(weights)[i] - 1;
    });
    return 1;
}

constexpr auto nothing = [](auto&&...) {};

void a_moment() { std::this_thread::sleep_for(1ms); }

// Weights whose way to the other ranks a test can disturb: `before` and `during` their broadcast.
struct sent_weights {
    hvd::tensor_view<float, hvd::device> view;
    std::function<void()> before;
    std::function<void(gpus_type&)> during;
};

// Runs a job with a library of this version. Nothing is left of it.
template <class F>
void with_library(int version, F f) {
    emulation::reset();
    emulation::answer("ncclGetVersion", version);
    f();
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
    emulation::reset();
}

//! [run_elastic_nccl]
double train_on_gpus(hvd::tensor_view<float, hvd::device> weights,
                     hvd::tensor_view<float, hvd::device> gradient, cudaStream_t stream,
                     const hvd::elastic::options& options = {}) {
    hvd::optimizers::sgd<float> sgd{.rate = 0.1f, .momentum = 0.9f};
    hvd::elastic::state state{weights, sgd};
    double loss = 0;
    hvd::elastic::run<hvd::nccl>(
        state,
        [&](hvd::communicator<hvd::nccl>& gpus, hvd::communicator<hvd::tcp>& hosts) {
            hvd::distributed_optimizer optimizer{gpus, sgd};
            optimizer.register_parameter("weights", weights, gradient);
            hvd::put_optimizer_state(optimizer, sgd);
            while (state.step() < 20) {
                loss = backward(weights, gradient, stream);
                optimizer.step(stream);
                hosts.allreduce(loss, hvd::average);
                hvd::fetch_optimizer_state(optimizer, sgd);
                state.commit();  // waits for the GPU
            }
        },
        options);
    return loss;
}
//! [run_elastic_nccl]

}  // namespace

}  // namespace elastic_tests

template <>
struct hvd::elastic::saved<elastic_tests::sent_weights> {
    using of_view = saved<hvd::tensor_view<float, hvd::device>>;
    using copy = of_view::copy;
    static void take(const elastic_tests::sent_weights& object, copy& to) {
        of_view::take(object.view, to);
    }
    static void put_back(const copy& from, const elastic_tests::sent_weights& object) {
        of_view::put_back(from, object.view);
    }
    template <class Comm>
    static void synchronize(Comm& comm, const elastic_tests::sent_weights& object, hvd::root from) {
        comm.gpus().barrier();  // the ranks connect in their first call
        object.before();
        auto sent = comm.gpus().broadcast_async(object.view, from);
        object.during(comm.gpus());
        sent.wait();
    }
};

namespace elastic_tests {

TEST_CASE("the state of hvd's optimizers on GPUs goes on when a rank is lost") {
    const auto trained = [](int size, int gone) {
        elastic_job job(size);
        std::vector<std::vector<float>> all(static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
            job.start(r, [&, r](auto& o) {
                trainer t;
                before_backward = [r, gone, calls = 0]() mutable {
                    if (r == gone && ++calls == 9) throw leaves();
                };
                try {
                    train_on_gpus(t.weights.view(), t.gradient.view(), t.stream, o);
                    all[std::size_t(r)] = t.weights.values();
                } catch (const leaves&) {
                }
            });
        job.await();
        return all;
    };
    with_library(revoking, [&] {
        const float alone = trained(1, -1)[0][0];
        for (const int gone : {0, 2}) {
            const auto all = trained(3, gone);
            for (int r = 0; r < 3; ++r)
                if (r != gone) CHECK(all[std::size_t(r)][0] == doctest::Approx(alone));
        }
    });
}

TEST_CASE("ranks with GPUs train to the end, with the result of one") {
    for (int size = 1; size <= 4; ++size)
        with_library(revoking, [&] {
            CAPTURE(size);
            elastic_job job(size, size % 2 == 0);
            std::vector<report> all(static_cast<std::size_t>(size));
            for (int r = 0; r < size; ++r)
                job.start(r, [&, r](auto& o) { all[std::size_t(r)] = train(o, 20, nothing); });
            job.await();
            for (const report& r : all) {
                CHECK(r.weights == expected(20));
                CHECK(r.step == 20);
                CHECK(r.sizes == std::vector<int>{size});
            }
        });
}

TEST_CASE("the others go on without a rank that leaves, by a shrink where NCCL can") {
    for (const int version : {revoking, older}) {
        int shrinks = 0;
        for (int size = 2; size <= 4; ++size)
            for (int gone = 0; gone < size; ++gone)
                for (const bool is_inside : {false, true})
                    with_library(version, [&] {
                        CAPTURE(version);
                        CAPTURE(size);
                        CAPTURE(gone);
                        CAPTURE(is_inside);
                        elastic_job job(size);
                        std::vector<report> all(static_cast<std::size_t>(size));
                        for (int r = 0; r < size; ++r)
                            job.start(r, [&, r](auto& o) {
                                const auto fault = [&](auto& gpus, auto&, auto& t, auto step) {
                                    if (r != gone || step != 3 + 5 * gone) return;
                                    if (is_inside) t.step(gpus, step);
                                    throw leaves();
                                };
                                all[std::size_t(r)] = train(o, 20, fault);
                            });
                        job.await();
                        for (int r = 0; r < size; ++r) {
                            const report& one = all[std::size_t(r)];
                            CHECK(one.left == (r == gone));
                            if (r == gone) continue;
                            CHECK(one.weights == expected(20));
                            CHECK(!one.was_thrown_back);
                            CHECK(one.sizes.front() == size);
                            CHECK(one.sizes.back() == size - 1);
                        }
                        CHECK((emulation::calls_of("ncclCommRevoke") > 0) == (version != older));
                        shrinks += emulation::calls_of("ncclCommShrink");
                    });
        // Not all do: NCCL shrinks nothing from a rank on which it was still beginning a call.
        CHECK((shrinks > 0) == (version != older));
    }
}

TEST_CASE("streams go on when a rank is lost, though nobody waits inside hvd") {
    for (const int version : {revoking, older})
        with_library(version, [&] {
            elastic_job job(2);
            report one;
            job.start(0, [&](auto& o) {
                one = train(o, 20, [](auto& gpus, auto&, auto& t, auto step) {
                    if (gpus.size() == 1 || step != 9) return;
                    t.step(gpus, step);
                    cudaStreamSynchronize(t.stream);
                });
            });
            job.start(1, [&](auto& o) {
                train(o, 20, [](auto&, auto&, auto&, auto step) {
                    if (step == 9) throw leaves();
                });
            });
            job.await();
            CHECK(one.weights == expected(20));
            CHECK(one.sizes == std::vector<int>{2, 1});
        });
}

TEST_CASE("an arena ends while a stream waits for a rank that is lost") {
    for (const int version : {revoking, older})
        for (int size = 2; size <= 4; ++size)
            with_library(version, [&] {
                CAPTURE(version);
                CAPTURE(size);
                elastic_job job(size);
                std::vector<int> sizes(std::size_t(size), 0);
                for (int r = 0; r < size; ++r)
                    job.start(r, [&, r](auto& o) {
                        const trainer t;
                        int step = 0;
                        hvd::elastic::state state(step);
                        const auto fn = [&](gpus_type& gpus, hosts_type& hosts) {
                            hvd::device_arena arena(gpus, 4096);
                            auto x = arena.tensor<float>(hvd::shape(1000));
                            sizes[std::size_t(r)] = gpus.size();
                            for (; step < 5; ++step) {
                                if (r + 1 == size && step == 2) throw leaves();
                                gpus.allreduce_async(x, hvd::sum, {.stream = t.stream})
                                    .wait(t.stream);
                                float loss = 1;
                                hosts.allreduce(loss, hvd::sum);
                                state.commit();
                            }
                        };
                        try {
                            hvd::elastic::run<hvd::nccl>(state, fn, o);
                            CHECK(step == 5);
                            CHECK(sizes[std::size_t(r)] == size - 1);
                        } catch (const leaves&) {
                            CHECK(r + 1 == size);
                        }
                    });
                job.await();
            });
}

TEST_CASE("a communicator of elastic::run is not captured, and goes on") {
    for (int size = 2; size <= 3; ++size)
        with_library(revoking, [&] {
            elastic_job job(size);
            for (int r = 0; r < size; ++r)
                job.start(r, [](auto& o) {
                    const report one = train(o, 3, [](auto& gpus, auto&, auto& t, auto) {
                        auto plan = gpus.plan_allreduce(t.gradient.view(), hvd::sum);
                        cudaGraph_t graph{};
                        cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal);
                        CHECK_THROWS_WITH_AS(
                            plan.run(t.stream),
                            doctest::Contains("a communicator of elastic::run needs the host"),
                            hvd::usage_error);
                        CHECK(cudaStreamEndCapture(t.stream, &graph) == cudaSuccess);
                        cudaGraphDestroy(graph);
                    });
                    CHECK(one.weights == expected(3));
                });
            job.await();
        });
}

TEST_CASE("a commit holds nothing if work of its step has failed") {
    with_library(revoking, [] {
        elastic_job job(2);
        std::atomic<bool> is_committed{false};
        std::vector<float> held;
        job.start(0, [&](auto& o) {
            trainer t;
            auto weights = t.weights.view();
            hvd::elastic::state state(weights);
            hvd::elastic::run<hvd::nccl>(
                state,
                [&](gpus_type& gpus) {
                    if (gpus.size() == 1) return;
                    t.step(gpus, 0);
                    state.commit();
                    is_committed = true;
                    t.step(gpus, 1);
                    CHECK_THROWS_AS(state.commit(), hvd::peer_error);
                    CHECK(state.step() == 1);
                    state.restore();
                    held = t.weights.values();
                    throw hvd::peer_error(0, "as commit", {});
                },
                o);
        });
        job.start(1, [&](auto& o) {
            train(o, 20, [&](auto&, auto&, auto&, auto step) {
                if (step == 0) return;
                while (!is_committed) a_moment();
                throw leaves();
            });
        });
        job.await();
        CHECK(held == expected(1));
    });
}

TEST_CASE("garbage of a rank that was given up is not held, though the peers notice nothing") {
    enum class moment { beginning, commit, end };
    for (const moment when : {moment::beginning, moment::commit, moment::end})
        for (int size = 2; size <= 4; ++size)
            with_library(revoking, [&] {
                CAPTURE(int(when));
                CAPTURE(size);
                elastic_job job(size);
                std::atomic<bool> is_given_up{false};
                std::vector<std::vector<float>> all(static_cast<std::size_t>(size));
                for (int r = 0; r < size; ++r)
                    job.start(r, [&, r](auto& o) {
                        // Rank 1 is given up in the middle of a call that the others begin then.
                        const auto before = [&](bool is_now) {
                            while (is_now && r != 1 && !is_given_up) a_moment();
                        };
                        const auto during = [&](bool is_now, gpus_type& gpus) {
                            if (!is_now || r != 1) return;
                            gpus.abort();
                            is_given_up = true;
                            for (int i = 0; i < 50; ++i) a_moment();
                            throw leaves();
                        };
                        trainer t;
                        const bool at_beginning = when == moment::beginning;
                        sent_weights weights{t.weights.view(), [&] { before(at_beginning); },
                                             [&](auto& gpus) { during(at_beginning, gpus); }};
                        hvd::elastic::state state(weights);
                        try {
                            hvd::elastic::run<hvd::nccl>(
                                state,
                                [&](gpus_type& gpus) {
                                    while (state.step() < 10) {
                                        const bool is_now =
                                            when == moment::commit && state.step() == 5;
                                        before(is_now);
                                        t.step(gpus, state.step());
                                        during(is_now, gpus);
                                        state.commit();
                                    }
                                    before(when == moment::end);
                                    t.step(gpus, 10);
                                    during(when == moment::end, gpus);
                                },
                                o);
                            all[std::size_t(r)] = t.weights.values();
                        } catch (const leaves&) {
                        }
                    });
                job.await();
                for (int r = 0; r < size; ++r)
                    CHECK(all[std::size_t(r)] == (r == 1 ? std::vector<float>() : expected(11)));
            });
}

TEST_CASE("ranks with GPUs that return after different steps all end with an error") {
    with_library(revoking, [] {
        elastic_job job(2);
        std::atomic<int> errors{0};
        for (int r = 0; r < 2; ++r)
            job.start(r, [&, r](auto& o) {
                CHECK_THROWS_AS(train(o, r == 1 ? 5 : 9, nothing), hvd::peer_error);
                ++errors;
            });
        job.await();
        CHECK(errors == 2);
    });
}

TEST_CASE("ranks whose network is lost, or whose NCCL fails, go on anew") {
    for (const bool is_network : {true, false})
        for (int size = 3; size <= 4; ++size)
            with_library(revoking, [&] {
                CAPTURE(is_network);
                CAPTURE(size);
                elastic_job job(size);
                std::vector<report> all(static_cast<std::size_t>(size));
                for (int r = 0; r < size; ++r)
                    job.start(r, [&, r](auto& o) {
                        const auto fault = [&](auto& gpus, auto&, auto&, auto step) {
                            if (r != 1 || step != 9) return;
                            if (is_network) emulation::kill(gpus.native_handle());
                            else emulation::fail("ncclCommShrink", size - 2, ncclSystemError);
                            throw leaves();
                        };
                        all[std::size_t(r)] = train(o, 20, fault);
                    });
                job.await();
                for (int r = 0; r < size; ++r) {
                    if (r == 1) continue;
                    CHECK(all[std::size_t(r)].weights == expected(20));
                    CHECK(all[std::size_t(r)].sizes.back() == size - 1);
                }
                // On a busy machine they may shrink before they see that a network is lost.
                const int made = emulation::calls_of("ncclCommInitRankConfig");
                CHECK((made == size + size - 1 || (is_network && made == size)));
            });
}

TEST_CASE("ranks whose NCCL can't revoke the communicator that shrinks go on anew") {
    with_library(revoking, [] {
        // Two ranks have left their last step. The third has returned, and revokes when it shrinks.
        emulation::fail("ncclCommRevoke", 3, ncclSystemError);
        elastic_job job(3);
        std::atomic<bool> has_returned{false};
        std::vector<std::vector<float>> all(3);
        for (int r = 0; r < 3; ++r)
            job.start(r, [&, r](auto& o) {
                trainer t;
                auto weights = t.weights.view();
                hvd::elastic::state state(weights);
                const auto train_to_the_end = [&](gpus_type& gpus) {
                    while (state.step() < 10) {
                        t.step(gpus, state.step());
                        state.commit();
                    }
                    if (r == 0) has_returned = true;
                    if (r == 0 || gpus.size() == 2) return;
                    while (!has_returned) a_moment();
                    for (int i = 0; i < 10; ++i) a_moment();
                    if (r == 1) throw hvd::peer_error(0, "as a call", {});
                    throw leaves();
                };
                try {
                    hvd::elastic::run<hvd::nccl>(state, train_to_the_end, o);
                    all[std::size_t(r)] = t.weights.values();
                } catch (const leaves&) {
                }
            });
        job.await();
        CHECK(all[0] == expected(10));
        CHECK(all[1] == expected(10));
        CHECK(emulation::calls_of("ncclCommInitRankConfig") == 5);
    });
}

TEST_CASE("the communicator of an epoch has no parts, which would not hear of a lost rank") {
    for (int size = 1; size <= 3; ++size)
        with_library(revoking, [&] {
            elastic_job job(size);
            for (int r = 0; r < size; ++r)
                job.start(r, [&](auto& o) {
                    float x = 0;
                    hvd::elastic::state state(x);
                    hvd::elastic::run<hvd::nccl>(
                        state,
                        [&](gpus_type& gpus) {
                            CHECK_THROWS_AS((void)gpus.split(0), hvd::usage_error);
                            CHECK_THROWS_AS((void)gpus.local(), hvd::usage_error);
                            CHECK_THROWS_AS((void)gpus.cross(), hvd::usage_error);
                            CHECK_THROWS_AS((void)gpus.subset({0}), hvd::usage_error);
                            CHECK_THROWS_AS((void)gpus.shrink({0}), hvd::usage_error);
                            gpus.barrier();
                        },
                        o);
                });
            job.await();
        });
}

TEST_CASE("newcomers get the state of the others, by a growth where NCCL can") {
    constexpr int failing = growing + 1;  // the growth fails on one rank, and all go on anew
    for (const int version : {growing, failing, revoking, older})
        for (int size = 1; size <= 3; ++size)
            with_library(version, [&] {
                CAPTURE(version);
                CAPTURE(size);
                if (version == failing) emulation::fail("ncclCommGrow", 1, ncclSystemError);
                elastic_job job(size);
                std::atomic<bool> comes{false};
                std::vector<report> all(std::size_t(size) + 1);
                const auto until_there = [&](auto& o) {
                    trainer t;
                    report r;
                    std::vector<hvd::tensor_view<float, hvd::device>> weights{t.weights.view()};
                    hvd::elastic::state state(weights);
                    state.on_reset([&](int, int n) { r.sizes.push_back(n); });
                    hvd::elastic::run<hvd::nccl>(
                        state,
                        [&](gpus_type& gpus) {
                            while (gpus.size() <= size || state.step() % 10 != 0) {
                                t.step(gpus, state.step());
                                state.commit();
                                if (state.step() == 5) comes = true;
                            }
                        },
                        o);
                    r.weights = t.weights.values();
                    r.step = state.step();
                    return r;
                };
                for (int r = 0; r < size; ++r)
                    job.start(r, [&, r](auto& o) { all[std::size_t(r)] = until_there(o); });
                while (!comes) a_moment();
                job.start(7, [&](auto& o) { all.back() = until_there(o); });
                job.await();
                for (const report& r : all) {
                    CHECK(r.sizes.back() == size + 1);
                    CHECK(r.step == all[0].step);
                    CHECK(r.weights == expected(r.step));
                }
                const bool grows = version >= growing && size > 1;
                const bool is_anew = version != growing || size == 1;
                CHECK((emulation::calls_of("ncclCommGrow") > 0) == grows);
                CHECK(emulation::calls_of("ncclCommInitRankConfig") ==
                      (size > 1 ? size : 0) + (is_anew ? size + 1 : 0));
                CHECK(emulation::calls_of("ncclCommShrink") == 0);
            });
}

TEST_CASE("ranks leave and come at random moments, and the result is that of one") {
    for (unsigned seed = 1; seed <= 9; ++seed)
        with_library(std::vector{growing, revoking, older}[seed % 3], [&] {
            CAPTURE(seed);
            std::minstd_rand random(seed);
            const auto below = [&](unsigned n) { return random() % n; };
            const int size = int(2 + below(3));
            elastic_job job(size, true);
            std::vector<report> all(std::size_t(size) + 2);
            for (std::size_t r = 0; r < all.size(); ++r) {
                const bool is_new = r >= std::size_t(size), leaves_early = r > 0 && below(2) == 0;
                const std::int64_t last = below(30);
                const bool is_inside = below(2) == 0;
                if (is_new) std::this_thread::sleep_for(std::chrono::milliseconds(below(30)));
                job.start(int(r), [=, &all](auto& o) {
                    const auto fault = [&](auto& gpus, auto&, auto& t, auto step) {
                        if (!leaves_early || step < last) return;
                        if (is_inside) t.step(gpus, step);
                        throw leaves();
                    };
                    try {
                        all[r] = train(o, 30, fault);
                    } catch (const hvd::peer_error& e) {  // it has come too late
                        CHECK(std::string(e.what()).find("has ended") != std::string::npos);
                        all[r].left = true;
                    }
                });
            }
            job.await();
            CHECK(!all[0].left);
            for (const report& r : all)
                if (!r.left) CHECK(r.weights == expected(30));
        });
}

TEST_CASE("a rank whose GPU fails leaves with its error, and the others go on") {
    with_library(revoking, [] {
        elastic_job job(3);
        std::atomic<int> failed{0}, done{0};
        for (int r = 0; r < 3; ++r)
            job.start(r, [&](auto& o) {
                try {
                    const report one = train(o, 20, [](auto& gpus, auto&, auto&, auto step) {
                        if (step == 9 && gpus.rank() == 0 && gpus.size() == 3)
                            emulation::fail("cudaEventRecord", 1, cudaErrorECCUncorrectable);
                    });
                    CHECK(one.weights == expected(20));
                    ++done;
                } catch (const hvd::cuda_error&) {
                    ++failed;
                }
            });
        job.await();
        CHECK(failed == 1);
        CHECK(done == 2);
    });
}

TEST_CASE("a rank keeps its device in all epochs, whichever is current in the function") {
    for (int size = 1; size <= 3; ++size)
        with_library(revoking, [&] {
            CAPTURE(size);
            elastic_job job(size);
            std::vector<std::vector<float>> all(static_cast<std::size_t>(size));
            std::atomic<int> epochs_on_others{0};
            for (int r = 0; r < size; ++r)
                job.start(r, [&, r](auto& o) {
                    cudaSetDevice(1 + r);
                    trainer t;
                    auto weights = t.weights.view();
                    hvd::elastic::state state(weights);
                    bool is_first = true;
                    hvd::elastic::run<hvd::nccl>(
                        state,
                        [&](gpus_type& gpus) {
                            int current = -1;
                            cudaGetDevice(&current);
                            if (gpus.device() != 1 + r || current != 1 + r) ++epochs_on_others;
                            while (state.step() < 10) {
                                t.step(gpus, state.step());
                                state.commit();
                                if (state.step() != 5 || !std::exchange(is_first, false)) continue;
                                // Work of the device is under way when the state is put back.
                                emulation::enqueue(t.stream, [w = t.weights.data()] {
                                    std::this_thread::sleep_for(20ms);
                                    std::memset(emulation::seen_by_device(w, 12), 0x4b, 12);
                                });
                                cudaSetDevice(0);
                                throw hvd::peer_error(0, "as a call", {});
                            }
                        },
                        o);
                    all[std::size_t(r)] = t.weights.values();
                });
            job.await();
            CHECK(epochs_on_others == 0);
            for (const auto& weights : all) CHECK(weights == expected(10));
        });
}

TEST_CASE("a process without a GPU, or with options that can't be, does not take part") {
    emulation::reset();
    hvd::elastic::options o = elastic_job(2).options(1);
    const auto refusal = [&o](const hvd::nccl_options& own) {
        float x = 0;
        hvd::elastic::state state(x);
        try {
            hvd::elastic::run<hvd::nccl>(state, [](gpus_type&) {}, o, own);
        } catch (const hvd::error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    const ncclConfig_t blocking = configured([](ncclConfig_t& c) { c.blocking = 1; });
    CHECK(has(refusal({.config = blocking}),
              "elastic::run<hvd::nccl>: nccl_options has .config.blocking"));
    const ncclConfig_t neither = configured([](ncclConfig_t& c) { c.blocking = 7; });
    CHECK(has(refusal({.config = neither}), ".config.blocking 7"));
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    CHECK(has(refusal({}), "elastic::run<hvd::nccl>: NCCL_COMM_BLOCKING is 1"));
    unsetenv("NCCL_COMM_BLOCKING");
    o.tcp = {};
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    CHECK(has(refusal({}), "OMPI_COMM_WORLD_SIZE says that 2 were started"));
    unsetenv("OMPI_COMM_WORLD_SIZE");
    emulation::fail("cudaGetDevice", 1, cudaErrorNoDevice);
    CHECK(has(refusal({}), "cudaGetDevice"));
    emulation::answer("ncclGetVersion", 21805);
    CHECK(has(refusal({}), "2.18.5"));
    emulation::reset();
}

TEST_CASE("device tensors are kept in files, and ranks of the host can have them, too") {
    emulation::reset();
    const hvd_test::temporary_directory directory;
    for (const std::int64_t steps : {7, 15}) {
        elastic_job job(2);
        std::vector<float> of_one_rank(2, -1);
        for (int r = 0; r < 2; ++r)
            job.start(r, [&, r](auto& o) {
                const tensor<float> memory{0, float(r)};
                std::vector<hvd::tensor_view<float, hvd::device>> list{memory.view()};
                auto one = memory.view();
                hvd::elastic::state state(list, one);
                state.persist_in(directory.path());
                hvd::elastic::run(
                    state,
                    [&](hosts_type&) {
                        CHECK(memory.values()[0] == float(state.step()));
                        of_one_rank[std::size_t(r)] = memory.values()[1];
                        while (state.step() < steps) {
                            const float next = float(state.step() + 1);
                            cudaMemcpy(memory.data(), &next, 4, cudaMemcpyHostToDevice);
                            state.commit();
                        }
                    },
                    o);
            });
        job.await();
        CHECK(of_one_rank[0] == of_one_rank[1]);
    }
    CHECK(emulation::live_objects() == 0);
}

TEST_CASE("a view of the device that has changed its size can't be put back") {
    const tensor<float> memory(std::vector<float>(10, 1));
    auto one = memory.view();
    std::vector<hvd::tensor_view<float, hvd::device>> list{one};
    hvd::elastic::state state(one, list);
    list.clear();
    CHECK_THROWS_AS(state.restore(), hvd::usage_error);
    list.push_back(one);
    one = hvd::device_view(memory.data(), 4);
    CHECK_THROWS_AS(state.restore(), hvd::usage_error);
}

TEST_CASE("a newcomer whose device tensors have other sizes leaves, and the others go on") {
    with_library(growing, [] {
        elastic_job job(2);
        std::atomic<bool> has_begun{false}, has_left{false};
        for (int r = 0; r < 2; ++r)
            job.start(r, [&](auto& o) {
                trainer t;
                auto weights = t.weights.view();
                hvd::elastic::state state(weights);
                hvd::elastic::run<hvd::nccl>(
                    state,
                    [&](gpus_type& gpus, hosts_type& hosts) {
                        hvd_test::work_until(has_left, state, hosts, [&] {
                            if (state.step() > 0) has_begun = true;
                            t.step(gpus, state.step());
                        });
                    },
                    o);
                CHECK(t.weights.values() == expected(state.step()));
            });
        while (!has_begun) a_moment();
        job.start(7, [&](auto& o) {
            const tensor<float> memory{1, 2};
            auto wrong = memory.view();
            hvd::elastic::state state(wrong);
            CHECK_THROWS_AS(
                hvd::elastic::run<hvd::nccl>(state, [](gpus_type&) {}, o), hvd::mismatch_error);
            has_left = true;
        });
        job.await();
    });
}

TEST_CASE("a growth that other options of a newcomer prevent leaves no id for the next one") {
    for (int stayed = 2; stayed <= 3; ++stayed)
        with_library(growing, [&] {
            CAPTURE(stayed);
            hvd::run_threads(stayed + 1, [&](hvd::communicator<hvd::threads>& world) {
                const hvd::communicator_options patient{.timeout = 10s};
                const bool is_new = world.rank() == stayed;
                auto first = world.split(is_new ? 1 : 0, world.rank());
                const hvd::nccl_options plain,
                    other{.config = configured([](ncclConfig_t& c) { c.maxCTAs = 3; })};
                hvd::detail::nccl_succession own(plain), refused(other);
                if (!is_new) own.follow(first, 1, patient);
                CHECK_THROWS_AS((is_new ? refused : own).follow(world, 2, patient),
                                hvd::mismatch_error);
                own.follow(world, 3, patient);
                const tensor<float> x{1};
                own.last().allreduce(x.view(), hvd::sum);
                CHECK(x.values()[0] == float(stayed + 1));
            });
            CHECK(emulation::calls_of("ncclCommGetUniqueId") == 1);
            CHECK(emulation::calls_of("ncclCommGrow") == stayed + 1);
            CHECK(emulation::calls_of("ncclCommInitRankConfig") == stayed);
        });
}

TEST_CASE("a newcomer that is lost during a growth leaves no id for the next one") {
    using host = hvd::observed<hvd::threads, leaving>;
    for (int stayed = 2; stayed <= 3; ++stayed)
        with_library(growing, [&] {
            CAPTURE(stayed);
            hvd::run_threads<host>(stayed + 2, [&](hvd::communicator<host>& world) {
                const hvd::communicator_options patient{.timeout = 10s};
                const hvd::nccl_options plain;
                hvd::detail::nccl_succession own(plain);
                const int r = world.rank(), lost = stayed, next = stayed + 1;
                auto first = world.split(r < stayed ? 0 : -1, r),
                     with_lost = world.split(r <= lost ? 0 : -1, r),
                     with_next = world.split(r != lost ? 0 : -1, r);
                if (r < stayed) own.follow(first, 1, patient);
                if (r == lost) {  // rank 0 has made an id, which it does not get
                    with_lost.observer().at = "broadcast";
                    CHECK_THROWS_AS(own.follow(with_lost, 2, patient), leaves);
                    with_lost = {};
                    return;
                }
                if (r != next) CHECK_THROWS_AS(own.follow(with_lost, 2, patient), hvd::peer_error);
                own.follow(with_next, 3, patient);
                const tensor<float> x{1};
                own.last().allreduce(x.view(), hvd::sum);
                CHECK(x.values()[0] == float(stayed + 1));
            });
            CHECK(emulation::calls_of("ncclCommGetUniqueId") == 1);
            CHECK(emulation::calls_of("ncclCommInitRankConfig") == stayed + stayed + 1);
        });
}

TEST_CASE("ranks that have ended their calls shrink, once NCCL has revoked the communicator") {
    for (int size = 3; size <= 4; ++size)
        for (int lost = 0; lost < size; ++lost)
            with_library(revoking, [&] {
                CAPTURE(size);
                CAPTURE(lost);
                hvd::run_threads(size, [&](hvd::communicator<hvd::threads>& world) {
                    const hvd::communicator_options patient{.timeout = 10s};
                    const hvd::nccl_options plain;
                    hvd::detail::nccl_succession own(plain);
                    auto left = world.split(world.rank() == lost ? -1 : 0, world.rank());
                    const tensor<float> x{1};
                    own.follow(world, 1, patient);
                    own.last().allreduce(x.view(), hvd::max);
                    world.barrier();
                    if (world.rank() == lost) return own.last().abort();
                    own.follow(left, 2, patient);
                    own.last().allreduce(x.view(), hvd::sum);
                    CHECK(x.values()[0] == float(size - 1));
                });
                CHECK(emulation::calls_of("ncclCommShrink") == size - 1);
                CHECK(emulation::calls_of("ncclCommInitRankConfig") == size);
            });
}

TEST_CASE("communicators descend from the last where its ranks come first in their order") {
    using hvd::detail::descent;
    using hvd::detail::told_communicator;
    const auto of = [](std::vector<told_communicator> all) { return hvd::detail::descent_of(all); };
    const auto had = [](int rank, int size, std::int64_t number = 5) {
        return told_communicator{number, rank, size, true, true, true};
    };
    const told_communicator none{0, -1, 0, false, false, true};
    CHECK(of({had(0, 4), had(2, 4), had(3, 4)}).how == descent::shrinks);
    CHECK(of({had(0, 4), had(2, 4), had(3, 4)}).lost == std::vector<int>{1});
    CHECK(of({had(0, 2), had(1, 2)}).lost.empty());
    CHECK(of({had(0, 2), had(1, 2), none}).how == descent::grows);
    CHECK(of({had(0, 2), had(1, 2), had(0, 3, 4)}).how == descent::grows);
    CHECK(of({none, none}).how == descent::none);
    CHECK(of({had(1, 2), none}).how == descent::none);
    CHECK(of({had(1, 2)}).how == descent::none);
    CHECK(of({had(0, 3), had(1, 3), none}).how == descent::none);
    CHECK(of({had(1, 2), had(0, 2)}).how == descent::none);
    CHECK(of({had(0, 3), had(1, 3), none, had(2, 3)}).how == descent::none);
    told_communicator old = had(1, 2);
    old.can_shrink = old.can_grow = false;
    CHECK(of({had(0, 2), old}).how == descent::none);
    CHECK(of({had(0, 2), old, none}).how == descent::none);
    told_communicator behind = none;
    behind.knows_growth = false;
    CHECK(of({had(0, 2), had(1, 2), behind}).how == descent::none);
}

}  // namespace elastic_tests
