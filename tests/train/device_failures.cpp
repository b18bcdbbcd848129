// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Steps of a trainer on the device that fail: no rank updates its parameters with gradients that
// were not reduced.

#include <algorithm>

#include "device_support.hpp"

namespace device_failures_tests {

using namespace device_test;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

// One model for each way in which a step can go. None but the first waits on the host for orders.
std::vector<hvd::optimizer_options> kinds_of_step() {
    constexpr auto order = hvd::bucket_order::reverse;
    return {{.order = order},
            {.order = order, .skip_nonfinite = true},
            {.order = order, .shard_state = true},
            {.order = order, .codec = hvd::codec::cast<hvd::bfloat16>}};
}

// A parameter of which each rank of four has a slice.
const floats ones(48, 1), twos(48, 2), zeros(48, 0);

}  // namespace

TEST_CASE("a step that waits for a rank for ever changes no parameter when its communicator ends") {
    for (const auto& options : kinds_of_step())
        for (int ranks = 2; ranks <= 4; ++ranks)
            train_on<hvd::nccl>(ranks, ranks, [&](auto& world, auto& gpus) {
                const stream s;
                const tensor<float> w(twos), dw(ones), local{5}, dl{1};
                hvd::distributed_optimizer optimizer(
                    gpus, optimizers::sgd<float>{.rate = 1, .momentum = 0.9f}, options);
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.register_local("local", local.view(), dl.view());
                optimizer.step(s);
                CHECK(s.values(w) == ones);
                world.barrier();
                if (gpus.rank() != 0) {
                    s.write(dw, floats(48, 100));
                    optimizer.step(s);  // rank 0 does not come
                    gpus.abort();
                    CHECK(s.values(w) == ones);
                    CHECK(s.values(local)[0] == 5 - 1 / float(ranks));
                    CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                    CHECK(s.values(w) == ones);
                }
                world.barrier();
            });
}

TEST_CASE_TEMPLATE("slices that did not come change no parameter", Backend, hvd::nccl,
                   hvd::per_operation<hvd::staged<host>, hvd::nccl, hvd::nccl>) {
    for (int ranks = 2; ranks <= 4; ++ranks)
        train_on<Backend>(ranks, ranks, [&](auto& world, auto& gpus) {
            const stream s;
            const tensor<float> w(twos), dw(ones);
            hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1},
                                                 {.shard_state = true});
            optimizer.register_parameter("w", w.view(), dw.view());
            optimizer.step(s);
            CHECK(s.values(w) == ones);
            auto gradients = optimizer.synchronize(s);
            cudaStreamSynchronize(s);
            world.barrier();
            if (gpus.rank() != 0) {  // rank 0 sends no values
                optimizer.apply(std::move(gradients), s);
                hvd::detail::device_access::for_each_session(
                    gpus, [](auto& session) { session.give_up("the test ends it"); });
                floats got = s.values(w);
                const std::size_t each = (48 / std::size_t(ranks) + 3) / 4 * 4;
                const auto own = got.begin() + std::ptrdiff_t(each) * gpus.rank();
                CHECK((*own == 1 || *own == 0));  // this rank may have stepped its own slice
                std::fill_n(own, std::min(each, 48 - each * std::size_t(gpus.rank())), 1.0f);
                CHECK(got == ones);
            }
            world.barrier();
        });
}

namespace {

// Optimizers of the user's, which are given their tensors or hold them.
struct counting {
    using value_type = float;
    using list = std::span<const hvd::tensor_view<float, hvd::device>>;
    int* steps;
    void step(list, list, cudaStream_t) { ++*steps; }
};
struct self_contained {
    int* steps;
    void step() { ++*steps; }
};

}  // namespace

