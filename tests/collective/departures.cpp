// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>

#include "disagreement.hpp"

namespace departures_tests {

using namespace hvd_test;
using namespace std::chrono_literals;

// Ranks leave small calls with a root when they need nothing more from others. A failure is then
// told to them in a later call.

template <class Comm>
bool is_one_node(const Comm& comm) {
    return comm.local_size() == comm.size();
}

template <class Comm>
Comm second_of(Comm& comm) {
    std::vector<int> all(size_of(comm));
    std::iota(all.begin(), all.end(), 0);
    return comm.subset(all);
}

// The four calls with ten elements of each rank; that of `odd` has another type.
template <class Comm>
void make_call(Comm& comm, int kind, int root, bool is_odd, const hvd::options& o = {}) {
    const auto call = [&](auto element) {
        std::vector<decltype(element)> x(10, element), all(10 * size_of(comm));
        const hvd::root r{root};
        const hvd::reduce_options reducing{.timeout = o.timeout, .confirm = o.confirm};
        if (kind == 0) comm.broadcast(x, r, o);
        else if (kind == 1) comm.reduce(x, hvd::sum, r, reducing);
        else if (kind == 2) comm.gather(x, r, o);
        else comm.scatter(all, r, o);
    };
    if (is_odd) call(1.0f);
    else call(1);
}

// The calls that may follow one that has failed.
constexpr int follow_ups = 7;
template <class Comm>
void follow(Comm& comm, int what, int root) {
    int x = comm.rank() == root ? 7 : 1;
    switch (what) {
        case 0: comm.barrier(); break;
        case 1: comm.allreduce(x, hvd::sum); break;
        case 2:
            comm.broadcast(x, hvd::root{root});
            CHECK(x == 7);
            break;
        case 3:
            comm.reduce(x, hvd::sum, hvd::root{root});
            if (comm.rank() == root) CHECK(x == 6 + comm.size());
            break;
        case 4: {
            auto plan = comm.plan_allreduce(hvd::fuse(x), hvd::sum);
            plan.run();
            break;
        }
        case 5: comm.split(0); break;
        default: comm.allreduce_async(x, hvd::sum).wait(); break;
    }
}

// Each rank has thrown mismatch_error about `field` once, and hears otherwise that others are told.
struct heard {
    int differences = 0, of_others = 0;
    std::string field = "element type";

