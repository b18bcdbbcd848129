// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "disagreement.hpp"
#include "reference.hpp"

namespace hvd_test {

// An element type of the size of `modular`.
struct other_modular {
    std::int32_t value = 0;
    friend other_modular operator+(other_modular a, other_modular b) {
        return {(a.value + b.value) % 1013};
    }
};

}  // namespace hvd_test

template <>
struct hvd::dtype_traits<hvd_test::other_modular>
    : hvd::arithmetic_element<hvd_test::other_modular> {
    static constexpr std::string_view name = "other modular";
};

namespace disagreement_tests {

using namespace hvd_test;

// Ranks make different calls. Each is told the values of all ranks, and they go on together.

TEST_CASE("ranks with another element type") {
    on_every_transport_from(2, [](auto& comm) {
        const auto value = [](int rank) { return rank % 2 == 0 ? "int32" : "float32"; };
        std::vector<int> ints(10);
        std::vector<float> floats(10);
        const auto with_either = [&](const auto& call) {
            expect_mismatch(comm, "element type", value, [&] {
                if (comm.rank() % 2 == 0) call(ints);
                else call(floats);
            });
        };
        with_either([&](auto& x) { comm.allreduce(x, hvd::sum); });
        with_either([&](auto& x) { comm.reduce(x, hvd::sum, hvd::root{1}); });
        with_either([&](auto& x) { comm.reduce_scatter(x, hvd::sum); });
        with_either([&](auto& x) { comm.broadcast(x); });
        with_either([&](auto& x) { comm.allgather(x); });
        with_either([&](auto& x) { comm.gather(x, hvd::root{1}); });
        with_either([&](auto& x) { comm.scatter(x); });
        with_either([&](auto& x) {
            std::vector<std::size_t> all(size_of(comm));
            all.front() = 10;
            comm.alltoall(x, all);
        });
    });
}

TEST_CASE("ranks with another user's element type of the same size") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<modular> x(3);
        std::vector<std::int32_t> y(3);
        const auto value = [](int rank) { return rank == 0 ? "modular/4" : "int32"; };
        expect_mismatch(comm, "element type", value, [&] {
            if (comm.rank() == 0) comm.allreduce(x, hvd::sum);
            else comm.allreduce(y, hvd::sum);
        });
    });
}

TEST_CASE("ranks with another count") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(17 + rank_of(comm));
        const auto value = [](int rank) { return "[" + std::to_string(17 + rank) + "]"; };
        expect_mismatch(comm, "shape", value, [&] { comm.allreduce(x, hvd::sum); });
        expect_mismatch(comm, "shape", value, [&] { comm.broadcast(x); });
        expect_mismatch(comm, "shape", value, [&] { comm.reduce(x, hvd::sum); });
        expect_mismatch(comm, "shape", value, [&] { comm.reduce_scatter(x, hvd::sum); });
    });
}

TEST_CASE("ranks with another shape of as many elements") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(60);
        const auto value = [](int rank) {
            return rank == 0 ? "[60]"
                             : "[" + std::to_string(rank) + ", " + std::to_string(60 / rank) + "]";
        };
        const auto call = [&](const auto& reduce) {
            if (comm.rank() == 0) reduce(hvd::view(x.data(), 60));
            else reduce(hvd::view(x.data(), hvd::shape(comm.rank(), 60 / comm.rank())));
        };
        if (comm.size() > 6) return;  // 60 is divisible by 1 to 6
        expect_mismatch(comm, "shape", value,
                        [&] { call([&](const auto& v) { comm.allreduce(v, hvd::sum); }); });
        expect_mismatch(comm, "shape", value,
                        [&] { call([&](const auto& v) { comm.broadcast(v); }); });
    });
}

TEST_CASE("ranks with another length of rows in an allgather") {
    on_every_transport_from(2, [](auto& comm) {
        const std::size_t columns = 17 + rank_of(comm);
        std::vector<float> x(2 * columns);
        const auto value = [](int rank) { return "[2, " + std::to_string(17 + rank) + "]"; };
        expect_mismatch(comm, "shape", value,
                        [&] { comm.allgather(hvd::view(x.data(), hvd::shape(2, columns))); });
    });
}

