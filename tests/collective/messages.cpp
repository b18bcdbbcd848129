// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <complex>
#include <numeric>
#include <string>
#include <vector>

#include "support.hpp"

namespace messages_tests {

// Tensors that one rank sends and another one receives, between the calls of all.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

using tensor = std::vector<int>;

// Elements that no other rank or message has.
tensor numbers(std::size_t n, int from, int to, int message = 0) {
    tensor x(n);
    std::iota(x.begin(), x.end(), 1000000 * message + 10000 * from + 100 * to);
    return x;
}

// Each rank sends to the next one, which adds 1 to what it sends on: from rank 0 back to rank 0.
template <class Comm, class Send, class Receive>
void pass_around(Comm& comm, std::size_t n, Send send, Receive receive) {
    const int me = comm.rank(), last = comm.size() - 1;
    const hvd::peer next{me == last ? 0 : me + 1}, before{me == 0 ? last : me - 1};
    tensor x(n, 7);
    if (me > 0) receive(x, before);
    for (int& v : x) ++v;
    send(x, next);
    if (me == 0) receive(x, before);
    CHECK(x == tensor(n, 7 + (me == 0 ? comm.size() : me + 1)));
}

// The two ranks get an exception of the type E, with `words`. The others take no part. Then all
// ranks go on.
template <class E, class Comm, class F>
void expect_on_both(Comm& comm, const std::string& words, F call) {
    if (comm.rank() < 2)
        if (const auto e = thrown<E>(call)) CHECK(contains(e->what(), words));
    check_that_it_works(comm);
}

}  // namespace

TEST_CASE("tensors of any size go around the ranks") {
    on_every_transport_from(2, [](auto& comm) {
        for (const std::size_t n : {0, 1, 5, 1000, 8192, 100003, 300000})
            pass_around(
                comm, n, [&](const tensor& x, hvd::peer to) { comm.send(x, to); },
                [&](tensor& x, hvd::peer from) { comm.recv(hvd::into(x), from); });
    });
}

TEST_CASE("every rank sends to every other one, among collectives") {
    on_every_transport_from(2, [](auto& comm) {
        for (int from = 0; from < comm.size(); ++from)
            for (int to = 0; to < comm.size(); ++to) {
                if (from == to) continue;
                for (int i = 0; i < 3; ++i) {
                    const tensor sent = numbers(std::size_t(100 + 20000 * i), from, to, i);
                    tensor got(sent.size());
                    if (comm.rank() == from) comm.send(sent, hvd::peer{to});
                    if (comm.rank() != to) continue;
                    comm.recv(hvd::into(got), hvd::peer{from});
                    CHECK(got == sent);
                }
                check_that_it_works(comm);
            }
    });
}

TEST_CASE("asynchronous messages run in the order in which they were made") {
    on_every_transport_from(2, [](auto& comm) {
        const tensor first = numbers(50000, 0, 1), second = numbers(10, 0, 1, 1);
        tensor a(first.size()), b(second.size()), sum(100, 1);
        std::vector<hvd::request> pending;
        if (comm.rank() == 0) pending.push_back(comm.send_async(first, hvd::peer{1}));
        if (comm.rank() == 1) pending.push_back(comm.recv_async(hvd::into(a), hvd::peer{0}));
        pending.push_back(comm.allreduce_async(sum, hvd::sum));
        if (comm.rank() == 0) pending.push_back(comm.send_async(second, hvd::peer{1}));
        if (comm.rank() == 1) pending.push_back(comm.recv_async(hvd::into(b), hvd::peer{0}));
        hvd::wait_all(pending);
        CHECK(sum == tensor(100, comm.size()));
        if (comm.rank() == 1) {
            CHECK(a == first);
            CHECK(b == second);
        }
    });
}

