// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tests of the state after a step that failed, and of the next step, which is an ordinary one.

#include <algorithm>
#include <limits>
#include <string_view>

#include <hvd/train.hpp>

#include "model.hpp"

namespace failed_steps_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;

// Two parameters, each in its own bucket if `bucket_bytes` is 1.
struct trainer {
    floats a = floats(4, 1), b = floats(4, 1), da = floats(4), db = floats(4);
    bool bad = false;  // this rank's gradient of `a` has an infinity
    hvd::distributed_optimizer<communicator, optimizers::sgd<float>> optimizer;

    explicit trainer(communicator& comm, const hvd::optimizer_options& o)
        : optimizer(comm, {.rate = 1}, o) {
        optimizer.register_parameter("a", a, da);
        optimizer.register_parameter("b", b, db);
    }

    void step(bool overlap = false) {
        optimizer.zero_gradients();
        da.assign(4, 1);
        db.assign(4, 1);
        if (bad) da[2] = std::numeric_limits<float>::infinity();
        if (overlap) {
            optimizer.gradient_ready(1);
            optimizer.gradient_ready(0);
        }
        optimizer.step();
    }
};

void check_in_step(communicator& comm) {
    int one = 1;
    comm.allreduce(one, hvd::sum);
    CHECK(one == comm.size());
}

}  // namespace

TEST_CASE("after a call that did not match a step, the optimizer steps on") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const std::size_t bucket_bytes : {std::size_t(4096), std::size_t(1)}) {
            trainer t(comm, {.bucket_bytes = bucket_bytes});
            t.step();
            t.step();  // it looks at the order of reports
            floats other(3);
            if (comm.rank() == 1) {
                CHECK_THROWS_AS(comm.allreduce(other, hvd::sum), hvd::mismatch_error);
            } else {
                CHECK_THROWS_AS(t.step(true), hvd::mismatch_error);
            }
            // With two buckets rank 1 is a call behind, and finds out in its next step.
            if (bucket_bytes == 1) CHECK_THROWS_AS(t.step(), hvd::mismatch_error);
            t.a.assign(4, 1);
            t.step();
            CHECK(t.a[3] == 0);
            check_in_step(comm);
        }
    });
}

TEST_CASE(
    "a call that does not match the agreement on an order ends the step, and the next agrees") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        trainer t(comm, {.bucket_bytes = 1});
        t.step(true);
        floats other(3);
        if (comm.rank() == 1) {
            CHECK_THROWS_AS(comm.allreduce(other, hvd::sum), hvd::mismatch_error);
        } else {
            CHECK_THROWS_AS(t.step(true), hvd::mismatch_error);
        }
        t.a.assign(4, 1);
        t.step(true);
        CHECK(t.a[3] == 0);
        check_in_step(comm);
    });
}

TEST_CASE("of the buckets that fail in one step the first one tells why") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        trainer t(comm, {.bucket_bytes = 1});
        t.step();
        t.step();
        floats other(3);
        if (comm.rank() == 1) {
            CHECK_THROWS_AS(comm.allreduce(other, hvd::sum), hvd::mismatch_error);
            CHECK_THROWS_AS(comm.broadcast(other, hvd::root{0}), hvd::mismatch_error);
        } else {
            try {
                t.step();
                FAIL("no error");
            } catch (const hvd::mismatch_error& e) {
                CHECK(std::string_view(e.what()).find("broadcast") == std::string_view::npos);
            }
        }
    });
}

TEST_CASE(
    "a backward pass that fails on one rank ends the step on all, and the next one is ordinary") {
    enum class failure { at_once, thrown, reported_twice, no_such_gradient };
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const std::size_t bucket_bytes : {std::size_t(4096), std::size_t(1)})
            for (const failure how : {failure::at_once, failure::thrown, failure::reported_twice,
                                      failure::no_such_gradient}) {
                CAPTURE(bucket_bytes);
                CAPTURE(int(how));
                trainer t(comm, {.bucket_bytes = bucket_bytes});
                if (how == failure::thrown)
                    t.step(true);  // the first step agrees on the parameters
                if (comm.rank() == 1) {
                    t.optimizer.zero_gradients();
                    if (how != failure::at_once) t.optimizer.gradient_ready(1);
                    if (how == failure::reported_twice)
                        CHECK_THROWS_AS(t.optimizer.gradient_ready(1), hvd::usage_error);
                    else if (how == failure::no_such_gradient)
                        CHECK_THROWS_AS(t.optimizer.gradient_ready(2), hvd::usage_error);
                    else t.optimizer.abandon("no more data");
                } else {
                    CHECK_THROWS_AS(t.step(true), hvd::peer_error);
                }
                for (const bool overlap : {true, false}) {
                    t.a.assign(4, 1);
                    t.b.assign(4, 1);
                    t.step(overlap);
                    CHECK(t.a == floats(4, 0));
                    CHECK(t.b == floats(4, 0));
                }
                check_in_step(comm);
            }
    });
}

