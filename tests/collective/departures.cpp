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

// An object that its rank may fail to write.
struct picky {
    bool is_bad = false;
};

}  // namespace departures_tests

template <>
struct hvd::serializer<departures_tests::picky> {
    static void write(std::vector<std::byte>& bytes, const departures_tests::picky& p) {
        if (p.is_bad) throw std::runtime_error("an object that can't be written");
        hvd::serializer<bool>::write(bytes, p.is_bad);
    }
    static departures_tests::picky read(std::span<const std::byte>& bytes) {
        return {hvd::serializer<bool>::read(bytes)};
    }
};

namespace departures_tests {

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
    bool ends = false;  // a rank ends its communicator when it has heard

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
            const bool has_ended = ends && contains(e.what(), "its communicator was destroyed");
            CHECK((has_ended || contains(e.what(), "had left an earlier call")));
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

// The root by which a rank needs nothing from others, where ranks disagree.
template <class Comm>
int root_to_leave(const Comm& comm, int kind) {
    return kind == 0 || kind == 3 ? comm.rank() : comm.size() - 1 - comm.rank();
}

TEST_CASE("two disagreements do not cancel each other out") {
    on_every_transport_from(2, [](auto& comm) {
        for (int first = 0; first < 4; ++first)
            for (int second = 0; second < 4; ++second)
                for (const std::size_t bytes : {0, 34, 3000, 100000}) {
                    CAPTURE(first);
                    CAPTURE(second);
                    CAPTURE(bytes);
                    heard failure{.field = "root"};
                    const int root = root_to_leave(comm, first);
                    failure.in([&] { make_call(comm, first, root, false); });
                    failure.in([&] {
                        const hvd::root other{comm.size() - 1 - root};
                        std::vector<unsigned char> x(bytes, 1), all(bytes * size_of(comm), 1);
                        if (second == 0) comm.broadcast(x, other);
                        else if (second == 1) comm.reduce(x, hvd::max, other);
                        else if (second == 2) comm.gather(x, other);
                        else comm.scatter(all, other);
                    });
                    failure.in([&] { comm.barrier(); });
                    failure.in([&] { comm.barrier(); });
                    CHECK(failure.differences >= 1);
                    check_that_it_works(comm);
                }
    });
}

TEST_CASE("a rank that refuses its next call by itself is told") {
    on_every_transport_from(2, [](auto& comm) {
        for (int what = 0; what < 3; ++what) {
            CAPTURE(what);
            heard failure;
            failure.in([&] { make_call(comm, 0, 0, comm.rank() == 1); });
            const bool is_told = failure.differences == 0;
            std::string text;
            try {
                const picky object{comm.rank() == 0};
                if (what == 0) (void)comm.gather_object(object, hvd::root{1});
                else if (what == 1) (void)comm.allgather_object(object);
                else {
                    int x = 1;
                    comm.allreduce(x, [&](int, int) -> int { throw std::runtime_error("mine"); });
                }
            } catch (const std::exception& e) {
                text = e.what();
            }
            if (is_told) CHECK(contains(text, "ranks disagree on element type"));
            if (is_told && comm.rank() == 0 && what < 2) CHECK(contains(text, "can't be written"));
            CHECK(!text.empty());
            check_that_it_works(comm);
        }
    });
}

TEST_CASE("a right call that ranks may have left does not fail for an earlier one") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        int x = comm.rank();
        comm.broadcast(x, hvd::root{comm.rank()});
        const auto all = comm.gather(comm.rank(), hvd::root{0});
        if (comm.rank() == 0) CHECK(all.values.back() == comm.size() - 1);
        heard failure{.field = "root"};
        failure.in([&] { comm.barrier(); });
        CHECK(failure.differences == 1);
        check_that_it_works(comm);
    });
}

// The text that hvd says while f runs on rank 0. The others do nothing.
template <class Comm, class F>
std::string said_on_first(Comm& comm, F f) {
    static std::string said;
    comm.barrier();
    if (comm.rank() == 0) {
        said.clear();
        hvd::set_message_sink([](std::string_view line) { said += line; });
        f();
        hvd::set_message_sink(nullptr);
    }
    comm.barrier();
    return comm.rank() == 0 ? said : std::string();
}

TEST_CASE("all ranks that are far ahead are told in one call, and once") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm), order = second_of(comm);
        const int late = comm.size() - 1, ahead = int(hvd::detail::tuning::most_ahead) - 2;
        int failed_in = -1, failures = 0;
        const auto call = [&](int i) {
            try {
                int x = comm.rank() == 0 ? i : -1;
                other.broadcast(x, hvd::root{0});
                CHECK(x == i);
            } catch (const hvd::error&) {
                failed_in = i;
                ++failures;
            }
        };
        if (comm.rank() == late) order.barrier();
        std::vector<int> x(comm.rank() == late ? 3 : 2);
        if (comm.rank() == late)
            thrown<hvd::mismatch_error>([&] { other.broadcast(x, hvd::root{0}); });
        else other.broadcast(x, hvd::root{0});
        for (int i = 0; i < ahead; ++i) call(i);
        if (comm.rank() != late) order.barrier();
        for (int i = ahead; i < 3 * ahead; ++i) call(i);
        CHECK(failures == 1);
        for (const int theirs : comm.allgather(failed_in).values) CHECK(theirs == failed_in);
        CHECK(said_on_first(comm, [&] { other = {}; }).empty());
    });
}

TEST_CASE("ranks that all have left for the sake of themselves are told at the end") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        int x = comm.rank();
        other.broadcast(x, hvd::root{comm.rank()}, {.name = "last"});
        const std::string said = said_on_first(comm, [&] { other = {}; });
        if (comm.rank() == 0) CHECK(contains(said, "broadcast 'last'"));
        if (comm.rank() == 0) CHECK(contains(said, "ranks disagree on root"));
    });
}

TEST_CASE("a rank that failed alone is named at the end") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        const std::vector<int> all(2 * size_of(comm));
        std::vector<int> part(comm.rank() == 1 ? 1 : 2);
        const auto call = [&] {
            other.scatter(all, hvd::into(part), hvd::root{0}, {.name = "parts"});
        };
        if (comm.rank() == 1) thrown<hvd::usage_error>(call);
        else call();
        const std::string said = said_on_first(comm, [&] { other = {}; });
        if (comm.rank() == 0) CHECK(contains(said, "scatter 'parts' on rank 0: rank 1"));
        if (comm.rank() == 0) CHECK(contains(said, "room for 1 elements"));
    });
}

TEST_CASE("a rank that has thrown a failure is not told again at the end") {
    on_every_transport_from(2, [](auto& comm) {
        if (!is_one_node(comm)) return;
        auto other = second_of(comm);
        std::vector<int> x(comm.rank() == 0 ? 3 : 2);
        const hvd::root last{comm.size() - 1};
        if (comm.rank() == 0) thrown<hvd::mismatch_error>([&] { other.broadcast(x, last); });
        else other.broadcast(x, last);
        CHECK(said_on_first(comm, [&] { other = {}; }).empty());
    });
}

TEST_CASE("ranks that disagree call after call hear it before they are far ahead") {
    on_every_transport_from(2, [](auto& comm) {
        heard failure{.field = "root", .ends = true};
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
