// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <hvd/arena.hpp>

#include "scarce_memory.hpp"

// One rank runs out of memory at its n-th allocation, for every n until a call succeeds. All ranks
// end the call, and are in step afterwards.

using namespace hvd_test;

namespace {

constexpr std::size_t count = 3000;

// The arguments of the calls of one rank.
struct tensors {
    std::vector<float> x = std::vector<float>(count, 1), y = std::vector<float>(count);
    std::vector<double> z = std::vector<double>(count, 1);
    std::vector<std::vector<float>> list{std::vector<float>(7, 1), std::vector<float>(900, 1)};

    // A callable whose copies need memory.
    struct larger_one {
        std::vector<float> captured;
        float operator()(float a, float b) const { return a < b ? b : a; }
    };
    larger_one callable{{1, 2}};

    const larger_one& larger() const { return callable; }
    auto strided() { return hvd::view(x.data(), hvd::shape(count / 2), hvd::strides(2)); }
    auto matrix() { return hvd::view(x.data(), hvd::shape(count / 5, 5)); }
    auto fused() { return hvd::fuse(x, z, list); }
};

template <class Comm>
struct form {
    const char* name;
    std::function<void(Comm&, tensors&)> call;
};

template <class Comm>
std::vector<form<Comm>> all_forms() {
    return {
        {"allreduce", [](Comm& c, tensors& t) { c.allreduce(t.x, hvd::sum); }},
        {"allreduce strided", [](Comm& c, tensors& t) { c.allreduce(t.strided(), hvd::sum); }},
        {"allreduce fused", [](Comm& c, tensors& t) { c.allreduce(t.fused(), hvd::sum); }},
        {"allreduce async", [](Comm& c, tensors& t) { c.allreduce_async(t.x, hvd::sum).wait(); }},
        {"allreduce fused async",
         [](Comm& c, tensors& t) { c.allreduce_async(t.fused(), hvd::sum).wait(); }},
        {"allreduce_with_rank",
         [](Comm& c, tensors& t) { static_cast<void>(c.allreduce_with_rank(t.x, hvd::max)); }},
        {"allreduce by a callable", [](Comm& c, tensors& t) { c.allreduce(t.x, t.larger()); }},
        {"allreduce fused by a callable",
         [](Comm& c, tensors& t) { c.allreduce(hvd::fuse(t.x, t.y), t.larger()); }},
        {"reduce by a callable", [](Comm& c, tensors& t) { c.reduce(t.x, t.larger()); }},
        {"reduce by a callable async",
         [](Comm& c, tensors& t) { c.reduce_async(t.x, t.larger()).wait(); }},
        {"reduce_scatter by a callable",
         [](Comm& c, tensors& t) { c.reduce_scatter(t.x, t.larger()); }},
        {"reduce_scatter fused by a callable",
         [](Comm& c, tensors& t) { c.reduce_scatter(hvd::fuse(t.x), t.larger()); }},
        {"scan by a callable", [](Comm& c, tensors& t) { c.scan(t.x, t.larger()); }},
        {"exscan by a callable async",
         [](Comm& c, tensors& t) { c.exscan_async(t.x, t.larger()).wait(); }},
        {"broadcast fused", [](Comm& c, tensors& t) { c.broadcast(t.fused()); }},
        {"broadcast async", [](Comm& c, tensors& t) { c.broadcast_async(t.x).wait(); }},
        {"broadcast fused async", [](Comm& c, tensors& t) { c.broadcast_async(t.fused()).wait(); }},
        {"reduce", [](Comm& c, tensors& t) { c.reduce(t.x, hvd::sum); }},
        {"reduce async", [](Comm& c, tensors& t) { c.reduce_async(t.x, hvd::sum).wait(); }},
        {"scan fused", [](Comm& c, tensors& t) { c.scan(t.fused(), hvd::sum); }},
        {"scan fused async", [](Comm& c, tensors& t) { c.scan_async(t.fused(), hvd::sum).wait(); }},
        {"allgather", [](Comm& c, tensors& t) { c.allgather(t.x); }},
        {"allgather ragged",
         [](Comm& c, tensors& t) {
             c.allgather(hvd::view(t.x.data(), 5 + std::size_t(c.rank())));
         }},
        {"allgather fused", [](Comm& c, tensors& t) { c.allgather(t.fused()); }},
        {"allgather async", [](Comm& c, tensors& t) { c.allgather_async(t.x).wait(); }},
        {"allgather fused async", [](Comm& c, tensors& t) { c.allgather_async(t.fused()).wait(); }},
        {"gather fused", [](Comm& c, tensors& t) { c.gather(t.fused(), hvd::root{c.size() - 1}); }},
        {"gather fused async",
         [](Comm& c, tensors& t) { c.gather_async(t.fused(), hvd::root{c.size() - 1}).wait(); }},
        {"gather", [](Comm& c, tensors& t) { c.gather(t.x); }},
        {"gather async", [](Comm& c, tensors& t) { c.gather_async(t.x).wait(); }},
        {"scatter", [](Comm& c, tensors& t) { c.scatter(t.x); }},
        {"scatter async", [](Comm& c, tensors& t) { c.scatter_async(t.x).wait(); }},
        {"alltoall",
         [](Comm& c, tensors& t) {
             c.alltoall(hvd::view(t.x.data(), 10 * std::size_t(c.size())));
         }},
        {"alltoall async",
         [](Comm& c, tensors& t) {
             c.alltoall_async(hvd::view(t.x.data(), 10 * std::size_t(c.size()))).wait();
         }},
        {"scatter fused", [](Comm& c, tensors& t) { c.scatter(t.fused()); }},
        {"scatter fused async", [](Comm& c, tensors& t) { c.scatter_async(t.fused()).wait(); }},
        {"alltoall fused",
         [](Comm& c, tensors& t) {
             const std::size_t n = std::size_t(c.size());
             c.alltoall(hvd::fuse(hvd::view(t.x.data(), 10 * n), hvd::view(t.y.data(), n)));
         }},
        {"alltoall fused async",
         [](Comm& c, tensors& t) {
             const auto all = hvd::view(t.x.data(), 10 * std::size_t(c.size()));
             const auto room = hvd::view(t.y.data(), 10 * std::size_t(c.size()));
             c.alltoall_async(hvd::fuse(all), hvd::into(hvd::fuse(room))).wait();
         }},
        {"reduce_scatter", [](Comm& c, tensors& t) { c.reduce_scatter(t.x, hvd::sum); }},
        {"reduce_scatter of rows",
         [](Comm& c, tensors& t) { c.reduce_scatter(t.matrix(), hvd::sum); }},
        {"reduce_scatter fused",
         [](Comm& c, tensors& t) { c.reduce_scatter(t.fused(), hvd::sum); }},
        {"reduce_scatter async",
         [](Comm& c, tensors& t) { c.reduce_scatter_async(t.matrix(), hvd::sum).wait(); }},
        {"reduce_scatter fused async",
         [](Comm& c, tensors& t) { c.reduce_scatter_async(t.fused(), hvd::sum).wait(); }},
        {"barrier async", [](Comm& c, tensors&) { c.barrier_async().wait(); }},
        {"broadcast_object",
         [](Comm& c, tensors& t) { c.broadcast_object(t.list, hvd::root{c.size() - 1}); }},
        {"broadcast_object received",
         [](Comm& c, tensors& t) { c.broadcast_object(t.list, hvd::root{0}); }},
        {"allgather_object", [](Comm& c, tensors& t) { c.allgather_object(t.list); }},
        {"broadcast_object async",
         [](Comm& c, tensors& t) {
             c.broadcast_object_async(t.list, hvd::root{c.size() - 1}).wait();
         }},
        {"broadcast_object received async",
         [](Comm& c, tensors& t) { c.broadcast_object_async(t.list, hvd::root{0}).wait(); }},
        {"allgather_object async",
         [](Comm& c, tensors& t) { c.allgather_object_async(t.list).wait(); }},
        {"scatter_object received async",
         [](Comm& c, tensors&) {
             const std::size_t n = c.rank() == 0 ? std::size_t(c.size()) : 0;
             c.scatter_object_async(std::vector(n, std::string("one"))).wait();
         }},
        {"plan_allreduce",
         [](Comm& c, tensors& t) {
             auto plan = c.plan_allreduce(t.fused(), hvd::sum);
             plan.run();
             plan.run_async().wait();
         }},
        {"plan_allreduce with a codec",
         [](Comm& c, tensors& t) {
             c.plan_allreduce(t.fused(), hvd::sum, {},
                              hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>))
                 .run();
         }},
        {"plan_broadcast", [](Comm& c, tensors& t) { c.plan_broadcast(t.fused()).run(); }},
        {"plan_allgather",
         [](Comm& c, tensors& t) {
             const std::size_t each = count / std::size_t(c.size());
             c.plan_allgather(hvd::view(t.x.data(), each),
                              hvd::into(hvd::view(t.y.data(), each * std::size_t(c.size()))))
                 .run();
         }},
        {"plan_reduce_scatter",
         [](Comm& c, tensors& t) {
             const std::size_t n = std::size_t(c.size());
             c.plan_reduce_scatter(hvd::view(t.x.data(), n * 100), hvd::sum,
                                   hvd::into(hvd::view(t.y.data(), 100)))
                 .run();
         }},
    };
}

