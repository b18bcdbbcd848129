// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Steps on an engine that fail: every rank learns it, no rank hangs, and the next step is ordinary.

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include <hvd/train_engine.hpp>

#include "hvd_test.hpp"
#include "text_of.hpp"

namespace engine_failures_tests {

using hvd_test::text_of;
using communicator = hvd_test::communicator;
using engine = hvd::engine<hvd_test::backend>;
using floats = std::vector<float>;
namespace optimizers = hvd::optimizers;

namespace {

struct trainer {
    floats a = floats(4, 1), b = floats(4, 1), da = floats(4), db = floats(4);
    hvd::distributed_optimizer<engine, optimizers::sgd<float>> optimizer;

    explicit trainer(engine& e, const hvd::optimizer_options& o = {})
        : optimizer(e, {.rate = 1}, o) {
        optimizer.register_parameter("a", a, da);
        optimizer.register_parameter("b", b, db);
    }

    void begin() {
        optimizer.zero_gradients();
        a.assign(4, 1);
        b.assign(4, 1);
        da.assign(4, 1);
        db.assign(4, 1);
    }
    void step() {
        begin();
        const auto first = std::size_t(optimizer.comm().rank() % 2);
        optimizer.gradient_ready(first);
        optimizer.gradient_ready(1 - first);
        optimizer.step();
    }
    void check_step() {
        step();
        CHECK(a == floats(4, 0));
        CHECK(b == floats(4, 0));
    }
};

bool has(const std::string& text, std::string_view part) {
    INFO(text);
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a backward pass that fails on one rank ends the step on all") {
    enum class failure { at_once, after_a_report, after_all, twice, no_such_gradient };
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer t(e);
        for (const int good_steps : {0, 1, 6})  // the last ones are predicted
            for (const failure how : {failure::at_once, failure::after_a_report, failure::after_all,
                                      failure::twice, failure::no_such_gradient}) {
                CAPTURE(int(how));
                for (int step = 0; step < good_steps; ++step) t.check_step();
                if (comm.rank() != 1) {
                    const std::string why = text_of<hvd::peer_error>([&] { t.step(); });
                    CHECK(has(why, "rank 1"));
                    CHECK(has(why, how == failure::twice              ? "ready 1 times already"
                                   : how == failure::no_such_gradient ? "there are 2 parameters"
                                                                      : "out of data"));
                } else {
                    t.begin();
                    if (how != failure::at_once) t.optimizer.gradient_ready(1);
                    if (how == failure::after_all) t.optimizer.gradient_ready(0);
                    if (how == failure::twice)
                        CHECK_THROWS_AS(t.optimizer.gradient_ready(1), hvd::usage_error);
                    else if (how == failure::no_such_gradient)
                        CHECK_THROWS_AS(t.optimizer.gradient_ready(2), hvd::usage_error);
                    else t.optimizer.abandon("out of data");
                }
                t.check_step();
            }
    });
}

TEST_CASE("a refused report of one thread ends the step in step(), too") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer t(e);
        for (int time = 0; time < 4; ++time) {
            t.begin();
            std::thread one([&] { t.optimizer.gradient_ready(0); });
            std::thread other([&] {
                t.optimizer.gradient_ready(1);
                if (comm.rank() == 0)
                    CHECK_THROWS_AS(t.optimizer.gradient_ready(1), hvd::usage_error);
            });
            one.join();
            other.join();
            if (comm.rank() == 0) CHECK_THROWS_AS(t.optimizer.step(), hvd::usage_error);
            else CHECK_THROWS_AS(t.optimizer.step(), hvd::peer_error);
            t.check_step();
        }
    });
}

TEST_CASE("ranks with other shapes get every rank's parameters") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        for (int time = 0; time < 3; ++time) {
            const std::size_t count = comm.rank() == 1 ? 5 : 4;
            floats x(count, 1), g(count, 1), y(4, 1), dy(4, 1);
            hvd::distributed_optimizer optimizer(e, optimizers::sgd<float>{.rate = 1});
            optimizer.register_parameter("x", x, g);
            optimizer.register_parameter("y", y, dy);
            if (time > 0) optimizer.gradient_ready(0);
            if (time > 1 && comm.rank() == 0) optimizer.gradient_ready(1);
            try {
                optimizer.step();
                FAIL("no error");
            } catch (const hvd::mismatch_error& error) {
                CHECK(error.field() == "parameters");
                CHECK(has(error.what(), "rank 1: x [5], y [4]"));
                CHECK(has(error.what(), "rank 0: x [4], y [4]"));
            }
            CHECK(y == floats(4, 1));
            trainer(e).check_step();
        }
    });
}

TEST_CASE("a parameter that only some ranks have, or have frozen, ends the step on all") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer t(e);
        for (int time = 0; time < 3; ++time) {
            for (int step = 0; step < 4 * time; ++step) t.check_step();
            if (comm.rank() == comm.size() - 1) {
                t.optimizer.freeze(1);
                t.begin();
                t.optimizer.gradient_ready(0);
                CHECK(has(text_of<hvd::mismatch_error>([&] { t.optimizer.step(); }), "(frozen)"));
            } else {
                CHECK(has(text_of<hvd::mismatch_error>([&] { t.step(); }), "(frozen)"));
            }
            CHECK(t.a == floats(4, 1));
            t.optimizer.freeze(1);  // now on all
            t.step();
            CHECK(t.a == floats(4, 0));
            CHECK(t.b == floats(4, 1));
            t.optimizer.unfreeze(1);
            t.check_step();
        }
    });
}