    template <class F>
    void in(F f) {
        try {
            f();
        } catch (const hvd::mismatch_error& e) {
            ++differences;
            CHECK(e.field() == field);
        } catch (const hvd::peer_error& e) {
            ++of_others;
            INFO(std::string(e.what()));
            CHECK(contains(e.what(), "had left an earlier call"));
        }
    }
};

TEST_CASE("every rank is told of a disagreement, whatever follows") {
    on_every_transport_from(2, [](auto& comm) {
        if (comm.size() > 4) return;
        for (int kind = 0; kind < 4; ++kind)
            for (int root = 0; root < comm.size(); ++root)
                for (int odd = 0; odd < comm.size(); ++odd)
                    for (int what = 0; what < follow_ups; ++what) {
                        CAPTURE(kind);
                        CAPTURE(root);
                        CAPTURE(odd);
                        CAPTURE(what);
                        heard failure;
                        failure.in([&] { make_call(comm, kind, root, comm.rank() == odd); });
                        failure.in([&] { follow(comm, what, root); });
                        failure.in([&] { comm.barrier(); });
                        CHECK(failure.differences == 1);
                        CHECK(failure.of_others <= 1);
                        check_that_it_works(comm);
                    }
    });
}

TEST_CASE("ranks that all leave for the sake of themselves are told") {
    on_every_transport_from(2, [](auto& comm) {
        for (int what = 0; what < follow_ups; ++what) {
            CAPTURE(what);
            heard failure{.field = "root"};
            int x = comm.rank();
            failure.in([&] { comm.broadcast(x, hvd::root{comm.rank()}); });
            failure.in([&] { follow(comm, what, comm.size() - 1); });
            failure.in([&] { comm.barrier(); });
            CHECK(failure.differences + failure.of_others >= 1);
            CHECK(failure.differences == 1);
            check_that_it_works(comm);
        }
    });
}

TEST_CASE("ranks that disagree call after call hear it before they are far ahead") {
    on_every_transport_from(2, [](auto& comm) {
        heard failure{.field = "root"};
        int x = 0, calls = 0;
        for (; calls < 100 && failure.differences + failure.of_others == 0; ++calls)
            failure.in([&] { comm.broadcast(x, hvd::root{comm.rank()}); });
        CHECK(calls <= int(hvd::detail::tuning::most_ahead) + 1);
    });
}

TEST_CASE("one rank broadcasts while another one gives to a reduce of the same root") {
    on_every_transport_from(2, [](auto& comm) {
        heard failure{.field = "collective"};
        int x = 1;
        failure.in([&] {
            if (comm.rank() == 0) comm.broadcast(x);
            else comm.reduce(x, hvd::sum);
        });
        failure.in([&] { comm.barrier(); });
        CHECK(failure.differences == 1);
        check_that_it_works(comm);
    });
}

TEST_CASE("a rank that fails alone is named") {
    on_every_transport_from(2, [](auto& comm) {
        const int last = comm.size() - 1;
        const std::vector<int> all(2 * size_of(comm));
        for (int time = 0; time < 3; ++time)
            expect_refusal(comm, last, "room for 1 elements", [&] {
                std::vector<int> part(comm.rank() == last ? 1 : 2);
                comm.scatter(all, hvd::into(part), hvd::root{0}, {.name = "parts"});
            });
    });
}

TEST_CASE("a root needs no other rank to come, unless the call is confirmed") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        for (int root = 0; root < comm.size(); ++root) {
            int x = comm.rank() == root ? 5 : 0;
            if (comm.rank() != root) other.barrier();
            comm.broadcast(x, hvd::root{root}, {.timeout = 20s});
            std::vector<int> all(size_of(comm), 6);
            CHECK(comm.scatter(all, hvd::root{root}, {.timeout = 20s}).front() == 6);
            if (comm.rank() == root) other.barrier();
            CHECK(x == 5);
        }
        for (int root = 0; root < comm.size(); ++root) {
            int x = 1;
            if (comm.rank() == root) other.barrier();
            comm.reduce(x, hvd::sum, hvd::root{root}, {.timeout = 20s});
            const auto all = comm.gather(comm.rank(), hvd::root{root}, {.timeout = 20s});
            if (comm.rank() != root) other.barrier();
            if (comm.rank() == root) CHECK(x == comm.size());
            if (comm.rank() == root) CHECK(all.values.back() == comm.size() - 1);
        }
        int x = 0;
        if (comm.rank() == 0) {
            const auto e = thrown<hvd::timeout_error>(
                [&] { comm.broadcast(x, hvd::root{0}, {.timeout = 20ms, .confirm = true}); });
            if (e) CHECK(e->peers().size() == size_of(comm) - 1);
        }
        other.barrier();
    });
}

TEST_CASE("a root that is far ahead waits, and names who does not come") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        const int late = comm.size() - 1;
        int calls = 0;
        if (comm.rank() != late) {
            const auto e = thrown<hvd::timeout_error>([&] {
                for (; calls < 100; ++calls) {
                    int x = calls;
                    comm.broadcast(x, hvd::root{0}, {.timeout = 50ms});
                    CHECK(x == calls);
                }
            });
            if (e && comm.rank() == 0) CHECK(e->peers() == std::vector<int>{late});
            CHECK(calls > 0);
            CHECK(calls <= int(hvd::detail::tuning::most_ahead));
        }
        other.barrier();
    });
}