// Runs a call on new communicators, so that nothing was allocated before, until the last rank has
// memory for all of it. Transports between nodes make some memory where data already moves: they
// have made the call before.
template <class Comm, class Call>
void run_out_of_memory(Comm& comm, shortage how, Call call, bool is_told_alone = false) {
    const bool here = comm.rank() == comm.size() - 1;
    for (long n = 0;; ++n) {
        INFO("allocation ", n);
        auto fresh = comm.split(0);
        tensors t;
        if (comm.local_size() < comm.size()) call(fresh, t);
        outcome result;
        std::string what;
        {
            const scarce_memory memory(here, n, how);
            result = outcome_of([&] { call(fresh, t); }, what);
        }
        INFO("outcome ", int(result), ": ", what);
        const bool failed_here = scarce_memory::has_failed();
        if (!here) CHECK((result == outcome::success || result == outcome::told_by_peer));
        check_that_it_works(fresh);
        const bool failed_somewhere = most_of(comm, failed_here ? 1 : 0) == 1;
        const bool thrown_somewhere = most_of(comm, result == outcome::success ? 0 : 1) == 1;
        CHECK((is_told_alone || thrown_somewhere == (result != outcome::success)));
        if (!failed_somewhere) {
            CHECK(result == outcome::success);
            return;
        }
        REQUIRE(n < 1000);
    }
}