TEST_CASE("ranks with another operation") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10);
        const auto last = [&](const char* theirs, const char* others) {
            return [n = comm.size(), theirs, others](int rank) {
                return rank == n - 1 ? theirs : others;
            };
        };
        const bool mine = comm.rank() == comm.size() - 1;
        expect_mismatch(comm, "operation", last("max", "sum"), [&] {
            if (mine) comm.allreduce(x, hvd::max);
            else comm.allreduce(x, hvd::sum);
        });
        expect_mismatch(comm, "operation", last("custom", "average"), [&] {
            if (mine) comm.reduce_scatter(x, [](float a, float b) { return a + b; });
            else comm.reduce_scatter(x, hvd::average);
        });
        expect_mismatch(comm, "operation", last("min", "product"), [&] {
            if (mine) comm.reduce(x, hvd::min);
            else comm.reduce(x, hvd::product);
        });
    });
}

TEST_CASE("ranks with another rounding") {
    on_every_transport_from(2, [](auto& comm) {
        int x = 1;
        const auto value = [](int rank) { return rank == 1 ? "down" : "nearest"; };
        const hvd::rounding mine = comm.rank() == 1 ? hvd::rounding::down : hvd::rounding::nearest;
        expect_mismatch(comm, "rounding", value, [&] { comm.allreduce(x, hvd::average(mine)); });
    });
}

TEST_CASE("ranks with another root: each names itself") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10);
        const auto value = [](int rank) { return std::to_string(rank); };
        const hvd::root me{comm.rank()};
        expect_mismatch(comm, "root", value, [&] { comm.broadcast(x, me); });
        expect_mismatch(comm, "root", value, [&] { comm.reduce(x, hvd::sum, me); });
        expect_mismatch(comm, "root", value, [&] { comm.gather(x, me); });
        expect_mismatch(comm, "root", value, [&] { comm.scatter(x, me); });
        std::string object = "x";
        expect_mismatch(comm, "root", value, [&] { comm.broadcast_object(object, me); });
    });
}

TEST_CASE("ranks with other scales") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10);
        const double mine = comm.rank() == 0 ? 0.5 : 2;
        const auto value = [](int rank) { return rank == 0 ? "0.5" : "2"; };
        expect_mismatch(comm, "prescale", value,
                        [&] { comm.allreduce(x, hvd::sum, {.prescale = mine}); });
        expect_mismatch(comm, "postscale", value,
                        [&] { comm.allreduce(x, hvd::sum, {.postscale = mine}); });
        expect_mismatch(comm, "prescale", value,
                        [&] { comm.reduce_scatter(x, hvd::sum, {.prescale = mine}); });
        expect_mismatch(comm, "postscale", value,
                        [&] { comm.reduce(x, hvd::sum, hvd::root{0}, {.postscale = mine}); });
    });
}

TEST_CASE("ranks in another collective") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10);
        const bool odd = comm.rank() % 2 != 0;
        const auto value = [](const char* even_one, const char* odd_one) {
            return [=](int rank) { return rank % 2 != 0 ? odd_one : even_one; };
        };
        expect_mismatch(comm, "collective", value("allreduce", "broadcast"), [&] {
            if (odd) comm.broadcast(x);
            else comm.allreduce(x, hvd::sum);
        });
        expect_mismatch(comm, "collective", value("barrier", "allgather"), [&] {
            if (odd) comm.allgather(x);
            else comm.barrier();
        });
        expect_mismatch(comm, "collective", value("reduce_scatter 'a'", "gather 'b'"), [&] {
            if (odd) comm.gather(x, hvd::root{0}, {.name = "b"});
            else comm.reduce_scatter(x, hvd::sum, {.name = "a"});
        });
        expect_mismatch(comm, "collective", value("scatter", "alltoall"), [&] {
            std::vector<float> even(4 * size_of(comm));
            if (odd) comm.alltoall(even);
            else comm.scatter(even);
        });
        expect_mismatch(comm, "collective", value("allreduce", "fused allreduce"), [&] {
            if (odd) comm.allreduce(hvd::fuse(x), hvd::sum);
            else comm.allreduce(x, hvd::sum);
        });
    });
}

TEST_CASE("ranks with another order of the same calls") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> large(100000), small(3);
        std::vector<float>& first = comm.rank() == 0 ? large : small;
        const auto value = [](int rank) { return rank == 0 ? "[100000]" : "[3]"; };
        expect_mismatch(comm, "shape", value, [&] { comm.allreduce(first, hvd::sum); });
    });
}