TEST_CASE("ranks with other options, epochs or numbers") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer other(e, {.op = comm.rank() == 1 ? hvd::gradient_op(hvd::sum) : hvd::average});
        CHECK(has(text_of<hvd::mismatch_error>([&] { other.step(); }), "ranks disagree on op"));

        trainer t(e);
        t.optimizer.begin_epoch(3);
        t.check_step();
        t.optimizer.begin_epoch(comm.rank() == 0 ? 5 : 4);
        CHECK(has(text_of<hvd::mismatch_error>([&] { t.step(); }), "epoch 5"));
        t.optimizer.begin_epoch(6);
        t.check_step();

        trainer rates(e);
        rates.optimizer.optimizer().rate = comm.rank() == 1 ? 0.5f : 1;
        CHECK(has(text_of<hvd::mismatch_error>([&] { rates.step(); }), "rate"));
        rates.optimizer.optimizer().rate = 1;
        rates.check_step();
    });
}

TEST_CASE("a rank whose exception ends its engine ends the others' steps") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer t(e);
        for (int step = 0; step < 3; ++step) t.check_step();
        if (comm.rank() == 1) {
            t.begin();
            t.optimizer.gradient_ready(0);
            e.fail(std::make_exception_ptr(std::runtime_error("the disk is full")));
            CHECK_THROWS_AS(t.optimizer.step(), hvd::peer_error);
        } else {
            CHECK(has(text_of<hvd::peer_error>([&] { t.step(); }), "the disk is full"));
        }
        CHECK_THROWS_AS(t.optimizer.step(), hvd::peer_error);
    });
}

TEST_CASE("a rank that leaves ends the others' steps") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        trainer t(e);
        t.check_step();
        if (comm.rank() == 0) {
            const engine gone = std::move(e);
        } else {
            CHECK(has(text_of<hvd::peer_error>([&] { t.step(); }), "rank 0"));
        }
    });
}

TEST_CASE("an engine's optimizer refuses what is for communicators, and says what to use") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e{comm};
        CHECK(has(text_of<hvd::usage_error>([&] { trainer t(e, {.bucket_bytes = 100}); }),
                  "fusion_threshold"));
        CHECK(has(text_of<hvd::usage_error>(
                      [&] { trainer t(e, {.order = hvd::bucket_order::learnt_once}); }),
                  "as they are reported"));
        CHECK(has(text_of<hvd::usage_error>([&] { trainer(e, {.may_be_unreported = {7}}).step(); }),
                  "parameter 7"));
        engine moved = std::move(e);
        CHECK(has(text_of<hvd::usage_error>([&] { trainer t(e); }), "moved from"));
        trainer(moved).check_step();
    });
}

TEST_CASE("a rank refuses a tensor, and the others learn why") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        engine e{comm};
        for (int time = 0; time < 6; ++time) {
            floats x(3, 1);
            if (comm.rank() == 0) e.refuse("x", "the sensor is broken");
            else
                CHECK(has(text_of<hvd::peer_error>([&] { e.allreduce("x", x, hvd::sum).wait(); }),
                          "the sensor is broken"));
            e.allreduce("x", x, hvd::sum).wait();
            CHECK(x[0] == float(comm.size()));
        }
        const std::vector<hvd::tensor_view<float>> none;
        floats g(3);
        const std::vector<hvd::tensor_view<float>> one = {hvd::view(g.data(), 3)};
        const hvd::local_parameters local;
        if (comm.rank() == 0)
            CHECK_THROWS_AS(hvd::partial_distributed_gradients(e, none, one, local),
                            hvd::usage_error);
        else
            CHECK_THROWS_AS(hvd::partial_distributed_gradients(e, one, one, local),
                            hvd::peer_error);
    });
}

TEST_CASE("a bad gradient is named on all ranks, in new and in predicted steps") {
    hvd_test::on_ranks([](communicator& comm) {
        engine e(comm);
        trainer t(e, {.check_finite = true});
        for (int time = 0; time < 3; ++time) {
            t.begin();
            if (comm.rank() == comm.size() - 1) t.db[3] = std::numeric_limits<float>::quiet_NaN();
            t.optimizer.gradient_ready(0);
            t.optimizer.gradient_ready(1);
            try {
                t.optimizer.step();
                FAIL("nothing was thrown");
            } catch (const hvd::not_finite_error& error) {
                CHECK(error.source() == comm.size() - 1);
                CHECK(error.tensor() == "gradient 'b'");
                CHECK(error.index() == 3);
                CHECK(std::isnan(error.value()));
            }
            for (int step = 0; step < 4; ++step) t.check_step();
        }
    });
}

}  // namespace engine_failures_tests
