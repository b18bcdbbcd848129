// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tests of reported gradients: what unreported ones contribute, the order of the buckets, and
// passes whose reports do not count.

#include <algorithm>
#include <optional>
#include <random>

#include <hvd/train.hpp>

#include "../collective/queues.hpp"
#include "model.hpp"

namespace reports_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;

namespace {

using floats = std::vector<float>;
using indices = std::vector<std::size_t>;

// Parameters of 1, 2, 3, … elements. Their gradients depend on rank, step, pass and element.
struct trainer {
    std::vector<floats> values, gradients;
    hvd::distributed_optimizer<communicator, optimizers::sgd<float>> optimizer;

    trainer(communicator& comm, std::size_t count, const hvd::optimizer_options& o)
        : optimizer(comm, {.rate = 0.25f}, o) {
        for (std::size_t i = 0; i < count; ++i) {
            values.emplace_back(i + 1, float(i));
            gradients.emplace_back(i + 1);
        }
        for (std::size_t i = 0; i < count; ++i)
            optimizer.register_parameter(std::to_string(i), values[i], gradients[i]);
    }

    // Adds the gradients of one pass.
    void backward(int step, int pass = 0) {
        for (std::size_t i = 0; i < gradients.size(); ++i)
            for (std::size_t k = 0; k < gradients[i].size(); ++k)
                gradients[i][k] += float(hvd_test::noise(
                    k + 10 * i + 100 * std::size_t(step) + 10000 * std::size_t(pass) +
                    100000 * std::size_t(optimizer.comm().rank())));
    }

    void report(const indices& order) {
        for (const std::size_t i : order) optimizer.gradient_ready(i);
    }

    // A step that reports some gradients. Returns the number of buckets under way before its end.
    std::size_t step(int number, const indices& reports) {
        optimizer.zero_gradients();
        backward(number);
        report(reports);
        const std::size_t started = optimizer.buckets_started();
        optimizer.step();
        return started;
    }
};

indices reversed(std::size_t count) {
    indices all;
    for (std::size_t i = count; i-- > 0;) all.push_back(i);
    return all;
}

void check_in_step(communicator& comm) {
    int one = 1;
    comm.allreduce(one, hvd::sum);
    CHECK(one == comm.size());
}

}  // namespace

TEST_CASE("a step with reports of some gradients has the bits of a step with none") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const hvd::optimizer_options& o :
             std::vector<hvd::optimizer_options>{{.bucket_bytes = 1},
                                                 {.bucket_bytes = 12},
                                                 {},
                                                 {.groups = {{0, 3}}},
                                                 {.op = hvd::sum, .backward_passes_per_step = 2},
                                                 {.op = hvd::adasum},
                                                 {.codec = hvd::codec::cast<hvd::bfloat16>}}) {
            trainer some(comm, 5, o), none(comm, 5, o);
            for (auto* t : {&some, &none}) t->optimizer.freeze(1);
            for (int step = 0; step < 4; ++step) {
                if (step == 2)
                    for (auto* t : {&some, &none}) t->optimizer.unfreeze(1);
                some.optimizer.zero_gradients();
                none.optimizer.zero_gradients();
                for (int pass = 0; pass < o.backward_passes_per_step; ++pass) {
                    some.backward(step, pass);
                    none.backward(step, pass);
                    // Each rank reports others, and in the second pass fewer.
                    for (std::size_t i = std::size_t(pass); i < 5; ++i)
                        if ((i + std::size_t(comm.rank() + step)) % 3 == 0)
                            some.optimizer.gradient_ready(i);
                }
                some.optimizer.step();
                none.optimizer.step();
                CHECK(some.values == none.values);
            }
        }
    });
}

TEST_CASE("nothing_ready() of one gradient counts as its report, and contributes zeros") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, 3, {.bucket_bytes = 1});
        const float users = float(comm.size() - (comm.size() > 1 ? 1 : 0));
        const bool last = comm.rank() == comm.size() - 1 && comm.size() > 1;
        for (auto& g : t.gradients) g.assign(g.size(), 8);
        const auto before = t.values;
        t.optimizer.gradient_ready(2);
        if (last) t.optimizer.nothing_ready(1);
        else t.optimizer.gradient_ready(1);
        CHECK(t.optimizer.buckets_started() == 2);
        CHECK_THROWS_WITH_AS(t.optimizer.nothing_ready(7),
                             doctest::Contains("nothing_ready(7): there are 3 parameters"),
                             hvd::usage_error);
        // The refusal has ended the step on all ranks.
        for (auto& g : t.gradients) g.assign(g.size(), 8);
        t.optimizer.gradient_ready(2);
        if (last) t.optimizer.nothing_ready(1);
        t.optimizer.step();
        CHECK(t.values[0][0] == before[0][0] - 2);
        CHECK(t.values[1][1] == doctest::Approx(before[1][1] - 2 * users / float(comm.size())));
        CHECK(t.values[2][2] == before[2][2] - 2);
    });
}