TEST_CASE("a view with gaps is sent packed, and elements of any type travel") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<double> matrix(40), column(10, -1);
        std::iota(matrix.begin(), matrix.end(), 0);
        std::vector<std::complex<float>> z(3, {float(comm.rank()), 5});
        if (comm.rank() == 0) {
            comm.send(hvd::view(matrix.data() + 1, hvd::shape(10), hvd::strides(4)), hvd::peer{1});
            comm.send(z, hvd::peer{1});
        } else if (comm.rank() == 1) {
            comm.recv(hvd::into(column), hvd::peer{0});
            comm.recv(hvd::into(z), hvd::peer{0});
            for (std::size_t i = 0; i < column.size(); ++i) CHECK(column[i] == double(4 * i + 1));
            CHECK(z == std::vector<std::complex<float>>(3, {0, 5}));
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("the two ranks of a message that does not fit are told, and all go on") {
    on_every_transport_from(2, [](auto& comm) {
        const bool sends = comm.rank() == 0;
        tensor ints(10);
        std::vector<float> floats(10);
        expect_on_both<hvd::mismatch_error>(comm, "element type: rank 0: int32, rank 1: float32",
                                            [&] {
                                                if (sends) comm.send(ints, hvd::peer{1});
                                                else comm.recv(hvd::into(floats), hvd::peer{0});
                                            });
        tensor other(std::size_t(sends ? 10 : 11));
        expect_on_both<hvd::mismatch_error>(comm, "shape: rank 0: [10], rank 1: [11]", [&] {
            if (sends) comm.send(other, hvd::peer{1});
            else comm.recv(hvd::into(other), hvd::peer{0});
        });
        expect_on_both<hvd::mismatch_error>(comm, "name: rank 0: 'weights', rank 1: ''", [&] {
            if (sends) comm.send(ints, hvd::peer{1}, {.name = "weights"});
            else comm.recv(hvd::into(ints), hvd::peer{0});
        });
        expect_on_both<hvd::mismatch_error>(
            comm, "collective: rank 0: send to rank 1, rank 1: send to rank 0",
            [&] { comm.send(ints, hvd::peer{sends ? 1 : 0}); });
        expect_on_both<hvd::mismatch_error>(
            comm, "collective: rank 0: recv from rank 1, rank 1: recv from rank 0",
            [&] { comm.recv(hvd::into(ints), hvd::peer{sends ? 1 : 0}); });
    });
}

TEST_CASE("a message that one rank refuses is refused on both") {
    on_every_transport_from(2, [](auto& comm) {
        const tensor ints(10);
        tensor to(10);
        if (comm.rank() == 0) {
            const auto e =
                thrown<hvd::usage_error>([&] { comm.send(ints, hvd::peer{1}, {.timeout = -1s}); });
            if (e) CHECK(contains(e->what(), "timeout"));
        } else if (comm.rank() == 1) {
            const auto e = thrown<hvd::peer_error>([&] { comm.recv(hvd::into(to), hvd::peer{0}); });
            if (e) {
                CHECK(contains(e->what(), "recv from rank 0 on rank 1: rank 0 refused it"));
                CHECK(e->peers() == std::vector{0});
            }
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("a peer that is no other rank is refused at once, on this rank alone") {
    on_every_transport([](auto& comm) {
        tensor x(3);
        const int size = comm.size();
        for (const int wrong : {-1, size, comm.rank()}) {
            thrown<hvd::usage_error>([&] { comm.send(x, hvd::peer{wrong}); });
            thrown<hvd::usage_error>([&] { comm.recv(hvd::into(x), hvd::peer{wrong}); });
            thrown<hvd::usage_error>([&] { comm.send_async(x, hvd::peer{wrong}); });
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("a message whose other rank does not come in time names it, and so do all ranks later") {
    on_every_transport_from(2, [](auto& comm) {
        auto gate = comm.duplicate();
        auto doomed = comm.duplicate();
        tensor x(10);
        if (comm.rank() == 0) {
            const auto e = thrown<hvd::timeout_error>(
                [&] { doomed.recv(hvd::into(x), hvd::peer{1}, {.name = "x", .timeout = 50ms}); });
            if (e) {
                CHECK(contains(e->what(), "recv 'x' from rank 1 on rank 0: rank 1 did not come"));
                CHECK(e->peers() == std::vector{1});
            }
        }
        gate.barrier();
        // The next call sees the message, or that rank 0 has left.
        if (comm.rank() != 0) CHECK_THROWS_AS(doomed.barrier({.timeout = 300ms}), hvd::error);
        CHECK(doomed.is_given_up());
        check_that_it_works(comm);
    });
}

#if !defined(HVD_TEST_NEIGHBOURS)  // whose ranks tell nobody that they leave
TEST_CASE("a message whose other rank leaves names it") {
    on_every_transport_from(2, [](auto& comm) {
        auto doomed = comm.duplicate();
        tensor x(10);
        if (comm.rank() == 1) doomed.abort("no more data");
        if (comm.rank() == 0) {
            const auto e = thrown<hvd::peer_error>([&] { doomed.send(x, hvd::peer{1}); });
            if (e) {
                CHECK(contains(e->what(), "no more data"));
                CHECK(e->peers() == std::vector{1});
            }
        }
        check_that_it_works(comm);
    });
}
#endif

TEST_CASE("ranks that have left in order do not keep others from their messages") {
    on_every_transport_from(3, [](auto& comm) {
        auto left = comm.duplicate();
        if (comm.rank() >= 2) left = {};
        comm.barrier();
        const tensor x = numbers(100000, 0, 1);
        tensor got(x.size());
        if (comm.rank() == 0) left.send(x, hvd::peer{1});
        if (comm.rank() == 1) {
            left.recv(hvd::into(got), hvd::peer{0});
            CHECK(got == x);
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("a message that meets a collective ends on all ranks") {
    on_every_transport_from(2, [](auto& comm) {
        auto doomed = comm.duplicate();
        tensor x(10);
        const auto call = [&] {
            if (comm.rank() == 0) doomed.send(x, hvd::peer{1}, {.timeout = 300ms});
            else doomed.allreduce(x, hvd::sum, {.timeout = 300ms});
            // A rank that has seen the difference, and not the others' failure, sees it here.
            doomed.barrier({.timeout = 300ms});
        };
        if (comm.rank() > 1) thrown<hvd::peer_error>(call);
        else CHECK_THROWS_AS(call(), hvd::error);
        check_that_it_works(comm);
    });
}

}  // namespace messages_tests
