// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <hvd/train.hpp>

#include "scarce_memory.hpp"

// Calls of training consist of several calls and of work between them. Where one rank finds no
// memory, all ranks throw, nothing has changed, and the next call works at once.

namespace training_without_memory_tests {

using namespace hvd_test;
namespace optimizers = hvd::optimizers;

namespace {

constexpr long most_allocations = 1000;

std::string name_of(shortage how) { return how == shortage::once ? "" : ", nothing afterwards"; }

// The arguments of the calls of one rank. They have rows of a table that others have, too.
struct tensors {
    std::vector<float> x, y;
    std::vector<double> z;
    std::vector<std::vector<float>> list;
    hvd::sparse_rows<float> rows;
    std::vector<float> table = std::vector<float>(60, -1);
    hvd::local_parameters local;

    explicit tensors(int rank) {
        for (int i = 0; i < 700; ++i) x.push_back(float(rank + 1 + i % 5));
        y.assign(30, float(rank + 1));
        z.assign(40, rank + 2);
        list = {{1, 2, float(rank)}, std::vector<float>(200, 1)};
        for (int i = 0; i < 5; ++i) rows.indices.push_back(rank + 3 * (i % 4));
        for (int i = 0; i < 15; ++i) rows.values.push_back(float(i + rank));
        local.register_local(y);
    }
    tensors(const tensors&) = delete;
    tensors& operator=(const tensors&) = delete;

    std::array<hvd::tensor_view<float>, 2> views() {
        return {hvd::view(x.data(), x.size()), hvd::view(y.data(), y.size())};
    }

    bool operator==(const tensors& other) const {
        return x == other.x && y == other.y && z == other.z && list == other.list &&
               table == other.table;
    }
};

template <class Comm>
struct form {
    const char* name;
    std::function<void(Comm&, tensors&)> call;
};

template <class Comm>
std::vector<form<Comm>> all_forms() {
    using hvd::gradient_codec, hvd::gradient_op, hvd::sparse_policy;
    std::vector<form<Comm>> all = {
        {"Adasum", [](Comm& c, tensors& t) { c.allreduce(t.x, hvd::adasum); }},
        {"Adasum of several types",
         [](Comm& c, tensors& t) { c.allreduce(hvd::fuse(t.x, t.z, t.list), hvd::adasum); }},
        {"gradients", [](Comm& c, tensors& t) { hvd::distributed_gradients(c, t.views()); }},
        {"gradients by Adasum",
         [](Comm& c, tensors& t) {
             hvd::distributed_gradients(c, t.views(), {.op = hvd::adasum});
         }},
        {"gradients with a codec",
         [](Comm& c, tensors& t) {
             hvd::distributed_gradients(c, t.views(), {.codec = hvd::codec::cast<hvd::bfloat16>});
         }},
        {"gradients but local ones, with a codec",
         [](Comm& c, tensors& t) {
             hvd::partial_distributed_gradients(c, t.views(), t.views(), t.local,
                                                {.codec = hvd::codec::cast<hvd::float16>});
         }},
    };
    const auto add_sparse = [&](const char* name, sparse_policy policy, gradient_codec codec) {
        all.push_back({name, [=](Comm& c, tensors& t) {
                           hvd::sparse_allreduce(c, hvd::sparse_view<float>(t.rows),
                                                 hvd::into(t.table), 3,
                                                 {.policy = policy, .codec = codec});
                       }});
    };
    add_sparse("gathered rows", sparse_policy::gather, hvd::codec::none);
    add_sparse("gathered rows with a codec", sparse_policy::gather, hvd::codec::cast<hvd::float16>);
    add_sparse("rows as a table", sparse_policy::dense, hvd::codec::none);
    add_sparse("rows as a table with a codec", sparse_policy::dense,
               hvd::codec::cast<hvd::bfloat16>);
    return all;
}

// Checks that all ranks have thrown, or none, and that those which had memory know the reason.
// Returns true if they have thrown.
template <class Comm>
bool thrown_on_all(Comm& comm, outcome mine, const std::string& what) {
    const bool here = comm.rank() == comm.size() - 1;
    INFO("outcome ", int(mine), ": ", what);
    const bool thrown = most_of(comm, mine == outcome::success ? 0 : 1) == 1;
    CHECK(thrown == (mine != outcome::success));
    if (thrown && here) CHECK(mine == outcome::no_memory);
    if (thrown && !here) {
        CHECK(mine == outcome::told_by_peer);
        CHECK(contains(what, "rank " + std::to_string(comm.size() - 1)));
    }
    return thrown;
}

// Calls try_once(n) with the number of allocations for which the last rank has memory, until no
// allocation fails. try_once returns true if one has failed on this rank.
template <class Comm, class F>
void until_there_is_memory(Comm& comm, F try_once) {
    for (long n = 0;; ++n) {
        INFO("allocation ", n);
        const bool failed = try_once(n);
        if (most_of(comm, failed ? 1 : 0) == 0) return;
        REQUIRE(n < most_allocations);
    }
}

template <class Comm, class Call>
void call_out_of_memory(Comm& comm, shortage how, Call call) {
    const bool here = comm.rank() == comm.size() - 1;
    until_there_is_memory(comm, [&](long n) {
        auto fresh = comm.split(0);
        const tensors before(comm.rank());
        tensors t(comm.rank()), again(comm.rank()), undisturbed(comm.rank());
        call(comm, undisturbed);
        if (comm.local_size() < comm.size()) call(fresh, again);
        outcome result;
        std::string what;
        {
            const scarce_memory memory(here, n, how);
            result = outcome_of([&] { call(fresh, t); }, what);
        }
        const bool failed = scarce_memory::has_failed();
        if (thrown_on_all(comm, result, what)) {
            CHECK(t == before);
            call(fresh, t);
        }
        CHECK(t == undisturbed);
        check_that_it_works(fresh);
        return failed;
    });
}

// A model with two dense parameters, a local one and a table, or without the table.
template <class Comm>
class trained {
public:
    struct kind {
        const char* name;
        hvd::optimizer_options options = {};
        bool has_table = false;
        bool reports = false;  // before the step
        hvd::sparse_policy policy = hvd::sparse_policy::automatic;
    };