TEST_CASE(
    "nothing_ready() leaves what another pass of the step has written, and what is reported") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool whole : {true, false}) {
            floats a(2), b(2), own(2), da(2, 4), db(2, 4), d_own(2, 4), table(4), d_table(4, 9);
            hvd::distributed_optimizer optimizer(
                comm, optimizers::sgd<float>{1},
                {.bucket_bytes = 1, .backward_passes_per_step = 2, .scale_local_gradients = false});
            optimizer.register_parameter("a", a, da);
            optimizer.register_parameter("b", b, db);
            optimizer.register_local("own", own, d_own);
            const std::size_t t = optimizer.register_sparse("table", table, d_table, 2);
            const hvd::sparse_rows<float> rows = {{1}, {1, 2}};
            optimizer.gradient_ready(0);
            optimizer.gradient_ready(t, rows);
            if (whole) {
                optimizer.nothing_ready();
            } else {
                optimizer.nothing_ready(1);
                for (const std::size_t i : {std::size_t(0), std::size_t(1), std::size_t(2), t})
                    optimizer.nothing_ready(i);
            }
            optimizer.step();
            CHECK(a == floats(2, -4));
            CHECK(b == floats(2, 0));
            CHECK(own == floats(2, whole ? -4 : 0));
            CHECK(table == floats{0, 0, -1, -2});
        }
    });
}

TEST_CASE("a gradient that nobody reports stops no bucket from the second step on") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto order : {hvd::bucket_order::adaptive, hvd::bucket_order::learnt_once,
                                 hvd::bucket_order::reverse}) {
            trainer t(comm, 5, {.bucket_bytes = 1, .order = order});
            CHECK(t.optimizer.unreported().empty());
            const indices reports = {4, 2, 1, 0};
            CHECK(t.step(0, reports) == 1);
            CHECK(t.optimizer.unreported() == indices{3});
            CHECK(t.optimizer.name(3) == "3");
            for (int step = 1; step < 12; ++step)
                CHECK(t.step(step, reports) == (order == hvd::bucket_order::reverse ? 1 : 4));
            trainer named(comm, 5, {.bucket_bytes = 1, .order = order, .may_be_unreported = {3}});
            for (int step = 0; step < 12; ++step) CHECK(named.step(step, reports) == 4);
            CHECK(named.values == t.values);
        }
    });
}

TEST_CASE("gradients that may stay unreported have buckets of their own") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, 5, {.may_be_unreported = {3, 1}});
        CHECK(t.step(0, {4, 2, 0}) == 1);
        CHECK(t.optimizer.buckets() == 2);
        trainer learnt(comm, 5, {});
        // A gradient that one rank leaves out is not expected on any.
        learnt.step(0, comm.rank() == 0 ? indices{4, 2} : indices{4, 2, 0});
        CHECK(learnt.optimizer.buckets() == 1);
        CHECK(learnt.step(1, {4, 2}) == 1);
        CHECK(learnt.optimizer.buckets() == 2);
        trainer wrong(comm, 2, {.may_be_unreported = {2}});
        CHECK_THROWS_WITH_AS(
            wrong.optimizer.step(),
            doctest::Contains("`may_be_unreported` names parameter 2; there are 2"),
            hvd::usage_error);
    });
}

