// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <coroutine>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hvd/hvd.hpp>

namespace handles_tests {

// Handles (communicator, request, result, plan), errors, and objects as bytes.

namespace {

using communicator = hvd::communicator<hvd::threads>;

template <class T>
constexpr bool only_moves =
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> &&
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    std::is_nothrow_destructible_v<T> && std::is_default_constructible_v<T>;

// True if E derives from hvd::error directly, and from nothing else.
template <class E>
constexpr bool is_an_error =
    std::is_base_of_v<hvd::error, E> && std::is_convertible_v<E*, hvd::error*> &&
    std::is_nothrow_copy_constructible_v<E>;

template <class T>
T round_trip(const T& value) {
    std::vector<std::byte> buffer;
    hvd::serializer<T>::write(buffer, value);
    std::span<const std::byte> rest(buffer);
    T result = hvd::serializer<T>::read(rest);
    CHECK(rest.empty());
    return result;
}

// Every truncation of the written bytes is too short to be read and gives an error.
template <class T>
int unnoticed_tears(const T& value) {
    std::vector<std::byte> buffer;
    hvd::serializer<T>::write(buffer, value);
    int unnoticed = 0;
    for (std::size_t n = 0; n < buffer.size(); ++n) {
        std::span<const std::byte> torn(buffer.data(), n);
        try {
            hvd::serializer<T>::read(torn);
            ++unnoticed;
        } catch (const hvd::usage_error&) {
        }
    }
    return unnoticed;
}

struct point {
    int x, y;
    friend bool operator==(const point&, const point&) = default;
};

}  // namespace

TEST_CASE("handles move and do not copy") {
    static_assert(only_moves<communicator>);
    static_assert(only_moves<hvd::request>);
    static_assert(only_moves<hvd::result<int>>);
    static_assert(only_moves<hvd::plan<hvd::threads>>);
    CHECK(true);
}

TEST_CASE("threads that make a subset share its memory, and forget it once each has it") {
    using namespace hvd::detail;
    const auto hub =
        shared<threads_hub>::make(std::vector<int>(2), 4096, processor_set::of_this_thread());
    threads_endpoint first(hub, 0), second(hub, 1);
    const std::vector<int> both{0, 1};
    const auto memory = [](const auto& endpoint) { return endpoint->region()->slots(); };
    const auto a = first.subset(both, 7), b = second.subset(both, 7);
    CHECK(memory(a) == memory(b));
    // The number of a call is new in each call. Here it only shows what the first one left behind.
    const auto c = first.subset(both, 7);
    CHECK(memory(c) != memory(a));
    CHECK(memory(second.subset(both, 7)) == memory(c));
}

TEST_CASE("a moved-from communicator is empty and refuses calls") {
    auto comm = communicator::world();
    CHECK(bool(comm));
    auto other = std::move(comm);
    CHECK(!comm);
    CHECK(comm.rank() == -1);
    CHECK(comm.size() == 0);
    CHECK_THROWS_AS(comm.barrier(), hvd::usage_error);
    CHECK_THROWS_AS(comm.run_ready(), hvd::usage_error);
    CHECK(other.size() == 1);
    other.barrier();
    auto& self = other;
    other = std::move(self);  // onto itself
    CHECK(bool(other));
}

TEST_CASE("a moved-from request is empty and complete") {
    auto comm = communicator::world();
    std::vector<int> x(3, 1);
    hvd::request pending = comm.allreduce_async(x, hvd::sum), other;
    CHECK(bool(pending));
    CHECK(!other);
    CHECK(other.test());
    other.wait();
    other = std::move(pending);
    CHECK(!pending);
    CHECK(pending.test());
    CHECK(bool(other));
    other.wait();
    CHECK(!other);
}

TEST_CASE("a moved-from result is empty, and refuses to be waited for") {
    auto comm = communicator::world();
    const int mine = 7;
    auto pending = comm.allgather_async(mine);
    auto other = std::move(pending);
    CHECK(!pending);
    CHECK_THROWS_AS(pending.wait(), hvd::usage_error);
    CHECK(other.wait().values == std::vector<int>{7});
    CHECK_THROWS_AS(other.wait(), hvd::usage_error);
    hvd::result<int> nothing;
    CHECK_THROWS_AS(nothing.wait(), hvd::usage_error);
}

TEST_CASE("a moved-from plan is empty and refuses to run") {
    auto comm = communicator::world();
    std::vector<int> x(3, 1);
    auto plan = comm.plan_allreduce(x, hvd::sum);
    auto other = std::move(plan);
    CHECK(!plan);
    CHECK_THROWS_AS(plan.run(), hvd::usage_error);
    other.run();
    plan = std::move(other);
    CHECK(!other);
    plan.run();
}

TEST_CASE("errors derive from hvd::error, which is a std::exception, and from nothing else") {
    static_assert(is_an_error<hvd::usage_error> && is_an_error<hvd::mismatch_error> &&
                  is_an_error<hvd::peer_error> && is_an_error<hvd::mpi_error>);
    static_assert(std::is_base_of_v<hvd::peer_error, hvd::timeout_error> &&
                  !std::is_base_of_v<hvd::mpi_error, hvd::timeout_error>);
    static_assert(std::is_base_of_v<std::exception, hvd::error> &&
                  !std::is_base_of_v<hvd::usage_error, hvd::mismatch_error> &&
                  !std::is_base_of_v<hvd::peer_error, hvd::mismatch_error> &&
                  !std::is_base_of_v<hvd::usage_error, hvd::peer_error>);
    CHECK(hvd::usage_error(3, "text").rank() == 3);
    CHECK(std::string(hvd::usage_error(3, "text").what()) == "text");
}

TEST_CASE("a copied error keeps its details") {
    const hvd::mismatch_error copy = [] {
        const std::string four = "4";
        const hvd::mismatch_error::entry table[] = {{0, "3"}, {1, four}};
        const hvd::mismatch_error mismatch(1, "text", "count", table);
        return hvd::mismatch_error(mismatch);
    }();
    CHECK(copy.field() == "count");
    CHECK(copy.table().size() == 2);
    CHECK(copy.table()[1] == hvd::mismatch_error::entry(1, "4"));
    const hvd::peer_error peer(0, "text", {2, 3});
    CHECK(hvd::peer_error(peer).peers() == std::vector<int>{2, 3});
}

TEST_CASE("numbers in messages have the digits that tell them from all others, and no more") {
    const auto printed = [](double number) {
        return std::string(std::string_view(hvd::detail::text(number)));
    };
    CHECK(printed(0.5) == "0.5");
    CHECK(printed(0.1) == "0.1");
    CHECK(printed(-2) == "-2");
    CHECK(printed(1e-20) == "1e-20");
    CHECK(printed(123456789) == "123456789");
    CHECK(printed(1.0 / 3) == "0.3333333333333333");
    CHECK(printed(0.1 + 0.2) == "0.30000000000000004");
    CHECK(printed(-std::numeric_limits<double>::infinity()) == "-inf");
    CHECK(printed(std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("objects come back from their bytes") {
    CHECK(round_trip(42) == 42);
    CHECK(round_trip(point{1, -2}) == point{1, -2});
    CHECK(round_trip(std::string()) == "");
    CHECK(round_trip(std::string("with\0zero", 9)) == std::string("with\0zero", 9));
    CHECK(round_trip(std::vector<double>{1, 2.5}) == std::vector<double>{1, 2.5});
    CHECK(round_trip(std::vector<std::string>{"", "a", std::string(70000, 'x')}) ==
          std::vector<std::string>{"", "a", std::string(70000, 'x')});
    CHECK(round_trip(std::vector<std::vector<point>>{{}, {{1, 2}}}) ==
          std::vector<std::vector<point>>{{}, {{1, 2}}});
}

TEST_CASE("objects are written one after another and read in that order") {
    std::vector<std::byte> buffer;
    hvd::serializer<std::string>::write(buffer, "first");
    hvd::serializer<int>::write(buffer, 2);
    std::span<const std::byte> rest(buffer);
    CHECK(hvd::serializer<std::string>::read(rest) == "first");
    CHECK(hvd::serializer<int>::read(rest) == 2);
}

TEST_CASE("torn bytes are an error, wherever they end") {
    CHECK(unnoticed_tears(42) == 0);
    CHECK(unnoticed_tears(std::string("text")) == 0);
    CHECK(unnoticed_tears(std::vector<int>{1, 2, 3}) == 0);
    CHECK(unnoticed_tears(std::vector<std::string>{"a", "", "bcd"}) == 0);
}

TEST_CASE("a length that lies is an error and not an allocation") {
    for (const std::uint64_t length : {std::uint64_t(1) << 40, ~std::uint64_t(0)}) {
        std::vector<std::byte> buffer;
        hvd::serializer<std::uint64_t>::write(buffer, length);
        std::span<const std::byte> text(buffer), numbers(buffer), nested(buffer);
        CHECK_THROWS_AS(hvd::serializer<std::string>::read(text), hvd::usage_error);
        CHECK_THROWS_AS(hvd::serializer<std::vector<double>>::read(numbers), hvd::usage_error);
        CHECK_THROWS_AS(hvd::serializer<std::vector<std::string>>::read(nested), hvd::usage_error);
    }
}

TEST_CASE("a type without a serializer is no object") {
    CHECK(hvd::serializable<point>);
    CHECK(hvd::serializable<std::vector<std::vector<std::string>>>);
    CHECK(!hvd::serializable<int*>);
    CHECK(!hvd::serializable<communicator>);
    CHECK(!hvd::serializable<std::vector<communicator>>);
}

}  // namespace handles_tests
