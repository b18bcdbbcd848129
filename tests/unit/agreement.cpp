// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hvd/protocol/received_headers.hpp>
#include <hvd/transport/transport.hpp>

namespace agreement_tests {

// Ranks agree over a channel of plain memory: there is no communicator.

namespace {

using namespace hvd::detail;
using header_change = std::function<void(call_header&)>;

// The headers that all ranks show in one exchange after another.
struct board {
    explicit board(int ranks) : headers(std::size_t(ranks)), waiting(ranks) {}

    void meet() {
        const int turn = __atomic_load_n(&turns, __ATOMIC_SEQ_CST);
        if (__atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST) == 0) {
            __atomic_store_n(&waiting, int(headers.size()), __ATOMIC_SEQ_CST);
            __atomic_add_fetch(&turns, 1, __ATOMIC_SEQ_CST);
        }
        while (__atomic_load_n(&turns, __ATOMIC_SEQ_CST) == turn) std::this_thread::yield();
    }

    std::vector<call_header> headers;
    int waiting, turns = 0, exchanges = 0;
};

class memory_channel {
public:
    memory_channel(board& shared, int rank) : shared_(shared), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return int(shared_.headers.size()); }

    table<call_header> exchange_headers(const call_header& mine, time_point) {
        shared_.headers[std::size_t(rank_)] = mine;
        if (rank_ == 0) ++shared_.exchanges;
        shared_.meet();
        table<call_header> all(shared_.headers.size());
        for (std::size_t r = 0; r < all.size(); ++r) copy_header(all[r], shared_.headers[r]);
        shared_.meet();
        return all;
    }
    void post_refusal(const call_header& refused, time_point limit) {
        agree(*this, refused, limit);
    }

private:
    board& shared_;
    int rank_;
};

static_assert(header_channel<memory_channel>);

// Runs f(channel) on each rank; gives what it threw there, by rank.
template <class F>
std::vector<std::exception_ptr> on_channel(int ranks, F f, int* exchanges = nullptr) {
    board shared(ranks);
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            memory_channel channel(shared, r);
            try {
                f(channel);
            } catch (...) {
                thrown[std::size_t(r)] = std::current_exception();
            }
        });
    for (std::thread& t : threads) t.join();
    if (exchanges != nullptr) *exchanges = shared.exchanges;
    return thrown;
}

template <class E>
E as(const std::exception_ptr& thrown) {
    REQUIRE(thrown);
    try {
        std::rethrow_exception(thrown);
    } catch (const E& e) {
        return e;
    }
}

std::string words(const std::exception_ptr& thrown) {
    return std::string(as<hvd::error>(thrown).what());
}

bool has(const std::string& text, const std::string& part) {
    INFO(text);
    INFO(part);
    return text.find(part) != std::string::npos;
}

call_header reduction_header() {
    call_header h;
    h.kind = collective::allreduce;
    h.id = hvd::dtype::float32;
    h.op = hvd::op::sum::id;
    h.dimensions = 2;
    h.extents[0] = 4;
    h.extents[1] = 5;
    h.count = 20;
    h.root = 1;
    h.compares_names = true;
    store(h.name, "x");
    return h;
}

// Every rank begins with the same header, and each changes its own.
std::vector<std::exception_ptr> agree_on_headers(const std::vector<header_change>& changes,
                                                 const call_header& same = reduction_header()) {
    return on_channel(int(changes.size()), [&](memory_channel& channel) {
        call_header mine = same;
        if (const header_change& change = changes[std::size_t(channel.rank())]) change(mine);
        agree(channel, mine, never);
    });
}

void check_told(const std::vector<std::exception_ptr>& thrown, const std::string& field,
                const std::vector<std::string>& values) {
    INFO(field);
    for (std::size_t me = 0; me < thrown.size(); ++me) {
        const auto e = as<hvd::mismatch_error>(thrown[me]);
        INFO(e.what());
        CHECK(e.rank() == int(me));
        CHECK(e.field() == field);
        REQUIRE(e.table().size() == values.size());
        for (std::size_t r = 0; r < values.size(); ++r) {
            CHECK(e.table()[r].first == int(r));
            CHECK(std::string(e.table()[r].second) == values[r]);
        }
    }
}