TEST_CASE("the order of reports is learnt, and learnt again when it has changed") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto order : {hvd::bucket_order::adaptive, hvd::bucket_order::learnt_once}) {
            trainer t(comm, 6, {.bucket_bytes = 1, .order = order}),
                fixed(comm, 6, {.bucket_bytes = 1, .order = hvd::bucket_order::reverse});
            const indices forwards = {0, 1, 2, 3, 4, 5};
            const bool adapts = order == hvd::bucket_order::adaptive;
            // The step with its first report only, to see which bucket is the first.
            const auto first_starts = [&](int step, const indices& reports) {
                for (trainer* const x : {&t, &fixed}) {
                    x->optimizer.zero_gradients();
                    x->backward(step);
                }
                t.optimizer.gradient_ready(reports[0]);
                const bool started = t.optimizer.buckets_started() == 1;
                t.report(indices(reports.begin() + 1, reports.end()));
                t.optimizer.step();
                fixed.optimizer.step();
                CHECK(t.values == fixed.values);
                return started;
            };
            CHECK_FALSE(first_starts(1, forwards));
            for (int step = 2; step < 6; ++step) CHECK(first_starts(step, forwards));
            for (int step = 6; step < 10; ++step) CHECK_FALSE(first_starts(step, reversed(6)));
            for (int step = 10; step < 13; ++step) CHECK(first_starts(step, reversed(6)) == adapts);
            // Other parameters, another order.
            t.optimizer.freeze(5);
            fixed.optimizer.freeze(5);
            static_cast<void>(first_starts(13, {2, 0, 1, 3, 4}));
            CHECK(first_starts(14, {2, 0, 1, 3, 4}));
            t.optimizer.unfreeze(5);
            fixed.optimizer.unfreeze(5);
            CHECK(first_starts(15, {2, 0, 1, 3, 4, 5}));
        }
    });
}

TEST_CASE("steps without reports do not change the learnt order, and ranks without any agree too") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, 4, {.bucket_bytes = 1}), none(comm, 4, {.bucket_bytes = 1});
        const indices reports = {1, 3, 0, 2};
        const bool some = comm.rank() % 2 == 0;
        for (int step = 0; step < 12; ++step) {
            t.step(step, some && step % 3 == 0 ? reports : indices{});
            none.step(step, {});
            CHECK(t.values == none.values);
        }
        if (some) {
            t.optimizer.gradient_ready(1);
            CHECK(t.optimizer.buckets_started() == 1);
        }
        t.optimizer.step();
    });
}

TEST_CASE("a bucket holds as many bytes as it may, and no element more") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto buckets_of = [&](std::size_t bytes) {
            trainer t(comm, 4, {.bucket_bytes = bytes});  // of 16, 12, 8 and 4 bytes
            t.optimizer.step();
            return t.optimizer.buckets();
        };
        CHECK(buckets_of(40) == 1);
        CHECK(buckets_of(36) == 2);
        CHECK(buckets_of(28) == 2);
        CHECK(buckets_of(24) == 2);  // {16}, {12, 8, 4}
        CHECK(buckets_of(20) == 3);  // {16}, {12, 8}, {4}
        CHECK(buckets_of(16) == 3);  // {16}, {12}, {8, 4}
        CHECK(buckets_of(8) == 4);
        trainer t(comm, 4, {.bucket_bytes = 24});
        t.optimizer.gradient_ready(3);
        CHECK(t.optimizer.buckets_started() == 1);  // the 12 bytes after these 16 are too many
        t.optimizer.step();
    });
}

TEST_CASE("a group starts where the last of its gradients is expected") {
    hvd_test::on_ranks([](communicator& comm) {
        trainer t(comm, 5, {.bucket_bytes = 1, .groups = {{1, 4}}});
        const auto started = [&](const indices& order) {
            indices numbers;
            t.optimizer.zero_gradients();
            for (const std::size_t i : order) {
                t.optimizer.gradient_ready(i);
                numbers.push_back(t.optimizer.buckets_started());
            }
            t.optimizer.step();
            return numbers;
        };
        CHECK(started({4, 3, 2, 1, 0}) == indices{0, 1, 2, 3, 4});
        CHECK(started({4, 3, 2, 1, 0}) == indices{0, 1, 2, 3, 4});
        for (int step = 2; step < 9; ++step) started({0, 4, 1, 2, 3});
        CHECK(started({0, 4, 1, 2, 3}) == indices{1, 1, 2, 3, 4});  // the tenth
    });
}