    trained(Comm& comm, const kind& of)
        : kind_(of), rank_(comm.rank()), optimizer_(comm, {.rate = 0.5f}, of.options) {
        optimizer_.register_parameter("weights", weights, weight_gradients_);
        optimizer_.register_parameter("bias", bias, bias_gradients_);
        optimizer_.register_local("own", own, own_gradients_);
        if (of.has_table)
            table_ =
                optimizer_.register_sparse("table", table, table_gradients_, columns, of.policy);
    }

    void step() {
        optimizer_.zero_gradients();
        for (std::size_t i = 0; i < weights.size(); ++i)
            weight_gradients_[i] = float(1 + rank_) / float(i % 7 + 3) + weights[i] / 3;
        std::fill_n(bias_gradients_.data(), bias.size(), bias[0] / 7);
        std::fill_n(own_gradients_.data(), own.size(), 1.f);
        if (kind_.reports) {
            optimizer_.gradient_ready(1);
            optimizer_.gradient_ready(0);
        }
        if (kind_.has_table) report_rows();
        optimizer_.step();
    }

    std::vector<float> parameters() const {
        std::vector<float> all;
        for (const auto* p : {&weights, &bias, &own, &table})
            all.insert(all.end(), p->begin(), p->end());
        return all;
    }

private:
    static constexpr std::size_t columns = 3, row_count = 40;

    // Rows of which some lie side by side, so that they are several parts of the table.
    void report_rows() {
        for (std::size_t i = 0; i < 4; ++i) indices_[i] = std::int64_t(i * i + std::size_t(rank_));
        for (std::size_t i = 0; i < values_.size(); ++i)
            values_[i] = table[i] / 3 + float(rank_ + 1) / 7;
        optimizer_.gradient_ready(table_, hvd::sparse_view<float>{indices_, values_});
    }