void check_nothing_thrown(const std::vector<std::exception_ptr>& thrown) {
    for (const auto& t : thrown) CHECK_FALSE(t);
}

}  // namespace

TEST_CASE("equal headers pass, and every rank gets those of all") {
    for (const int ranks : {1, 2, 3, 4})
        check_nothing_thrown(on_channel(ranks, [&](memory_channel& channel) {
            call_header mine = agreement_header("an agreement");
            mine.count = std::uint64_t(channel.rank()) + 10;
            const auto all = agree(channel, mine, never);
            CHECK(all.size() == std::size_t(ranks));
            for (std::size_t r = 0; r < all.size(); ++r) CHECK(all[r].count == r + 10);
        }));
}

TEST_CASE("each field that differs is named with the value of every rank") {
    struct difference {
        const char* field;
        header_change change;
        std::string before, after;
    };
    const std::vector<difference> differences = {
        {"collective", [](call_header& h) { h.kind = collective::broadcast; }, "allreduce 'x'",
         "broadcast 'x'"},
        {"collective", [](call_header& h) { h.plan = 3; }, "allreduce 'x'",
         "allreduce 'x' of plan 3"},
        {"collective", [](call_header& h) { h.making_plan = true; }, "allreduce 'x'",
         "making of a plan: allreduce 'x'"},
        {"collective", [](call_header& h) { h.fused = true; }, "allreduce 'x'",
         "fused allreduce 'x'"},
        {"element type", [](call_header& h) { h.id = hvd::dtype::int32; }, "float32", "int32"},
        {"element type", [](call_header& h) { store(h.type, "mine/4"); }, "float32", "mine/4"},
        {"operation", [](call_header& h) { h.op = hvd::op::max::id; }, "sum", "max"},
        {"rounding", [](call_header& h) { h.mode = 2; }, "none", "nearest"},
        {"shape", [](call_header& h) { h.dimensions = 1; }, "[4, 5]", "[4]"},
        {"shape", [](call_header& h) { h.extents[0] = 7; }, "[4, 5]", "[7, 5]"},
        {"shape", [](call_header& h) { h.extents[1] = 7; }, "[4, 5]", "[4, 7]"},
        {"count", [](call_header& h) { h.count = 21; }, "20", "21"},
        {"root", [](call_header& h) { h.root = 0; }, "1", "0"},
        {"prescale", [](call_header& h) { h.prescale = 0.5; }, "1", "0.5"},
        {"postscale", [](call_header& h) { h.postscale = 2; }, "1", "2"},
        {"name", [](call_header& h) { store(h.name, "y"); }, "'x'", "'y'"},
        {"content", [](call_header& h) { h.content = 9; }, "'x' 20 elements, hash 0",
         "'x' 20 elements, hash 9"},
    };
    for (const difference& d : differences)
        for (const std::size_t ranks : {2, 3, 4})
            for (std::size_t other = 0; other < ranks; ++other) {
                std::vector<header_change> changes(ranks);
                changes[other] = d.change;
                std::vector<std::string> values(ranks, d.before);
                values[other] = d.after;
                check_told(agree_on_headers(changes), d.field, values);
            }
}