TEST_CASE("passes in no_sync() do not count, and their gradients travel with the step") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const hvd::optimizer_options& o : std::vector<hvd::optimizer_options>{
                 {.bucket_bytes = 1}, {.backward_passes_per_step = 2}}) {
            trainer t(comm, 3, o), none(comm, 3, o);
            floats table(4), d_table(4), expected(4), d_expected(4);
            const std::size_t rows_at = t.optimizer.register_sparse("table", table, d_table, 2);
            const hvd::sparse_rows<float> rows = {{1}, {1, 2}};
            for (int step = 0; step < 3; ++step) {
                t.optimizer.zero_gradients();
                none.optimizer.zero_gradients();
                int pass = 0;
                {
                    const auto quiet = t.optimizer.no_sync();
                    for (; pass < step + comm.rank(); ++pass) {  // each rank has another number
                        t.backward(step, pass);
                        none.backward(step, pass);
                        t.report({2, 1, 0});
                        t.optimizer.gradient_ready(rows_at, rows);
                        t.optimizer.nothing_ready();
                        t.optimizer.nothing_ready(0);
                        CHECK(t.optimizer.buckets_started() == 0);
                    }
                }
                const int written = pass;
                for (int k = 0; k < o.backward_passes_per_step; ++k, ++pass) {
                    t.backward(step, pass);
                    none.backward(step, pass);
                    t.report({2, 1});
                    if (written > 0) t.optimizer.nothing_ready(0);  // a pass has written it
                    else t.optimizer.gradient_ready(0);
                    t.optimizer.gradient_ready(rows_at, rows);
                }
                CHECK(t.optimizer.buckets_started() == t.optimizer.buckets());
                CHECK_THROWS_AS(t.optimizer.zero_gradients(), hvd::usage_error);
                t.optimizer.step();
                none.optimizer.step();
                CHECK(t.values == none.values);
                float sum = 0;
                for (int r = 0; r < comm.size(); ++r)
                    sum += float(step + r + o.backward_passes_per_step);
                CHECK(d_table[2] == doctest::Approx(sum / float(comm.size())));
                CHECK(d_table[3] == doctest::Approx(2 * sum / float(comm.size())));
            }
            // A rank whose last pass has nothing keeps what the passes before it have written.
            t.optimizer.zero_gradients();
            none.optimizer.zero_gradients();
            {
                const auto quiet = t.optimizer.no_sync();
                t.backward(3);
                none.backward(3);
                t.report({2, 1, 0});
            }
            t.optimizer.nothing_ready();
            t.optimizer.step();
            none.optimizer.step();
            CHECK(t.values == none.values);
            const auto quiet = t.optimizer.no_sync();
            CHECK_THROWS_WITH_AS(t.optimizer.gradient_ready(9),
                                 doctest::Contains("there are 4 parameters"), hvd::usage_error);
        }
    });
}

TEST_CASE("an abandoned step, before, in and after that which learns the order, leaves the rest") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const indices reports = {1, 3, 2, 0};
        for (int when = 1; when <= 4; ++when)
            for (std::size_t reported = 0; reported <= 4; ++reported) {
                CAPTURE(when);
                CAPTURE(reported);
                trainer t(comm, 4, {.bucket_bytes = 1}), none(comm, 4, {.bucket_bytes = 1});
                for (int step = 1; step < 12; ++step) {
                    if (step != when) {
                        t.step(step, reports);
                        none.step(step, {});
                        CHECK(t.values == none.values);
                    } else if (comm.rank() == 1) {
                        t.optimizer.zero_gradients();
                        t.backward(step);
                        t.report(indices(reports.begin(), reports.begin() + int(reported)));
                        const auto abandons = [&] { t.optimizer.abandon("no more data"); };
                        if (reported == 4 && when > 1) {
                            CHECK_THROWS_WITH_AS(abandons(), doctest::Contains("Call step(), too"),
                                                 hvd::usage_error);
                            t.optimizer.step();
                            t.values = none.values;
                        } else {
                            abandons();
                        }
                    } else if (reported == 4 && when > 1) {
                        t.step(step, reports);  // nothing can fail any more
                        t.values = none.values;
                    } else {  // in the first step the ranks also compare their rates
                        CHECK_THROWS_AS(t.step(step, reports), hvd::peer_error);
                    }
                }
                check_in_step(comm);
            }
    });
}