TEST_CASE("a rank that has gone is named") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm), last = second_of(comm);
        const int gone = comm.size() - 1;
        if (comm.rank() == gone) other = {};
        last.barrier();
        int x = 0;
        if (comm.rank() != gone) {
            const auto e = thrown<hvd::peer_error>([&] {
                for (int call = 0; call < 100; ++call) other.broadcast(x);
            });
            if (e) INFO(std::string(e->what()));
            if (e) CHECK(e->peers() == std::vector<int>{gone});
        }
        last.barrier();
    });
}

TEST_CASE("a failure that is told at the end of a communicator goes to the sink") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        const int odd = comm.size() - 1;
        std::vector<int> x(comm.rank() == odd ? 3 : 2);
        if (comm.rank() == odd)
            thrown<hvd::mismatch_error>(
                [&] { other.broadcast(x, hvd::root{0}, {.name = "last"}); });
        else other.broadcast(x, hvd::root{0}, {.name = "last"});
        comm.barrier();
        if (comm.rank() == 0) {
            static std::string said;
            said.clear();
            hvd::set_message_sink([](std::string_view line) { said += line; });
            other = {};
            hvd::set_message_sink(nullptr);
            CHECK(contains(said, "broadcast 'last'"));
            CHECK(contains(said, "ranks disagree on shape"));
        }
        comm.barrier();
    });
}

TEST_CASE("with .confirm all ranks are told at once") {
    const auto at_once = [](auto& comm, const hvd::options& o) {
        for (int kind = 0; kind < 4; ++kind)
            for (int root = 0; root < comm.size(); ++root) {
                heard failure;
                failure.in([&] { make_call(comm, kind, root, comm.rank() == 1, o); });
                CHECK(failure.differences == 1);
                check_that_it_works(comm);
            }
    };
    on_every_transport_from(2, [&](auto& comm) { at_once(comm, {.confirm = true}); });
    on_every_transport_from(2, [&](auto& comm) { at_once(comm, {}); }, {.confirm = true});
}

TEST_CASE("one rank may confirm what the others leave") {
    on_every_transport_from(2, [](auto& comm) {
        for (int time = 0; time < 100; ++time)
            for (int kind = 0; kind < 4; ++kind)
                make_call(comm, kind, time % comm.size(), false,
                          {.confirm = comm.rank() == time / 3 % comm.size()});
        check_that_it_works(comm);
    });
}

TEST_CASE("a reduce has the same bits as one that is confirmed") {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : {std::size_t(1), std::size_t(9), std::size_t(700)}) {
            std::vector<float> x(n), y;
            for (std::size_t i = 0; i < n; ++i)
                x[i] = 1.0f / float(1 + 3 * i + 7 * rank_of(comm)) * float(i % 2 == 0 ? 1 : 1e7);
            y = x;
            const hvd::root last{comm.size() - 1};
            comm.reduce(x, hvd::average, last);
            comm.reduce(y, hvd::average, last, {.confirm = true});
            CHECK(std::memcmp(x.data(), y.data(), n * sizeof(float)) == 0);
        }
    });
}

TEST_CASE("a gather of small tensors that ranks leave, and large ones") {
    on_every_transport([](auto& comm) {
        for (int time = 0; time < 12; ++time) {
            const int root = time % comm.size();
            const auto size = [&](int rank) {
                const std::size_t sizes[] = {1, 40000, 0, 300, 3000};
                return sizes[std::size_t(rank + time) % 5];
            };
            const std::vector<int> mine(size(comm.rank()), comm.rank() + time);
            const auto all = comm.gather(mine, hvd::root{root});
            if (comm.rank() != root) continue;
            std::vector<int> expected;
            for (int p = 0; p < comm.size(); ++p)
                expected.insert(expected.end(), size(p), p + time);
            CHECK(all.values == expected);
        }
        check_that_it_works(comm);
    });
}

}  // namespace departures_tests