TEST_CASE_TEMPLATE("the host waits before an optimizer of the user's steps, which then may not",
                   Optimizer, counting, self_contained) {
    const auto train = [](auto& world, auto& gpus) {
        const stream s;
        const tensor<float> w(twos), dw(ones);
        int steps = 0;
        hvd::distributed_optimizer optimizer(gpus, Optimizer{&steps},
                                             {.order = hvd::bucket_order::reverse});
        optimizer.register_parameter("w", w.view(), dw.view());
        optimizer.step(s);
        CHECK(steps == 1);
        cudaStreamSynchronize(s);
        world.barrier();
        if (gpus.rank() != 0) {
            auto gradients = optimizer.synchronize(s);  // rank 0 does not come
            hvd::detail::device_access::for_each_session(
                gpus, [](auto& session) { session.give_up("the test ends it"); });
            cudaStreamSynchronize(s);
            CHECK_THROWS_WITH_AS(optimizer.apply(std::move(gradients), s),
                                 doctest::Contains("apply() on rank"), hvd::peer_error);
            CHECK(steps == 1);
        }
        world.barrier();
    };
    for (int ranks = 2; ranks <= 4; ++ranks) {
        train_on<hvd::nccl>(ranks, ranks, train);
        train_on<mixed>(ranks, ranks, train);
    }
}

TEST_CASE("a step whose timeout passes changes no parameter") {
    for (const bool sharded : {false, true})
        train_on_every_backend(
            [&](auto& world, auto& gpus) {
                const stream s;
                const tensor<float> w(twos), dw(ones);
                hvd::distributed_optimizer optimizer(
                    gpus, optimizers::sgd<float>{.rate = 1},
                    {.order = hvd::bucket_order::reverse, .shard_state = sharded});
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.step(s);
                CHECK(s.values(w) == ones);
                world.barrier();
                if (gpus.rank() != 0) {
                    try {
                        optimizer.step(s);              // rank 0 does not come
                    } catch (const hvd::peer_error&) {  // of a backend that needs the host
                    }
                    CHECK(s.values(w) == ones);
                    CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                }
                world.barrier();
            },
            {.timeout = 1s * slowness, .destructor_timeout = 200ms * slowness});
}

namespace {

// True if peers that are not told wait on the host, until their timeout.
template <class Comm>
bool waits_on_host(const Comm&) {
    return !std::is_same_v<typename Comm::backend_type, hvd::nccl>;
}

// Two parameters, each in its own bucket.
template <class Comm>
struct trainer {
    stream s;
    tensor<float> a = tensor<float>(floats(4, 1)), b = tensor<float>(floats(4, 1)),
                  da = tensor<float>(floats(4)), db = tensor<float>(floats(4));
    hvd::distributed_optimizer<Comm, optimizers::sgd<float>, float> optimizer;

    trainer(Comm& gpus, hvd::optimizer_options options)
        : optimizer(gpus, {.rate = 1}, (options.bucket_bytes = 1, options)) {
        optimizer.register_parameter("a", a.view(), da.view());
        optimizer.register_parameter("b", b.view(), db.view());
    }

    void step(bool overlap = false) {
        optimizer.zero_gradients(s);
        s.write(da, floats(4, 1));
        s.write(db, floats(4, 1));
        if (overlap) {
            optimizer.gradient_ready(1, s);
            optimizer.gradient_ready(0, s);
        }
        optimizer.step(s);
    }

    // Two ordinary steps.
    void steps_on() {
        const float before = s.values(a)[0];
        step(true);
        step();
        CHECK(s.values(a) == floats(4, before - 2));
    }
};

template <class Comm>
hvd::detail::device_session& session_of(const Comm& gpus) {
    return *hvd::detail::device_access::session_of(gpus);
}

// The step of the peers of a rank that ended it. They are told why, or wait in vain until the test
// gives the communicator up. Then they make ordinary steps, or none.
template <class Comm>
void check_peers(trainer<Comm>& t, Comm& gpus, bool told, const char* why) {
    if (told) {
        CHECK_THROWS_WITH_AS(t.step(true), doctest::Contains(why), hvd::peer_error);
        return;
    }
    try {
        t.step(true);
    } catch (const hvd::peer_error&) {
    }
    session_of(gpus).give_up("it waits in vain");
}
template <class Comm>
void check_next_steps(trainer<Comm>& t, Comm& gpus, bool told, const floats& before) {
    CHECK(t.s.values(t.a) == before);
    if (told || gpus.size() == 1) t.steps_on();
    else CHECK_THROWS_AS(t.step(), hvd::peer_error);
}

// The ways in which a rank ends the step of all.
enum class end { abandoned, no_such_gradient, reported_twice };

}  // namespace