TEST_CASE("many ranks are told in groups of equal values, and the table has each") {
    const auto told = [](int ranks, const std::function<message(int)>& value_of) {
        table<message> values{std::size_t(ranks)};
        for (int r = 0; r < ranks; ++r) values[std::size_t(r)] = value_of(r);
        try {
            require_equal(3, "call", "field", values);
        } catch (const hvd::mismatch_error& e) {
            CHECK(int(e.table().size()) == ranks);
            CHECK(e.table()[7].second == value_of(7));
            return std::string(e.what());
        }
        return std::string();
    };
    const std::string begin = "hvd: call on rank 3: ranks disagree on field:\n  ";
    const auto odd_7 = [](int r) { return message(r == 7 ? "b" : "a"); };
    CHECK(told(16, odd_7).find("\n  rank 6: a\n  rank 7: b\n  rank 8: a") != std::string::npos);
    CHECK(told(17, odd_7) == begin + "ranks 0-6, 8-16: a\n  rank 7: b");
    CHECK(told(20, [](int r) { return message(r == 1 || r >= 18 ? "b" : "a"); }) ==
          begin + "ranks 0, 2-17: a\n  ranks 1, 18-19: b");
    CHECK(told(512, [](int r) { return message(r % 256 == 0 ? "a" : "b"); }) ==
          begin + "ranks 0, 256: a\n  ranks 1-255, 257-511: b");
    const std::string all_differ = told(100, [](int r) { return text(r); });
    CHECK(all_differ.find("\n  rank 15: 15\n  and others") != std::string::npos);
    CHECK(all_differ.find("rank 16") == std::string::npos);
}

TEST_CASE("collectives to which ranks give different numbers of rows compare their rows only") {
    for (const collective kind :
         {collective::allgather, collective::gather, collective::alltoall}) {
        call_header same = reduction_header();
        same.kind = kind;
        const header_change rows = [](call_header& h) { h.extents[0] = h.count = 9; };
        check_nothing_thrown(agree_on_headers({{}, rows}, same));
        const auto thrown = agree_on_headers({{}, [](call_header& h) { h.extents[1] = 9; }}, same);
        check_told(thrown, "shape", {"[4, 5]", "[4, 9]"});
    }
    for (const collective kind : {collective::scatter, collective::barrier}) {
        call_header same = reduction_header();
        same.kind = kind;
        check_nothing_thrown(
            agree_on_headers({{}, [](call_header& h) { h.dimensions = 0; }}, same));
    }
}

TEST_CASE("ranks that differ from each other in different fields all name the same one") {
    const header_change other_root = [](call_header& h) { h.root = 0; };
    const header_change other_operation = [](call_header& h) { h.op = hvd::op::max::id; };
    const header_change other_scale = [](call_header& h) { h.prescale = 3; };
    check_told(agree_on_headers({{}, other_root, other_operation}), "operation",
               {"sum", "sum", "max"});
    check_told(agree_on_headers({{}, other_operation, other_root}), "operation",
               {"sum", "max", "sum"});
    check_told(agree_on_headers({other_operation, other_root, other_scale}), "operation",
               {"max", "sum", "sum"});
    check_told(agree_on_headers({other_scale, {}, other_root, other_scale}), "root",
               {"1", "1", "0", "1"});
}

TEST_CASE("two agreements with different names are different calls") {
    const auto thrown = on_channel(3, [](memory_channel& channel) {
        agree(channel, agreement_header(channel.rank() == 1 ? "cross" : "local"), never);
    });
    check_told(thrown, "collective", {"local", "cross", "local"});
}

TEST_CASE("a refusal goes before every difference, and reaches all ranks with its reason") {
    const auto refuses = [](call_header& h) {
        h.kind = collective::barrier;
        h.refuse("first reason");
        h.refuse("second reason");
    };
    const auto thrown = agree_on_headers({[](call_header& h) { h.root = 5; }, {}, refuses});
    CHECK(words(thrown[2]) == "first reason (rank 2)");
    as<hvd::usage_error>(thrown[2]);
    for (const std::size_t r : {0u, 1u}) {
        const auto e = as<hvd::peer_error>(thrown[r]);
        CHECK(e.peers() == std::vector<int>{2});
        CHECK(std::string(e.what()) == "hvd: allreduce 'x' on rank " + std::to_string(r) +
                                           ": rank 2 refused it: first reason");
    }
}