TEST_CASE("reports of any order, number and rank train as steps without reports") {
    hvd_test::on_ranks([](communicator& comm) {
        for (unsigned seed = 0; seed < 24; ++seed) {
            CAPTURE(seed);
            std::mt19937 alike(seed), own(seed + 1000 * unsigned(comm.rank() + 1));
            const auto below = [](std::mt19937& random, unsigned n) { return random() % n; };
            hvd::optimizer_options o;
            o.bucket_bytes = std::vector<std::size_t>{1, 12, 24, 4096}[below(alike, 4)];
            o.backward_passes_per_step = 1 + int(below(alike, 3));
            o.average_passes = below(alike, 2) == 0;
            if (below(alike, 3) == 0) o.groups = {{0, 4}, {2, 5}};
            if (below(alike, 3) == 0) o.may_be_unreported = {below(alike, 6)};
            if (below(alike, 4) == 0) o.op = hvd::adasum;
            else if (below(alike, 3) == 0) o.gradient_predivide_factor = 2;
            o.order = hvd::bucket_order(below(alike, 3));
            auto plain = o;
            plain.order = hvd::bucket_order::reverse;
            plain.may_be_unreported = {};
            trainer t(comm, 6, o), none(comm, 6, plain);
            for (int step = 1; step < 12; ++step) {
                if (below(alike, 4) == 0) {
                    const std::size_t i = below(alike, 6);
                    const bool freezes = below(alike, 2) == 0;
                    for (trainer* const x : {&t, &none})
                        freezes ? x->optimizer.freeze(i) : x->optimizer.unfreeze(i);
                }
                t.optimizer.zero_gradients();
                none.optimizer.zero_gradients();
                for (int pass = 0; pass < o.backward_passes_per_step; ++pass) {
                    t.backward(step, pass);
                    none.backward(step, pass);
                    const bool last = pass + 1 == o.backward_passes_per_step;
                    if (!o.average_passes && !last && below(alike, 2) == 0) continue;
                    auto reports = reversed(6);
                    if (below(own, 2) == 0) std::shuffle(reports.begin(), reports.end(), own);
                    if (!o.average_passes && below(own, 3) == 0) reports.resize(below(own, 6));
                    t.report(reports);
                }
                t.optimizer.step();
                none.optimizer.step();
                CHECK(t.values == none.values);
            }
        }
    });
}

TEST_CASE("nothing_ready() keeps the gradients of passes under no_sync(), reported or not") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool reports : {false, true}) {
            std::vector<double> w(2), dw(2), v(1), dv(1);
            hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{1});
            const auto i = optimizer.register_parameter("w", w, dw);
            const auto k = optimizer.register_parameter("v", v, dv);
            for (int step = 1; step <= 3; ++step) {
                optimizer.zero_gradients();
                {
                    const auto quiet = optimizer.no_sync();
                    dw = {1, 2};
                    if (reports) optimizer.gradient_ready(i);
                }
                if (step == 2) optimizer.nothing_ready(i);
                optimizer.nothing_ready();
                optimizer.step();
                CHECK(w == std::vector<double>{-1.0 * step, -2.0 * step});
            }
            dw = {5, 5};  // the next step knows nothing of these passes
            dv = {5};
            optimizer.nothing_ready(k);
            optimizer.nothing_ready();
            optimizer.step();
            CHECK(w == std::vector<double>{-3, -6});
        }
    });
}

TEST_CASE("average_passes refuses a step with fewer passes on any rank, and goes on") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool sparse : {false, true}) {
            trainer t(comm, 2,
                      {.bucket_bytes = 1, .backward_passes_per_step = 3, .average_passes = true});
            floats table(4), d_table(4);
            const hvd::sparse_rows<float> rows = {{1}, {3, 3}};
            if (sparse) t.optimizer.register_sparse("table", table, d_table, 2);
            const auto step = [&](int passes) {
                t.optimizer.zero_gradients();
                for (int pass = 0; pass < passes; ++pass) {
                    for (auto& g : t.gradients)
                        for (float& x : g) x += 4;
                    t.optimizer.gradient_ready(pass == 1 ? 0 : 1);
                    if (sparse) t.optimizer.gradient_ready(2, rows);
                    else if (pass == 1) t.optimizer.nothing_ready(1);
                }
                t.optimizer.step();
            };
            for (int round = 0; round < 3; ++round) {
                const auto before = t.values;
                const bool culprit = comm.rank() == comm.size() - 1;
                if (culprit)
                    CHECK_THROWS_WITH_AS(step(2),
                                         doctest::Contains("has 2 backward passes, and "
                                                           "average_passes divides by 3"),
                                         hvd::usage_error);
                else CHECK_THROWS_AS(step(3), hvd::peer_error);
                CHECK(t.values == before);
                step(3);
                CHECK(t.values[1][0] == before[1][0] - 1);  // 0.25 · 12 / 3
                if (sparse) CHECK(table[2] == doctest::Approx(-0.75 * (round + 1)));
            }
            t.optimizer.zero_gradients();
            for (auto& g : t.gradients)
                for (float& x : g) x = 12;
            const auto before = t.values;
            t.optimizer.step();  // without a report it has all passes
            CHECK(t.values[1][0] == before[1][0] - 1);
        }
    });
}