TEST_CASE("a rank that abandons its step ends it on all, and the next one is ordinary") {
    for (const bool sharded : {false, true})
        for (const end how : {end::abandoned, end::no_such_gradient, end::reported_twice})
            for (const int reported : {0, 1})
                for (const bool at_once : {true, false})
                    train_on_every_backend([=](auto& world, auto& gpus) {
                        if (how == end::reported_twice && reported == 0) return;
                        trainer t(gpus, {.shard_state = sharded});
                        if (!at_once) t.steps_on();  // else the ranks agree first
                        const bool in_agreement = at_once && reported == 0 && how == end::abandoned,
                                   told = in_agreement ||
                                          session_of(gpus).compares(
                                              sharded ? hvd::detail::collective::reduce_scatter
                                                      : hvd::detail::collective::allreduce);
                        if (!told && (at_once || waits_on_host(gpus))) return;
                        const floats before = t.s.values(t.a);
                        if (gpus.rank() == gpus.size() - 1) {
                            t.optimizer.zero_gradients(t.s);
                            if (reported > 0) t.optimizer.gradient_ready(1, t.s);
                            if (how == end::abandoned) t.optimizer.abandon("no more data");
                            else
                                CHECK_THROWS_AS(t.optimizer.gradient_ready(
                                                    how == end::reported_twice ? 1 : 2, t.s),
                                                hvd::usage_error);
                        } else {
                            check_peers(t, gpus, told,
                                        how == end::abandoned          ? "no more data"
                                        : how == end::no_such_gradient ? "gradient_ready(2)"
                                                                       : "gradient \"b\"");
                        }
                        check_next_steps(t, gpus, told, before);
                        world.barrier();
                    });
}

TEST_CASE("a step is abandoned where only what comes after the buckets can fail") {
    for (const bool skips : {true, false})
        train_on_every_backend([=](auto& world, auto& gpus) {
            trainer t(gpus, {.skip_nonfinite = skips});
            if (skips) t.steps_on();
            const floats before = t.s.values(t.a);
            // The first step compares the numbers of the optimizer after its buckets.
            const bool told =
                !skips || session_of(gpus).compares(hvd::detail::collective::allreduce);
            if (!told && waits_on_host(gpus)) return;
            if (gpus.rank() == 0) {
                t.optimizer.zero_gradients(t.s);
                t.optimizer.gradient_ready(1, t.s);
                t.optimizer.gradient_ready(0, t.s);
                t.optimizer.abandon();
            } else {
                check_peers(t, gpus, told, "a rank abandoned its step");
            }
            check_next_steps(t, gpus, told, before);
            world.barrier();
        });
}

TEST_CASE("a captured step changes no parameter when its communicator ends") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        train_on<hvd::nccl>(ranks, ranks, [](auto& world, auto& gpus) {
            const tensor<float> w(twos), dw(ones);
            cudaStreamSynchronize(nullptr);
            cudaStream_t s{};
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            {
                hvd::distributed_optimizer optimizer(gpus, optimizers::sgd<float>{.rate = 1});
                optimizer.register_parameter("w", w.view(), dw.view());
                optimizer.step(s);
                cudaStreamSynchronize(s);
                world.barrier();
                cudaGraph_t graph{};
                cudaGraphExec_t launched{};
                cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
                optimizer.step(s);
                CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
                cudaGraphInstantiate(&launched, graph, 0);
                cudaGraphLaunch(launched, s);
                cudaStreamSynchronize(s);
                CHECK(w.values() == zeros);
                world.barrier();
                if (gpus.rank() == 0) gpus.abort();
                cudaGraphLaunch(launched, s);
                gpus.abort();
                cudaStreamSynchronize(s);
                CHECK(w.values() == zeros);
                CHECK_THROWS_AS(optimizer.step(s), hvd::peer_error);
                world.barrier();
                cudaGraphExecDestroy(launched);
                cudaGraphDestroy(graph);
            }
            cudaStreamDestroy(s);
        });
}

}  // namespace device_failures_tests