TEST_CASE("two ranks that refuse at once are both named") {
    const auto refuses = [](const char* why) { return [why](call_header& h) { h.refuse(why); }; };
    const auto thrown = agree_on_headers({{}, refuses("reason 1"), {}, refuses("reason 3")});
    CHECK(words(thrown[1]) == "reason 1 (rank 1)");
    CHECK(words(thrown[3]) == "reason 3 (rank 3)");
    for (const std::size_t r : {0u, 2u}) {
        const auto e = as<hvd::peer_error>(thrown[r]);
        CHECK(e.peers() == std::vector<int>{1, 3});
        CHECK(has(e.what(), "rank 1 refused it: reason 1"));
    }
}

TEST_CASE("run_on_all gives the result on every rank") {
    check_nothing_thrown(on_channel(3, [](memory_channel& channel) {
        CHECK(run_on_all(channel, "making", never, [&] { return 10 * channel.rank(); }) ==
              10 * channel.rank());
        run_on_all(channel, "doing", never, [] {});
    }));
}

TEST_CASE("a failure of one rank in run_on_all is its own there, and told to the others") {
    for (const int ranks : {2, 3, 4}) {
        const int culprit = ranks - 1;
        const auto thrown = on_channel(ranks, [&](memory_channel& channel) {
            run_on_all(channel, "making", never, [&] {
                if (channel.rank() == culprit) throw std::out_of_range("no memory left");
                return 1;
            });
        });
        CHECK(std::string(as<std::out_of_range>(thrown[std::size_t(culprit)]).what()) ==
              "no memory left");
        for (int r = 0; r < culprit; ++r) {
            const auto e = as<hvd::peer_error>(thrown[std::size_t(r)]);
            CHECK(e.peers() == std::vector<int>{culprit});
            CHECK(std::string(e.what()) == "hvd: making on rank " + std::to_string(r) + ": rank " +
                                               std::to_string(culprit) +
                                               " refused it: no memory left");
        }
    }
}

TEST_CASE("named values pass where they are equal, in one exchange, and texts are not asked for") {
    int exchanges = 0;
    check_nothing_thrown(on_channel(
        3,
        [](memory_channel& channel) {
            call_header mine = agreement_header("options");
            mine.content = 7;
            mine.count = std::uint64_t(channel.rank());
            const auto all = agree_on(channel, mine, never, [](auto) { FAIL("nothing differs"); });
            CHECK(all[2].count == 2);
        },
        &exchanges));
    CHECK(exchanges == 1);
}

TEST_CASE("the first named value that differs is told with that of every rank, however long") {
    const std::string list(1000, 'a');
    for (const std::size_t odd : {0u, 1u, 2u}) {
        const auto thrown = on_channel(3, [&](memory_channel& channel) {
            const bool mine = channel.rank() == int(odd);
            agree_on_values(channel, "options", never, [&](auto say) {
                say("equal", "1");
                say("list", std::string_view(mine ? list + "b" : list));
                say("later", mine ? "x" : "y");
            });
        });
        std::vector<std::string> values(3, list);
        values[odd] += "b";
        check_told(thrown, "list", values);
        CHECK(has(words(thrown[0]), "hvd: options on rank 0: ranks disagree on list:\n  rank 0: "));
    }
}

TEST_CASE("contents that differ without a value that does are told as they are") {
    const auto thrown = on_channel(2, [](memory_channel& channel) {
        call_header mine = agreement_header("options");
        mine.content = std::uint64_t(channel.rank());
        agree_on(channel, mine, never, [](auto say) { say("value", "1"); });
    });
    for (const auto& t : thrown) CHECK(as<hvd::mismatch_error>(t).field() == "content");
}

TEST_CASE("texts and numbers of every rank reach all, also empty and long ones") {
    check_nothing_thrown(on_channel(4, [](memory_channel& channel) {
        const auto text_of = [](int rank) { return std::string(std::size_t(rank) * 255, 'a'); };
        const auto texts = texts_of_all(channel, "texts", text_of(channel.rank()), never);
        const std::int64_t mine[] = {-channel.rank(), 100};
        const auto numbers = numbers_of_all(channel, "numbers", mine, never);
        for (int r = 0; r < 4; ++r) {
            CHECK(std::string_view(texts[std::size_t(r)]) == text_of(r));
            CHECK(numbers[2 * std::size_t(r)] == -r);
            CHECK(numbers[2 * std::size_t(r) + 1] == 100);
        }
    }));
}