// From the second step on the peers step once a rank has made its last report.
TEST_CASE("zero_gradients() drops a step whose report was refused, on ranks that all err") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const std::size_t count : {std::size_t(1), std::size_t(3)})
            for (const bool index : {false, true}) {
                trainer t(comm, count, {.bucket_bytes = 1}), none(comm, count, {.bucket_bytes = 1});
                for (int step = 0; step < 12; ++step) {
                    t.optimizer.zero_gradients();
                    t.backward(step);
                    t.report(reversed(count));
                    if (step % 3 == 1 || step == 9) {
                        CHECK_THROWS_AS(t.optimizer.gradient_ready(index ? count : 0),
                                        hvd::usage_error);
                        continue;
                    }
                    t.optimizer.step();
                    none.step(step, {});
                    CHECK(t.values == none.values);
                }
                check_in_step(comm);
            }
    });
}

TEST_CASE("a rank whose report was refused steps as its peers, or all are told of the difference") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const std::size_t count : {std::size_t(1), std::size_t(3)})
            for (const bool drops : {false, true})
                for (const int when : {1, 8, 9}) {
                    CAPTURE(count);
                    CAPTURE(when);
                    trainer t(comm, count, {.bucket_bytes = 1}),
                        none(comm, count, {.bucket_bytes = 1});
                    int told = 0;
                    for (int step = 0; step < 14; ++step) {
                        t.optimizer.zero_gradients();
                        t.backward(step);
                        try {
                            t.report(reversed(count));
                            if (step == when && comm.rank() == 1) {
                                CHECK_THROWS_AS(t.optimizer.gradient_ready(0), hvd::usage_error);
                                if (drops) continue;
                            }
                            t.optimizer.step();
                        } catch (const hvd::mismatch_error& e) {
                            CHECK(std::string(e.what()).find("dropped its last step") !=
                                  std::string::npos);
                            CHECK(step == when + 1);
                            ++told;
                            hvd::broadcast_parameters(t.optimizer);
                        }
                        if (!drops) none.step(step, {});
                    }
                    CHECK(told == (drops ? 1 : 0));
                    if (!drops) CHECK(t.values == none.values);
                    auto root = t.values.back();
                    comm.broadcast(root);
                    CHECK(t.values.back() == root);
                }
    });
}

TEST_CASE("a step with nothing registered is refused, on every rank") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> w(1), dw(1, 1);
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{1});
        CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("there is no parameter"),
                             hvd::error);
        optimizer.register_parameter("w", w, dw);
        optimizer.step();
        CHECK(w[0] == -1);
    });
}

#if !defined(HVD_TEST_LAUNCHED)  // its ranks are threads with queues
TEST_CASE("a report drives the buckets under way where no thread does") {
    hvd_test::run_queues(2, [](hvd::communicator<hvd_test::queues>& comm) {
        auto gate = comm.duplicate();
        std::vector<floats> values(3, floats(4, 1)), gradients(3, floats(4));
        hvd::distributed_optimizer optimizer(
            comm, optimizers::sgd<float>{.rate = 1},
            {.bucket_bytes = 1, .order = hvd::bucket_order::reverse});
        for (std::size_t i = 0; i < 3; ++i)
            optimizer.register_parameter(std::to_string(i), values[i], gradients[i]);
        optimizer.step();
        optimizer.zero_gradients();
        for (floats& gradient : gradients) gradient.assign(4, float(1 + 2 * comm.rank()));
        optimizer.gradient_ready(2);  // its bucket starts
        gate.barrier();               // on both ranks
        optimizer.gradient_ready(0);  // it waits for that of 1
        CHECK(optimizer.buckets_started() == 1);
        CHECK(gradients[2] == floats(4, 2));
        CHECK(gradients[0] == floats(4, float(1 + 2 * comm.rank())));
        gate.barrier();
        optimizer.step();
        CHECK(values[0] == floats(4, -1));
    });
}
#endif

}  // namespace reports_tests
