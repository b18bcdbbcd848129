// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hvd/engine.hpp>

#include "hvd_test.hpp"
#include "scarce_memory.hpp"

// Where a rank finds no memory for a tensor of an engine, all ranks throw, and the engine works on.
// Without a byte for the engine's own thread it ends on all ranks, which know why.

namespace engine_without_memory_tests {

using namespace hvd_test;
using engine = hvd::engine<backend>;

namespace {

constexpr long most_allocations = 500;

struct tensors {
    std::vector<float> x, y = std::vector<float>(60), many;
    std::vector<double> z = std::vector<double>(40, 1);
    std::vector<std::vector<float>> list{{1, 2, 3}, std::vector<float>(200, 1)};
    std::vector<int> counts;
    hvd::named_options with_callback;

    explicit tensors(int size)
        : x(std::vector<float>(60, 1)),
          many(std::vector<float>(std::size_t(2 * size), 1)),
          counts(std::vector<int>(std::size_t(size), 2)) {
        const std::string text = "so much that a copy of the callback needs memory";
        with_callback.then = [text](std::exception_ptr) {};
    }
};

struct form {
    const char* name;
    std::function<void(engine&, tensors&)> call;
    // The others may have their result when this rank finds no memory for its own.
    bool may_succeed_elsewhere = false;
};

const std::vector<form>& all_forms() {
    static const std::vector<form> all = {
        {"allreduce", [](engine& e, tensors& t) { e.allreduce("it", t.x, hvd::sum).wait(); }},
        {"allreduce into",
         [](engine& e, tensors& t) {
             e.allreduce("it", std::as_const(t.x), t.y, hvd::sum).wait();
         }},
        {"allreduce of a group",
         [](engine& e, tensors& t) {
             e.allreduce("a tensor with a long name", hvd::fuse(t.x, t.z, t.list), hvd::average)
                 .wait();
         }},
        {"allreduce with a callback",
         [](engine& e, tensors& t) { e.allreduce("it", t.x, hvd::max, t.with_callback).wait(); }},
        {"allgather", [](engine& e, tensors& t) { (void)e.allgather("it", t.x).wait(); }},
        {"allgather of a group",
         [](engine& e, tensors& t) { (void)e.allgather("it", hvd::fuse(t.x, t.z)).wait(); }, true},
        {"broadcast", [](engine& e, tensors& t) { e.broadcast("it", hvd::fuse(t.x, t.z)).wait(); }},
        {"reduce_scatter",
         [](engine& e, tensors& t) { (void)e.reduce_scatter("it", t.x, hvd::sum).wait(); }},
        {"alltoall",
         [](engine& e, tensors& t) { (void)e.alltoall("it", t.many, t.counts).wait(); }},
        {"barrier", [](engine& e, tensors&) { e.barrier().wait(); }},
        {"join", [](engine& e, tensors&) { (void)e.join().wait(); }, true},
        {"retune",
         [](engine& e, tensors&) {
             e.retune({.fusion_threshold = 1 + e.tuned().fusion_threshold});
         }},
    };
    return all;
}

std::string title_of(const form& f, shortage how) {
    return std::string(f.name) + (how == shortage::once ? "" : ", nothing afterwards");
}

// True if an engine works on, which it does on all ranks or on none.
template <class Comm>
bool works_on(Comm& comm, engine& e, bool strict = true) {
    std::vector<float> x(5, 1);
    std::string what;
    const outcome result = outcome_of([&] { e.allreduce("afterwards", x, hvd::sum).wait(); }, what);
    const bool works = most_of(comm, result == outcome::success ? 0 : 1) == 0;
    INFO(int(result), ": ", what);
    if (strict) CHECK(works == (result == outcome::success));
    if (works) CHECK(x[4] == float(comm.size()));
    return works;
}

// Makes a call, and checks that all ranks have thrown or none, and know whose failure it was.
// Returns true if they have thrown.
template <class Comm, class Call>
bool throws_on_all(Comm& comm, memory_supply* supply, Call call, bool strict = true) {
    const bool here = comm.rank() == comm.size() - 1;
    std::string what;
    memory_supply::give_to_this_thread(here ? supply : nullptr);
    const outcome result = outcome_of(call, what);
    memory_supply::give_to_this_thread(nullptr);
    const bool thrown = most_of(comm, result == outcome::success ? 0 : 1) == 1;
    INFO("outcome ", int(result), ": ", what);
    if (strict) CHECK(thrown == (result != outcome::success));
    if (thrown && !here && (strict || result != outcome::success)) {
        CHECK(result == outcome::told_by_peer);
        CHECK(contains(what, "rank " + std::to_string(comm.size() - 1)));
    }
    if (thrown && here) CHECK(result != outcome::other);
    return thrown;
}

// The last rank has memory for n allocations inside the call, for every n until it has enough.
template <class Comm>
void submit_out_of_memory(Comm& comm, shortage how, const form& f,
                          const hvd::engine_options& options) {
    std::optional<engine> e(std::in_place, comm, options);
    for (long n = 0;; ++n) {
        INFO("allocation ", n);
        tensors t(comm.size());
        for (int step = 0; options.prediction && step < 5; ++step) f.call(*e, t);
        memory_supply supply(n, how);
        throws_on_all(comm, &supply, [&] { f.call(*e, t); });
        const bool works = works_on(comm, *e);
        if (how == shortage::once && std::string(f.name) != "join") CHECK(works);
        if (!works) e.emplace(comm, options);
        if (most_of(comm, supply.has_failed() ? 1 : 0) == 0) return;
        REQUIRE(n < most_allocations);
    }
}

// Gives the supply to the engine's own thread, which runs callbacks.
template <class Comm>
void give_to_thread_of(engine& e, Comm& comm, memory_supply& supply) {
    const bool here = comm.rank() == comm.size() - 1;
    std::atomic<bool> given = false;
    std::vector<float> x(5, 1);
    const auto give = [&](std::exception_ptr) {
        if (here) memory_supply::give_to_this_thread(&supply);
        given = true;
    };
    e.allreduce("before", x, hvd::sum, {.then = give}).wait();
    while (!given) std::this_thread::yield();
}

// Returns false once the thread has enough memory for n allocations.
template <class Comm>
bool run_out_of_memory(Comm& comm, shortage how, const form& f, long n) {
    INFO("allocation ", n);
    // A wait for another process may need memory, when the others have the data of this rank.
#if defined(HVD_TEST_LAUNCHED)
    constexpr bool strict = false;
#else
    constexpr bool strict = true;
#endif
    tensors t(comm.size());
    memory_supply supply(n, how);
    {
        engine e(comm, {.prediction = false});
        give_to_thread_of(e, comm, supply);
        for (int time = 0; time < 2; ++time)
            throws_on_all(comm, nullptr, [&] { f.call(e, t); }, strict && !f.may_succeed_elsewhere);
        works_on(comm, e, strict);
    }
    return most_of(comm, supply.has_failed() ? 1 : 0) == 1;
}

template <class F>
void on_up_to_four(F f) {
    on_ranks([&](auto& comm) {
        if (comm.size() <= 4) f(comm);
    });
}

}  // namespace

TEST_CASE("a tensor for which a rank finds no memory is refused on all ranks") {
    on_up_to_four([](auto& comm) {
        for (const form& f : all_forms())
            for (const shortage how : {shortage::once, shortage::from_then_on}) {
                INFO(title_of(f, how));
                submit_out_of_memory(comm, how, f, {.prediction = false});
            }
    });
}

TEST_CASE("so is a tensor of a predicted step") {
    on_up_to_four([](auto& comm) {
        for (const form& f : all_forms())
            for (const shortage how : {shortage::once, shortage::from_then_on}) {
                INFO(title_of(f, how));
                submit_out_of_memory(comm, how, f, {});
            }
    });
}

TEST_CASE("an engine whose thread finds no memory refuses the tensor, or ends on all ranks") {
    const auto is_tried = [](const std::string& name) {
        return name == "allreduce of a group" || name == "broadcast" || name == "retune" ||
               name == "join";
    };
    on_ranks_from(2, [&](auto& comm) {
        if (comm.size() > 3) return;
        for (const form& f : all_forms())
            for (const shortage how : {shortage::once, shortage::from_then_on}) {
                INFO(title_of(f, how));
                for (long n = 0; is_tried(f.name) && run_out_of_memory(comm, how, f, n); ++n)
                    REQUIRE(n < most_allocations);
            }
    });
}

}  // namespace engine_without_memory_tests