TEST_CASE("run_on_root runs on rank 0 only, and every rank learns of its failure") {
    for (const bool fails : {false, true})
        check_nothing_thrown(on_channel(3, [&](memory_channel& channel) {
            int runs = 0;
            const auto outcome = run_on_root(channel, "saving", never, [&] {
                ++runs;
                if (fails) throw 7;
            });
            CHECK(runs == (channel.rank() == 0 ? 1 : 0));
            CHECK(bool(outcome.exception) == (fails && channel.rank() == 0));
            CHECK(outcome.failure.empty() != fails);
        }));
}

TEST_CASE("a refused call throws usage_error on its rank and peer_error on those that make it") {
    const auto thrown = on_channel(2, [](memory_channel& channel) {
        if (channel.rank() == 1) refuse_call(channel, "a vjp of ", 3, " elements");
        agree(channel, reduction_header(), never);
    });
    CHECK(has(words(thrown[0]), "rank 1 refused it: hvd: a vjp of 3 elements"));
    CHECK(as<hvd::peer_error>(thrown[0]).peers() == std::vector<int>{1});
    CHECK(has(as<hvd::usage_error>(thrown[1]).what(), "hvd: a vjp of 3 elements"));
}

TEST_CASE("hashes tell tensors of two user types from each other") {
    tensor_ref a{}, b{};
    a.id = b.id = hvd::dtype::user;
    a.type = "mine";
    b.type = "yours";
    CHECK(hash().add(a).value() != hash().add(b).value());
    b.type = "mine";
    CHECK(hash().add(a).value() == hash().add(b).value());
}

TEST_CASE("the first reason for which a call is forfeited is kept for the peers") {
    operation op;
    op.entry.kind = collective::barrier;
    const auto a = std::make_exception_ptr(std::runtime_error("a")),
               b = std::make_exception_ptr(std::runtime_error("b"));
    forfeit(op, "first: ", a);
    forfeit(op, "second: ", b);
    CHECK(op.entry.refused);
    CHECK(std::string(op.entry.text) == "hvd: barrier: first: a");
}

TEST_CASE("the first failure of a reduction is kept") {
    std::exception_ptr failure;
    keep_failure(failure, [] { throw std::runtime_error("first"); });
    keep_failure(failure, [] { throw std::runtime_error("second"); });
    CHECK(std::string_view(what_of(failure)) == "first");
}

TEST_CASE("bytes of another call are told from a header") {
    const auto accepted = [](const call_header& h) {
        return is_header(reinterpret_cast<const std::byte*>(&h));
    };
    call_header last;  // the last value of each field
    std::memset(last.extents, 0xff, sizeof last.extents);
    last.kind = collective::agree;
    last.id = hvd::dtype::user;
    last.op = 11;
    last.mode = 3;
    last.dimensions = max_dimensions;
    last.refused = last.fused = last.making_plan = last.compares_names = last.not_finite = true;
    store(last.name, std::string(100, 'n'));
    store(last.type, std::string(100, 't'));
    store(last.text, std::string(300, 'w'));
    CHECK(accepted(call_header()));
    CHECK(accepted(reduction_header()));
    CHECK(accepted(last));

    // Each byte of these would be read as an index or a length, or has only one value.
    for (std::size_t at = 0; at < offsetof(call_header, took); ++at) {
        CAPTURE(at);
        call_header h = last;
        reinterpret_cast<unsigned char*>(&h)[at] = 0xee;
        CHECK(!accepted(h));
    }
    for (const std::size_t text :
         {offsetof(call_header, name), offsetof(call_header, type), offsetof(call_header, text)}) {
        CAPTURE(text);
        call_header h = last;
        char* const letters = reinterpret_cast<char*>(&h) + text;
        letters[std::strlen(letters)] = 'x';  // its last byte
        CHECK(!accepted(h));
    }
}