// Makes something of a communicator, on all ranks or on none, until the last rank has memory for
// it. `make(comm, made)` makes it, and `use` checks it.
template <class Made, class Comm, class Make, class Use>
void make_out_of_memory(Comm& comm, shortage how, Make make, Use use) {
    const bool here = comm.rank() == comm.size() - 1;
    for (long n = 0;; ++n) {
        INFO("allocation ", n);
        auto parent = comm.split(0);
        Made made;
        outcome result;
        std::string what;
        {
            const scarce_memory memory(here, n, how);
            result = outcome_of([&] { make(parent, made); }, what);
        }
        INFO("outcome ", int(result), ": ", what);
        const bool failed_here = scarce_memory::has_failed();
        check_that_it_works(parent);
        const bool failed_somewhere = most_of(comm, failed_here ? 1 : 0) == 1;
        const bool thrown_somewhere = most_of(comm, result == outcome::success ? 0 : 1) == 1;
        CHECK(thrown_somewhere == (result != outcome::success));
        if (!here && thrown_somewhere) {
            CHECK(result == outcome::told_by_peer);
            CHECK(contains(what, "rank " + std::to_string(comm.size() - 1)));
        }
        if (result == outcome::success) use(made);
        if (!failed_somewhere) {
            CHECK(result == outcome::success);
            return;
        }
        REQUIRE(n < 1000);
    }
}

}  // namespace