TEST_CASE("a step is abandoned where only what comes after the buckets can fail") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const hvd::optimizer_options& o :
             std::vector<hvd::optimizer_options>{{.skip_nonfinite = true}, {.op = hvd::adasum}}) {
            trainer t(comm, o);
            t.step();
            t.step();
            const floats before = t.a;
            if (comm.rank() == 1) {
                t.optimizer.zero_gradients();
                t.optimizer.gradient_ready(1);
                t.optimizer.gradient_ready(0);
                t.optimizer.abandon();
            } else {
                CHECK_THROWS_AS(t.step(true), hvd::peer_error);
            }
            CHECK(t.a == before);
            t.step(true);
            check_in_step(comm);
        }
    });
}

TEST_CASE("a first step is abandoned after its gradients, where the ranks compare their numbers") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const hvd::optimizer_options& o : std::vector<hvd::optimizer_options>{
                 {}, {.skip_nonfinite = true}, {.bucket_bytes = 1}}) {
            trainer t(comm, o);
            if (comm.rank() == 1) {
                t.optimizer.gradient_ready(1);
                t.optimizer.gradient_ready(0);
                t.optimizer.abandon("no more data");
            } else {
                CHECK_THROWS_WITH_AS(t.step(true), doctest::Contains("no more data"),
                                     hvd::peer_error);
            }
            CHECK(t.a == floats(4, 1));
            t.step(true);
            CHECK(t.a == floats(4, 0));
            check_in_step(comm);
        }
    });
}

#if !defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("checked ranks are told in each step that was abandoned before they compare numbers") {
    for (const int ranks : {2, 3, 4})
        hvd::run_threads<hvd::checked<hvd::threads>>(ranks, [](auto& comm) {
            floats a(4, 1), da(4, 1);
            hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{.rate = 1});
            optimizer.register_parameter("a", a, da);
            optimizer.step();
            if (comm.rank() == 1) {
                optimizer.gradient_ready(0);
                optimizer.abandon();
            } else {
                CHECK_THROWS_AS(optimizer.step(), hvd::peer_error);
            }
            optimizer.zero_gradients();
            da.assign(4, 2);
            optimizer.step();
            CHECK(a == floats(4, -2));
        });
}
#endif

TEST_CASE("parameters that one rank froze are told on all, and the optimizer steps on") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const std::size_t bucket_bytes : {std::size_t(4096), std::size_t(1)}) {
            const bool overlap = bucket_bytes == 1;
            trainer t(comm, {.bucket_bytes = bucket_bytes});
            t.step(overlap);
            if (comm.rank() == 0) t.optimizer.freeze(1);
            CHECK_THROWS_AS(t.step(overlap), hvd::error);
            check_in_step(comm);
            if (comm.rank() == 0) t.optimizer.unfreeze(1);
            t.a.assign(4, 1);
            t.step(overlap);
            CHECK(t.a[0] == 0);
            if (comm.rank() == 0) {  // between two steps nothing has changed
                t.optimizer.freeze(0);
                t.optimizer.unfreeze(0);
            }
            t.step(overlap);
            CHECK(t.a[0] == -1);
            check_in_step(comm);
        }
    });
}

TEST_CASE("an adasum step that fails leaves the parameters as they were") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        trainer t(comm, {.op = hvd::adasum});
        floats own(2, 1), d_own(2, 1), other(3);
        t.optimizer.register_local("own", own, d_own);
        t.step();
        const floats before = t.a, own_before = own;
        auto gradients = t.optimizer.synchronize();
        if (comm.rank() == 1) {
            CHECK_THROWS_AS(comm.allreduce(other, hvd::sum), hvd::mismatch_error);
        } else {
            CHECK_THROWS_AS(t.optimizer.apply(std::move(gradients)), hvd::mismatch_error);
        }
        CHECK(t.a == before);
        CHECK(own == own_before);
    });
}

TEST_CASE(
    "a group that only one rank names wrongly is told to the others, and the calls stay in step") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::optimizer_options o;
        if (comm.rank() == 1) o.groups = {{0, 5}};
        trainer t(comm, o);
        const char* const words = "a group names parameter 5; there are 2";
        if (comm.rank() == 1) {
            CHECK_THROWS_WITH_AS(t.step(), doctest::Contains(words), hvd::usage_error);
        } else {
            CHECK_THROWS_WITH_AS(t.step(), doctest::Contains(words), hvd::peer_error);
        }
        check_in_step(comm);
    });
}