TEST_CASE("inputs that are not finite come after other refusals, and all ranks name the first") {
    table<call_header> all(std::size_t(4));
    for (call_header& h : all) h = reduction_header();
    const auto expect = [&](int source, std::string_view tensor, std::size_t index, double value) {
        for (int me = 0; me < 4; ++me) {
            try {
                check_headers(me, all);
                FAIL("nothing was thrown");
            } catch (const hvd::not_finite_error& e) {
                CHECK(e.rank() == me);
                CHECK(e.source() == source);
                CHECK(e.tensor() == tensor);
                CHECK(e.index() == index);
                CHECK((std::isnan(e.value()) ? std::isnan(value) : e.value() == value));
                CHECK(has(e.what(), "on rank " + std::to_string(me)));
                CHECK(has(e.what(), "input of rank " + std::to_string(source)));
            }
        }
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    refuse_not_finite(all[3], {bad_value::infinity, SIZE_MAX, {}});
    expect(3, "", SIZE_MAX, infinity);
    refuse_not_finite(all[2], {bad_value::minus_infinity, 0, "tensor 7"});
    expect(2, "tensor 7", 0, -infinity);
    const std::string name(300, 'n');
    refuse_not_finite(all[1], {bad_value::nan, 17, name});
    expect(1, name.substr(0, 255 - std::strlen("nan at element 17 of ")), 17, std::nan(""));

    all[3].refuse("another reason");  // it has refused the call already
    expect(1, name.substr(0, 255 - std::strlen("nan at element 17 of ")), 17, std::nan(""));
    all[0].refuse("another reason");
    CHECK_THROWS_AS(check_headers(0, all), hvd::usage_error);
    for (const int me : {1, 2, 3}) try {
            check_headers(me, all);
            FAIL("nothing was thrown");
        } catch (const hvd::peer_error& e) {
            CHECK(e.peers() == std::vector<int>{0});
            CHECK(has(e.what(), "rank 0 refused it: another reason"));
        }

    take_back_not_finite(all[1]);
    CHECK((!all[1].refused && !all[1].not_finite && all[1].text[0] == 0));
    take_back_not_finite(all[0]);  // of another reason
    CHECK(all[0].refused);
}

TEST_CASE("a text about an input that no rank writes is told as it is") {
    for (const char* text :
         {"", "nan", "nan ", "nan at element", "nan at element ", "nan at element x",
          "nan at element -1", "nan at element 99999999999999999999", "nan at element 1 of",
          "nan at element 1 in w", "big at element 1", " at element 1", "nanat element 1",
          "inf  at element 1"}) {
        CAPTURE(text);
        table<call_header> all(std::size_t(2));
        for (call_header& h : all) h = reduction_header();
        all[1].refused = all[1].not_finite = true;
        store(all[1].text, text);
        try {
            check_headers(0, all);
            FAIL("nothing was thrown");
        } catch (const hvd::peer_error& e) {
            CHECK(e.peers() == std::vector<int>{1});
            CHECK(has(e.what(), std::string("rank 1 refused it: ") + text));
        }
    }
}

TEST_CASE("a rank whose tensor came instead of a header is named, and nothing else of it is read") {
    for (const unsigned char garbage : {0xff, 0xee, 0x40}) {
        table<call_header> all(std::size_t(3));
        for (call_header& h : all) h = agreement_header("device_arena");
        std::memset(static_cast<void*>(&all[1]), garbage, sizeof(call_header));
        replace_other_bytes(all);
        for (const int me : {0, 2}) {
            try {
                check_headers(me, all);
                FAIL("the bytes were taken for a header");
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.field() == "collective");
                CHECK(has(e.what(), "device_arena on rank " + std::to_string(me)));
                CHECK(has(e.what(), "rank 1: another call"));
            }
        }
    }
}

}  // namespace agreement_tests