TEST_CASE("communicators are made on all ranks, or on none") {
    on_every_transport_from(2, [](auto& comm) {
        using Comm = std::remove_cvref_t<decltype(comm)>;
        if (comm.size() > 3) return;
        const auto use = [](Comm& made) {
            if (made) check_that_it_works(made);
        };
        for (const shortage how : {shortage::once, shortage::from_then_on}) {
            INFO(std::string(how == shortage::once ? "" : "and nothing afterwards"));
            make_out_of_memory<Comm>(
                comm, how, [](Comm& c, Comm& made) { made = c.split(0); }, use);
            make_out_of_memory<Comm>(
                comm, how, [](Comm& c, Comm& made) { made = c.split(c.rank() % 2, -c.rank()); },
                use);
            make_out_of_memory<Comm>(
                comm, how, [](Comm& c, Comm& made) { made = c.subset({0, c.size() - 1}); }, use);
            make_out_of_memory<Comm>(
                comm, how, [](Comm& c, Comm& made) { made = c.subset({0}); }, use);
            make_out_of_memory<Comm>(comm, how, [](Comm& c, Comm& made) { made = c.local(); }, use);
            make_out_of_memory<Comm>(comm, how, [](Comm& c, Comm& made) { made = c.cross(); }, use);
        }
    });
}

TEST_CASE("arenas are made, and grow, on all ranks or on none") {
    on_every_transport_from(2, [](auto& comm) {
        using Comm = std::remove_cvref_t<decltype(comm)>;
        if (comm.size() > 3) return;
        using arena = std::optional<hvd::arena>;
        const auto use = [](arena& made) {
            auto x = made->tensor<int>(hvd::shape(1000));
            std::fill_n(x.data(), 1000, 1);
        };
        for (const shortage how : {shortage::once, shortage::from_then_on}) {
            INFO(std::string(how == shortage::once ? "" : "and nothing afterwards"));
            make_out_of_memory<arena>(
                comm, how, [](Comm& c, arena& made) { made.emplace(c, 100000); }, use);
            make_out_of_memory<arena>(
                comm, how,
                [](Comm& c, arena& made) {
                    made.emplace(c, 64);
                    made->grow(100000);
                },
                use);
        }
    });
}