TEST_CASE("options that differ are told by name on every rank before anything is stepped") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const auto differ = [&](const char* field, const hvd::optimizer_options& o) {
            trainer t(comm, comm.rank() == 1 ? o : hvd::optimizer_options{});
            try {
                t.step();
                FAIL("no error");
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.field() == field);
                CHECK(e.table().size() == std::size_t(comm.size()));
            }
            CHECK(t.a == floats(4, 1));
            check_in_step(comm);
        };
        differ("op", {.op = hvd::sum});
        differ("op", {.op = hvd::adasum});
        differ("bucket_bytes", {.bucket_bytes = 7});
        differ("groups", {.groups = {{1, 0}}});
        differ("order", {.order = hvd::bucket_order::reverse});
        differ("may_be_unreported", {.may_be_unreported = {1}});
        differ("backward_passes_per_step", {.backward_passes_per_step = 2});
        differ("average_passes", {.average_passes = true});
        differ("gradient_predivide_factor", {.gradient_predivide_factor = 2});
        differ("codec", {.codec = hvd::codec::cast<hvd::float16>});
        differ("scale_local_gradients", {.scale_local_gradients = false});
        differ("skip_nonfinite", {.skip_nonfinite = true});
        differ("synchronize_buffers", {.synchronize_buffers = true});
    });
}

TEST_CASE("lists of a tape that only one rank can see to be wrong are told to the others") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        floats w(4), own(2), dw(4, 1), d_own(2, 8);
        const std::vector<hvd::tensor_view<float>> parameters = {hvd::view(w.data(), 4),
                                                                 hvd::view(own.data(), 2)};
        const std::vector<hvd::tensor_view<float>> gradients = {hvd::view(dw.data(), 4),
                                                                hvd::view(d_own.data(), 2)};
        hvd::local_parameters local;
        local.register_local(own);
        const auto refused = [&](const auto& call, const char* words) {
            if (comm.rank() == 1) {
                CHECK_THROWS_WITH_AS(call(), doctest::Contains(words), hvd::usage_error);
            } else {
                CHECK_THROWS_WITH_AS(call(), doctest::Contains(words), hvd::peer_error);
            }
            check_in_step(comm);
        };
        const auto given = std::span(gradients).first(comm.rank() == 1 ? 1 : 2);
        refused([&] { hvd::partial_distributed_gradients(comm, parameters, given, local); },
                "2 parameters and 1 gradients");
        CHECK(d_own[0] == 8);  // a call that failed does not divide it
        hvd::gradient_options o{.op = hvd::adasum};
        if (comm.rank() == 1) o.codec = hvd::codec::cast<hvd::float16>;
        refused([&] { hvd::distributed_gradients(comm, gradients, o); }, "there is a codec");
    });
}

TEST_CASE("a step with a bad gradient ends on all ranks with its name, and the next is ordinary") {
    hvd_test::on_ranks([](communicator& comm) {
        const int last = comm.size() - 1;
        for (const hvd::gradient_codec codec :
             {hvd::gradient_codec(hvd::codec::none),
              hvd::gradient_codec(hvd::codec::cast<hvd::bfloat16>)})
            for (const std::size_t bucket_bytes : {std::size_t(4096), std::size_t(1)})
                for (const bool overlap : {false, true}) {
                    trainer t(comm,
                              {.bucket_bytes = bucket_bytes, .codec = codec, .check_finite = true});
                    t.step(overlap);
                    t.a.assign(4, 1);
                    t.bad = comm.rank() == last;
                    try {
                        t.step(overlap);
                        FAIL("nothing was thrown");
                    } catch (const hvd::not_finite_error& e) {
                        CHECK(e.source() == last);
                        CHECK(e.tensor() == "gradient 'a'");
                        CHECK(e.index() == 2);
                        CHECK(e.value() == std::numeric_limits<double>::infinity());
                    }
                    CHECK(t.a == floats(4, 1));
                    t.bad = false;
                    t.step(overlap);
                    CHECK(t.a == floats(4, 0));
                    check_in_step(comm);
                }
        // Without the option, and for local gradients, everything is passed on.
        trainer t(comm, {});
        t.bad = comm.rank() == last;
        t.step();
        CHECK(t.a[2] == -std::numeric_limits<float>::infinity());
        floats own(1, 1), gradient(1, std::numeric_limits<float>::infinity());
        hvd::distributed_optimizer local(comm, optimizers::sgd<float>{.rate = 1},
                                         {.check_finite = true});
        local.register_parameter("shared", t.b, t.db);
        local.register_local("own", own, gradient);
        local.step();
        CHECK(own[0] == -std::numeric_limits<float>::infinity());
    });
}

TEST_CASE("check_finite is refused where it can't hold") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto refused = [&](const hvd::optimizer_options& o) {
            CHECK_THROWS_AS(hvd::distributed_optimizer(comm, optimizers::sgd<float>(), o),
                            hvd::usage_error);
        };
        refused({.skip_nonfinite = true, .check_finite = true});
        refused({.op = hvd::adasum, .check_finite = true});
        refused({.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>),
                 .check_finite = true});
        check_in_step(comm);
    });
}

}  // namespace failed_steps_tests