TEST_CASE("other names are no disagreement: they are for people") {
    on_every_transport([](auto& comm) {
        int x = 1;
        comm.allreduce(x, hvd::sum, {.name = comm.rank() == 0 ? "a" : "b"});
        CHECK(x == comm.size());
    });
}

TEST_CASE("a disagreement in an asynchronous call is thrown when it is waited for") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10 + rank_of(comm)), good(4, 1);
        const auto value = [](int rank) { return "[" + std::to_string(10 + rank) + "]"; };
        expect_mismatch(comm, "shape", value, [&] {
            auto bad = comm.allreduce_async(x, hvd::sum);
            auto fine = comm.allreduce_async(good, hvd::sum);
            fine.wait();
            CHECK(good == std::vector<float>(4, float(comm.size())));
            bad.wait();
        });
    });
}

TEST_CASE("an error nobody looked at is thrown by the next call") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10 + rank_of(comm));
        int y = 0;
        const auto value = [](int rank) { return "[" + std::to_string(10 + rank) + "]"; };
        expect_mismatch(comm, "shape", value, [&] {
            {
                const auto never_waited_for = comm.allreduce_async(x, hvd::sum);
            }
            comm.allreduce(y, hvd::sum);
        });
    });
}

TEST_CASE("an error that one rank did not look at takes the place of its next call") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> a(5, 1), b(3, 1), x(10 + rank_of(comm));
        const auto expect_forgotten = [&](const auto& call) {
            {
                auto pending = comm.allreduce_async(x, hvd::sum);
                if (comm.rank() != 0) thrown<hvd::mismatch_error>([&] { pending.wait(); });
            }
            if (comm.rank() == 0) {
                thrown<hvd::mismatch_error>(call);
            } else {
                const auto e = thrown<hvd::peer_error>(call);
                if (e) CHECK(e->peers() == std::vector<int>{0});
                if (e) CHECK(contains(e->what(), "an earlier call of this rank failed: "));
                if (e) CHECK(contains(e->what(), "ranks disagree on shape"));
            }
            check_that_it_works(comm);
        };
        expect_forgotten([&] { comm.allreduce(a, hvd::sum); });
        expect_forgotten([&] { comm.allreduce(hvd::fuse(a, b), hvd::sum); });
        expect_forgotten([&] { comm.barrier_async().wait(); });
        expect_forgotten([&] { comm.allgather_async(a).wait(); });
        expect_forgotten([&] { comm.split(0); });
        expect_forgotten([&] { auto never_made = comm.plan_allreduce(a, hvd::sum); });
        auto plan = comm.plan_allreduce(hvd::fuse(a, b), hvd::sum);
        expect_forgotten([&] { plan.run(); });
        expect_forgotten([&] { plan.run_async().wait(); });
        CHECK(a == std::vector<float>(5, 1));
        plan.run();
        CHECK(b == std::vector<float>(3, float(comm.size())));
    });
}