    const kind& kind_;
    int rank_;
    std::vector<float> weights = std::vector<float>(500, 1), bias = std::vector<float>(3, 1),
                       own = std::vector<float>(5, 1),
                       table = std::vector<float>(row_count * columns, 1);
    std::vector<float> weight_gradients_ = std::vector<float>(weights.size()),
                       bias_gradients_ = std::vector<float>(bias.size()),
                       own_gradients_ = std::vector<float>(own.size()),
                       table_gradients_ = std::vector<float>(table.size());
    std::vector<std::int64_t> indices_ = std::vector<std::int64_t>(4);
    std::vector<float> values_ = std::vector<float>(4 * columns);
    std::size_t table_ = 0;
    hvd::distributed_optimizer<Comm, optimizers::sgd<float>> optimizer_;
};

template <class Comm>
void step_out_of_memory(Comm& comm, shortage how, const typename trained<Comm>::kind& of,
                        int before) {
    INFO("after ", before, " steps", name_of(how));
    const bool here = comm.rank() == comm.size() - 1;
    trained<Comm> reference(comm, of);
    for (int i = 0; i < before + 1; ++i) reference.step();
    const std::vector<float> one_further = reference.parameters();
    until_there_is_memory(comm, [&](long n) {
        auto fresh = comm.split(0);
        if (comm.local_size() < comm.size()) trained<Comm>(fresh, of).step();
        trained<Comm> model(fresh, of);
        for (int i = 0; i < before; ++i) model.step();
        const std::vector<float> parameters = model.parameters();
        outcome result;
        std::string what;
        {
            const scarce_memory memory(here, n, how);
            result = outcome_of([&] { model.step(); }, what);
        }
        const bool failed = scarce_memory::has_failed();
        if (thrown_on_all(comm, result, what)) {
            CHECK(model.parameters() == parameters);
            model.step();
        }
        CHECK(model.parameters() == one_further);
        check_that_it_works(fresh);
        return failed;
    });
}

}  // namespace

TEST_CASE("a rank that finds no memory for a call of training tells its peers") {
    on_every_transport_from(2, [](auto& comm) {
        if (comm.size() > 3) return;
        for (const auto& [name, call] : all_forms<std::remove_cvref_t<decltype(comm)>>())
            for (const shortage how : {shortage::once, shortage::from_then_on}) {
                INFO(std::string(name), name_of(how));
                call_out_of_memory(comm, how, call);
            }
    });
}

TEST_CASE("a step for which one rank finds no memory ends on all ranks, and changes nothing") {
    using hvd::gradient_codec, hvd::gradient_op, hvd::sparse_policy;
    on_every_transport_from(2, [](auto& comm) {
        if (comm.size() > 3) return;
        using model = trained<std::remove_cvref_t<decltype(comm)>>;
        const hvd::optimizer_options small = {.bucket_bytes = 1}, adasum = {.op = hvd::adasum},
                                     codec = {.bucket_bytes = 1,
                                              .codec = hvd::codec::cast<hvd::bfloat16>},
                                     feedback = {.bucket_bytes = 1,
                                                 .codec = hvd::codec::error_feedback(
                                                     hvd::codec::cast<hvd::bfloat16>)},
                                     finite = {.skip_nonfinite = true};
        const typename model::kind kinds[] = {
            {"reported buckets", small, false, true},
            {"Adasum", adasum},
            {"a codec", codec},
            {"rows as a table", finite, true, false, sparse_policy::dense},
            {"rows and error feedback", feedback, true, true, sparse_policy::gather},
        };
        for (const auto& kind : kinds) {
            INFO(std::string(kind.name));
            // The first step makes the memory of all, and the second agrees on an order of reports.
            step_out_of_memory(comm, shortage::once, kind, 0);
            step_out_of_memory(comm, shortage::from_then_on, kind, 0);
            step_out_of_memory(comm, shortage::once, kind, 1);
        }
    });
}

}  // namespace training_without_memory_tests