TEST_CASE("memory goes back to an arena where there is none for a longer list of its blocks") {
    on_every_transport([](auto& comm) {
        constexpr std::size_t each = 64, blocks = 20;
        hvd::arena arena(comm, each * blocks);
        for (int round = 0; round < 2; ++round) {
            void* given[blocks];
            for (void*& block : given) block = arena.allocate(each);
            CHECK(arena.available() == 0);
            {
                const scarce_memory none(true, 0, shortage::from_then_on);
                for (const std::size_t first : {0, 1})  // no two of the first half are neighbours
                    for (std::size_t i = first; i < blocks; i += 2)
                        arena.deallocate(given[i], each);
            }
            CHECK(!scarce_memory::has_failed());
            CHECK(arena.available() == each * blocks);
        }
        void* const all = arena.allocate(each * blocks);
        arena.deallocate(all, each * blocks);
    });
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("the world and duplicates of handles are made on all ranks, or on none") {
    const failing_rank_does_not_hang guard;
    auto comm = world();
    if (comm.size() < 2) return;
    const auto use = [](communicator& made) { check_that_it_works(made); };
    for (const int node_size : {0, 1, 2})
        for (const shortage how : {shortage::once, shortage::from_then_on}) {
            INFO("nodes of ", node_size);
            const hvd::communicator_options options{.node_size = node_size};
            make_out_of_memory<communicator>(
                comm, how,
                [&](communicator&, communicator& made) { made = communicator::world(options); },
                use);
            make_out_of_memory<communicator>(
                comm, how,
                [&](communicator&, communicator& made) {
                    made = communicator(MPI_COMM_WORLD, hvd::borrow, options);
                },
                use);
        }
}

TEST_CASE("a rank that does not come to the making of the world is waited for until the timeout") {
    const failing_rank_does_not_hang guard;
    using namespace std::chrono_literals;
    auto comm = world();
    if (comm.size() < 2) return;
    if (comm.rank() == 0) std::this_thread::sleep_for(600ms);
    thrown<hvd::peer_error>([] { communicator::world({.timeout = 200ms}); });
    check_that_it_works(comm);
    auto other = communicator::world();
    check_that_it_works(other);
}

TEST_CASE("a making of the world that some ranks have left hinders no later one") {
    const failing_rank_does_not_hang guard;
    using namespace std::chrono_literals;
    auto comm = world();
    std::minstd_rand draw(1);
    for (int i = 0; i < 20; ++i) {
        const int tries = 1 + i % 3;
        const auto late = std::chrono::microseconds(tries * 15000 + draw() % 10000);
        if (comm.rank() == i % comm.size()) std::this_thread::sleep_for(late);
        for (int n = 0; n < tries; ++n) {
            communicator made;
            try {
                made = communicator::world({.node_size = 1 + i % 2, .timeout = 20ms});
            } catch (const hvd::peer_error&) {
            }
        }
        check_that_it_works(comm);
        if (i % 2 == 0) {
            auto part = comm.split(0);
            check_that_it_works(part);
        }
        auto later = communicator::world();
        check_that_it_works(later);
    }
}
#endif

TEST_CASE("a rank that finds no memory for a call tells its peers, and all ranks stay in step") {
    on_every_transport_from(2, [](auto& comm) {
        if (comm.size() > 3) return;
        for (const auto& [name, call] : all_forms<std::remove_cvref_t<decltype(comm)>>())
            for (const shortage how : {shortage::once, shortage::from_then_on}) {
                INFO(std::string(name),
                     std::string(how == shortage::once ? "" : ", and nothing afterwards"));
                // A serializer that reads an object needs memory when the data has moved.
                run_out_of_memory(comm, how, call, contains(std::string(name), "_object"));
            }
    });
}

#if defined(HVD_TEST_WRAPS_MEMORY) && defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("a rank that finds no memory where data moves between nodes tells its peers why") {
    using namespace std::chrono_literals;
    using call = void (*)(communicator&, std::vector<float>& x, std::vector<float>& y);
    constexpr call calls[] = {
        [](communicator& c, auto& x, auto&) { c.allreduce(x, hvd::sum); },
        [](communicator& c, auto& x, auto&) { c.broadcast(x); },
        [](communicator& c, auto& x, auto& y) {
            c.allgather(hvd::view(x.data(), x.size() / size_of(c)),
                        hvd::into(hvd::view(y.data(), x.size() / size_of(c) * size_of(c))));
        },
        [](communicator& c, auto& x, auto& y) {
            const std::size_t n = x.size() / size_of(c) * size_of(c);
            c.alltoall(hvd::view(x.data(), n), hvd::into(hvd::view(y.data(), n)));
        },
    };
    const auto is_told = [](const std::string& what, int rank) {
        return contains(what, "rank " + std::to_string(rank)) &&
               (contains(what, "bad_alloc") || contains(what, "no memory left"));
    };
    const auto run = [&](communicator& comm, call f, shortage how) {
        const int last = comm.size() - 1;
        for (long n = 0;; ++n) {
            INFO("allocation ", n);
            auto fresh = comm.split(0);
            std::vector<float> x(30'000, 1), y(30'000);
            std::string what, afterwards;
            outcome result;
            {
                const scarce_memory memory(comm.rank() == last, n, how, true);
                result = outcome_of([&] { f(fresh, x, y); }, what);
            }
            const bool failed_here = scarce_memory::has_failed();
            const outcome next = outcome_of([&] { fresh.barrier(); }, afterwards);
            INFO("outcome ", int(result), ": ", what, "; then ", afterwards);
            CHECK(most_of(comm, int(next)) == -most_of(comm, -int(next)));
            if (comm.rank() != last) {
                CHECK((result == outcome::success || is_told(what, last)));
                CHECK((next == outcome::success || is_told(afterwards, last)));
            }
            if (most_of(comm, failed_here ? 1 : 0) == 0) {
                CHECK(result == outcome::success);
                return;
            }
            REQUIRE(n < 100);
        }
    };
    on_every_transport_from(
        2,
        [&](auto& comm) {
            if (comm.local_size() == comm.size()) return;
            for (const call& f : calls)
                for (const shortage how : {shortage::once, shortage::from_then_on}) {
                    INFO("call ", &f - calls);
                    run(comm, f, how);
                }
        },
        {.timeout = 3s});
}
#endif