TEST_CASE("ranks with another list of a subset") {
    on_every_transport_from(2, [](auto& comm) {
        const int other = comm.rank();
        try {
            comm.subset({other});
            FAIL_CHECK("threw nothing");
        } catch (const hvd::mismatch_error& e) {
            CHECK(e.table().size() == size_of(comm));
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("a negative timeout is refused on all ranks, with its value") {
    on_every_transport_from(2, [](auto& comm) {
        const int culprit = comm.size() - 1;
        const hvd::time_limit timeout = comm.rank() == culprit
                                            ? hvd::time_limit(std::chrono::nanoseconds(-2))
                                            : hvd::time_limit();
        std::vector<int> x(10, 1);
        const auto refused = [&](auto call) {
            expect_refusal(comm, culprit,
                           ".timeout is -2 ns, and must be more than 0, or hvd::forever", call);
        };
        refused([&] { comm.allreduce(x, hvd::sum, {.timeout = timeout}); });
        refused([&] { comm.broadcast(x, hvd::root{0}, {.timeout = timeout}); });
        refused([&] { (void)comm.allgather(x, {.timeout = timeout}); });
        refused([&] { comm.barrier({.timeout = timeout}); });
        refused([&] { comm.allreduce_async(x, hvd::sum, {.timeout = timeout}).wait(); });
        refused([&] { (void)comm.plan_allreduce(hvd::fuse(x), hvd::sum, {.timeout = timeout}); });
        CHECK(x == std::vector<int>(10, 1));
    });
}

TEST_CASE("a refusal by one rank reaches the others with its reason") {
    on_every_transport_from(2, [](auto& comm) {
        const int culprit = comm.size() - 1;
        const bool mine = comm.rank() == culprit;
        std::vector<int> x(10, 1), y(mine ? 9 : 10);
        expect_refusal(comm, culprit, "root 77",
                       [&] { comm.broadcast(x, hvd::root{mine ? 77 : 0}); });
        expect_refusal(comm, culprit, "9 elements", [&] { comm.allreduce(x, y, hvd::sum); });
        expect_refusal(comm, culprit, "overlap", [&] {
            comm.allreduce(hvd::view(x.data(), 5), hvd::view(x.data() + (mine ? 3 : 5), 5),
                           hvd::sum);
        });
        expect_refusal(comm, culprit, "room for", [&] {
            std::vector<int> room(10 * size_of(comm) - (mine ? 1 : 0));
            comm.allgather(x, hvd::into(room));
        });
        expect_refusal(comm, culprit, "room for", [&] {
            std::vector<int> room(part(10, comm.rank(), comm.size()).count + (mine ? 1 : 0));
            comm.scatter(x, hvd::into(room));
        });
        expect_refusal(comm, culprit, "room for", [&] {
            std::vector<int> room(part(10, comm.rank(), comm.size()).count + (mine ? 1 : 0));
            comm.reduce_scatter(x, hvd::sum, hvd::into(room));
        });
        expect_refusal(comm, culprit, "add up to", [&] {
            std::vector<std::size_t> counts(size_of(comm));
            counts.front() = mine ? 11 : 10;
            comm.alltoall(x, counts);
        });
        expect_refusal(comm, culprit, "null pointer", [&] {
            int* const data = mine ? nullptr : x.data();
            comm.broadcast(hvd::view(data, 10));
        });
        expect_refusal(comm, culprit, "room for", [&] {
            std::vector<int> room(comm.rank() == culprit ? 3 : 10 * size_of(comm));
            comm.gather(x, hvd::into(room), hvd::root{culprit});
        });
    });
}

TEST_CASE("all ranks that refuse are named, with the reason of the first") {
    on_every_transport_from(3, [](auto& comm) {
        int x = 0;
        const bool refuses = comm.rank() != 1;
        std::vector<int> refusers;
        for (int r = 0; r < comm.size(); ++r)
            if (r != 1) refusers.push_back(r);
        try {
            by_next_call(comm,
                         [&] { comm.broadcast(x, hvd::root{refuses ? -5 - comm.rank() : 0}); });
            FAIL_CHECK("threw nothing");
        } catch (const hvd::usage_error& e) {
            CHECK(refuses);
            CHECK(contains(e.what(), "root " + std::to_string(-5 - comm.rank())));
        } catch (const hvd::peer_error& e) {
            CHECK(!refuses);
            CHECK(e.peers() == refusers);
            CHECK(contains(e.what(), "rank 0 refused it"));
            CHECK(contains(e.what(), "root -5"));
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("ranks that differ in different ways all name the same one") {
    on_every_transport_from(3, [](auto& comm) {
        std::vector<int> x(10), longer(11);
        std::vector<float> other(10);
        for (const int odd : {1, 2}) {  // this rank has another type, and the other of the two a
                                        // longer tensor
            const auto call = [&] {
                if (comm.rank() == odd) comm.allreduce(other, hvd::sum);
                else if (comm.rank() == 3 - odd) comm.allreduce(longer, hvd::sum);
                else comm.allreduce(x, hvd::sum);
            };
            if (const auto e = thrown<hvd::mismatch_error>(call)) {
                CHECK(e->field() == "element type");
                CHECK(e->table()[std::size_t(odd)].second == "float32");
                CHECK(e->table()[std::size_t(3 - odd)].second == "int32");
            }
            check_that_it_works(comm);
        }
    });
}

TEST_CASE("ranks with another user's element type in a fused list") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<modular> x(3);
        std::vector<other_modular> y(3);
        std::vector<float> more(5);
        const auto call = [&] {
            if (comm.rank() == 0) comm.broadcast(hvd::fuse(x, more));
            else comm.broadcast(hvd::fuse(y, more));
        };
        if (const auto e = thrown<hvd::mismatch_error>(call)) CHECK(e->field() == "content");
        check_that_it_works(comm);
    });
}

TEST_CASE("the first exception of a callable is thrown, and nothing is reduced after it") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<int> x(std::size_t(1) << 20, 1);  // several chunks
        int calls = 0;
        const int size = comm.size();
        const auto failing = [&](int, int) -> int {
            throw std::runtime_error("failure " + std::to_string(++calls));
        };
        // On several nodes of several ranks it is called again for the chunks that follow.
        const bool called_once = comm.local_size() == size || comm.cross_size() == size;
        const auto expect_one = [&](const char* name, auto call) {
            CAPTURE(std::string(name));
            calls = 0;
            if (const auto e = thrown<std::runtime_error>(call))
                CHECK(std::string(e->what()) == "failure 1");
            if (called_once) CHECK(calls == 1);
            check_that_it_works(comm);
        };
        expect_one("scan", [&] { comm.scan(x, failing); });
        expect_one("allreduce", [&] { comm.allreduce(x, failing); });
        expect_one("reduce", [&] { comm.reduce(x, failing); });
        expect_one("reduce_scatter", [&] { comm.reduce_scatter(x, failing); });
    });
}

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan_value = std::nan("");

// Every rank throws the same about the input of rank `source`. Then calls work.
template <class Comm, class F>
void expect_not_finite(Comm& comm, int source, const std::string& tensor, std::size_t index,
                       double value, F call) {
    if (const auto e = thrown<hvd::not_finite_error>(call)) {
        INFO(std::string(e->what()));
        CHECK(e->rank() == comm.rank());
        CHECK(e->source() == source);
        CHECK(e->tensor() == tensor);
        CHECK(e->index() == index);
        CHECK(std::isnan(e->value()) == std::isnan(value));
        if (!std::isnan(value)) CHECK(e->value() == value);
        CHECK(contains(e->what(),
                       "the input of rank " + std::to_string(source) + " is not finite: "));
        CHECK(contains(e->what(), " at element " + std::to_string(index)));
    }
    check_that_it_works(comm);
}

template <class T, class Comm>
void reduce_with_bad_value(Comm& comm, std::size_t n, std::size_t at, int source, double value) {
    CAPTURE(n);
    CAPTURE(at);
    std::vector<T> x(n, T(1.0f));
    const auto ones = x;
    if (comm.rank() == source) x[at] = T(float(value));
    const auto before = x;
    const auto expect = [&](auto call) {
        expect_not_finite(comm, source, "", at, value, call);
        const bool is_as_before = std::memcmp(x.data(), before.data(), n * sizeof(T)) == 0;
        CHECK(is_as_before);
    };
    expect([&] { comm.allreduce(x, hvd::sum); });
    expect([&] { comm.allreduce(x, hvd::max); });
    expect([&] { comm.allreduce_async(x, hvd::average).wait(); });
    expect([&] { comm.reduce(x, hvd::sum, hvd::root{comm.size() - 1}); });
    expect([&] { comm.reduce_scatter(x, hvd::sum); });
    expect([&] { comm.reduce_scatter_async(x, hvd::sum).wait(); });
    auto out = ones;
    expect([&] { comm.allreduce(std::as_const(x), out, hvd::sum); });
    CHECK(std::memcmp(out.data(), ones.data(), n * sizeof(T)) == 0);
}

constexpr hvd::communicator_options checking = {.check_finite = true};

}  // namespace

TEST_CASE("every rank is told who brought the first bad value, and where") {
    on_every_transport(
        [](auto& comm) {
            const int last = comm.size() - 1;
            for (const std::size_t at : {0, 4, 6}) {
                reduce_with_bad_value<float>(comm, 7, at, 0, nan_value);
                reduce_with_bad_value<double>(comm, 7, at, last, infinity);
            }
            reduce_with_bad_value<hvd::float16>(comm, 5, 3, last, -infinity);
            reduce_with_bad_value<hvd::bfloat16>(comm, 5000, 4999, last / 2, nan_value);
            constexpr std::size_t large = 300000;  // several chunks
            for (const std::size_t at : {std::size_t(65536), large - 1})
                reduce_with_bad_value<float>(comm, large, at, last, -infinity);
        },
        checking);
}

TEST_CASE("of several ranks with bad values all are told of the lowest, and of its first") {
    on_every_transport_from(
        2,
        [](auto& comm) {
            for (const std::size_t n : {std::size_t(64), std::size_t(100000)})
                for (int time = 0; time < 3; ++time) {
                    std::vector<double> x(n, 1);
                    if (comm.rank() > 0) {
                        x[n - 1 - rank_of(comm)] = infinity;
                        x[n - 1] = nan_value;
                    }
                    expect_not_finite(comm, 1, "", n - 2, infinity,
                                      [&] { comm.allreduce(x, hvd::sum, {.name = "loss"}); });
                }
            std::vector<float> x(10, float(nan_value));
            const auto without_room = [&] {
                std::vector<float> out(comm.rank() == 1 ? 9 : 10);
                comm.allreduce(std::as_const(x), out, hvd::sum);
            };
            expect_refusal(comm, 1, "output has 9 elements", without_room);
        },
        checking);
}

TEST_CASE("bad values of lists, of tensors with gaps and of plans have the user's indexes") {
    on_every_transport(
        [](auto& comm) {
            const int last = comm.size() - 1;
            const bool mine = comm.rank() == last;
            std::vector<int> ints(5, -1);  // each bit of them
            std::vector<float> a(1000, 1), b(3, 1), wide(60, 1);
            std::vector<double> c(70000, 1);
            std::vector<std::complex<float>> z(4, {1, 1});
            const auto gaps = hvd::view(wide.data(), hvd::shape(5, 3), hvd::strides(12, 2));
            const auto expect = [&](const char* tensor, std::size_t at, auto& x, std::size_t place,
                                    auto value, auto call) {
                const auto before = x[place];
                if (mine) x[place] = value;
                expect_not_finite(comm, last, tensor, at, nan_value, call);
                x[place] = before;
            };
            const auto nan = float(nan_value);
            auto list = [&] { return hvd::fuse(ints, a, c, b, z); };
            const auto in_each_place = [&](auto call) {
                expect("tensor 1", 999, a, 999, nan, call);
                expect("tensor 2", 69999, c, 69999, nan_value, call);
                expect("tensor 3", 0, b, 0, nan, call);
                expect("tensor 4", 2, z, 2, std::complex<float>(0, nan), call);
            };
            in_each_place([&] { comm.allreduce(list(), hvd::sum); });
            in_each_place([&] { comm.allreduce_async(list(), hvd::sum).wait(); });
            in_each_place([&] { comm.reduce(list(), hvd::sum); });
            in_each_place([&] { comm.reduce_scatter(list(), hvd::sum); });
            expect("", 4, wide, 14, nan, [&] { comm.allreduce(gaps, hvd::sum); });
            expect("", 4, wide, 14, nan, [&] { comm.reduce(gaps, hvd::sum); });
            expect("", 4, wide, 14, nan, [&] { comm.reduce_scatter(gaps, hvd::sum); });
            expect("tensor 1", 4, wide, 14, nan,
                   [&] { comm.allreduce(hvd::fuse(b, gaps), hvd::sum); });
            wide[1] = nan;  // in a gap
            comm.allreduce(gaps, hvd::max);

            auto plan = comm.plan_allreduce(hvd::fuse(b, a), hvd::average, {.name = "step"});
            for (int run = 0; run < 2; ++run) {
                expect("tensor 1", 17, a, 17, nan, [&] { plan.run(); });
                expect("tensor 0", 2, b, 2, nan, [&] { plan.run_async().wait(); });
                plan.run();
                CHECK(a[17] == 1);
            }
            const auto codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>);
            auto coded = comm.plan_allreduce(hvd::fuse(b, a), hvd::average, {}, codec);
            expect("tensor 1", 5, a, 5, nan, [&] { coded.run(); });
            coded.run();
            CHECK(a[5] == 1);
        },
        checking);
}

TEST_CASE("integers, other collectives and communicators without the option pass everything on") {
    const auto reduce_everything = [](auto& comm) {
        std::vector<std::uint32_t> bits(1000, 0xffffffffu);
        comm.allreduce(bits, hvd::bit_and);
        CHECK(bits[999] == 0xffffffffu);
        std::vector<float> x(10, float(infinity));
        comm.broadcast(x);
        CHECK(comm.allgather(x).values.back() == float(infinity));
        CHECK(comm.allreduce_with_rank(infinity, hvd::max).rank == 0);
        comm.scan(x, hvd::max);
        CHECK(x[9] == float(infinity));
    };
    on_every_transport(reduce_everything, checking);
    on_every_transport([&](auto& comm) {
        reduce_everything(comm);
        std::vector<float> x(10, float(infinity));
        comm.allreduce(x, hvd::sum);
        CHECK(x[9] == float(infinity));
    });
}

}  // namespace disagreement_tests
