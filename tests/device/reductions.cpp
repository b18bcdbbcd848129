// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The reduction kernel, with the same body that a GPU runs, gives the bits of the host's reduction
// for all operations, types and alignments.

#include <cstring>
#include <limits>
#include <random>

#include <hvd/kernel/cuda/reduce.cuh>
#include <hvd/kernel/reduce.hpp>
#include "support.hpp"

namespace reductions_tests {

using namespace hvd::detail;

namespace {

constexpr std::byte untouched{0x5a};

// Returns random bits. Floats are often of ordinary size, with infinities and NaNs among them.
template <class T>
T random_number(std::minstd_rand& engine) {
    std::uint64_t bits =
        (std::uint64_t(engine()) << 33) ^ (std::uint64_t(engine()) << 11) ^ engine();
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
    if constexpr (!std::is_integral_v<T>) {
        constexpr float infinity = std::numeric_limits<float>::infinity();
        const unsigned choice = unsigned(bits >> 32) % 64;
        if (choice == 0) return T(infinity);
        if (choice == 1) return T(-infinity);
        if (choice == 2) return T(std::numeric_limits<float>::quiet_NaN());
        if (choice < 40) return T(float(int(bits % 20001) - 10000) * 0.013f);
    }
    return value;
}

// Guards, inputs and outputs in one block of memory, each at its own offset from 16 bytes.
struct arena {
    alignas(16) std::byte bytes[8][20000];
    std::byte* at(int which, std::size_t offset) { return bytes[which] + 16 + offset; }
};

void run_on_host(reduction_launch& l) {
    l.head = head_of(l);
    REQUIRE(with_reduction(l, [&]<class T, class Rule>() {
                for (std::uint64_t block = reduction_blocks<T, Rule>(l); block-- > 0;)
                    for (unsigned thread = 0; thread < reduction_threads; ++thread)
                        reduce_block<T, Rule>(l, block, thread);
                return cudaSuccess;
            }) == cudaSuccess);
}

struct layout {
    std::size_t count, offset,
        skew;  // output p and input r are at offset + skew * number, in elements
    int ranks, places;
    bool in_place;
};

template <class T, class Op>
void check_layout(const Op& op, const layout& l, double before, double after,
                  std::minstd_rand& engine) {
    static arena memory;
    std::memset(&memory, int(untouched), sizeof memory);
    reduction_launch launch{};
    const reduced_numbers numbers = numbers_of(hvd::dtype_traits<T>::id, Op::id);
    launch.id = numbers.id;
    launch.op = numbers.op;
    launch.count = l.count * numbers.each;
    launch.ranks = l.ranks;
    launch.prescale = before;
    launch.postscale = after;
    if constexpr (std::is_same_v<hvd::detail::plain_op_t<Op>, hvd::op::average>)
        launch.divisor = l.ranks;
    if constexpr (is_rounded<Op>) launch.mode = op.mode;
    std::vector<T> expected(l.count);
    std::vector<std::vector<T>> inputs;
    std::vector<const std::byte*> pointers;
    for (int r = 0; r < l.ranks; ++r) {
        auto& x = inputs.emplace_back();
        for (std::size_t i = 0; i < l.count; ++i) x.push_back(random_number<T>(engine));
        std::byte* const place =
            memory.at(r, (l.offset + l.skew * std::size_t(r)) * sizeof(T) % 16);
        if (l.count > 0) std::memcpy(place, x.data(), l.count * sizeof(T));
        launch.in[r] = place;
        pointers.push_back(reinterpret_cast<const std::byte*>(x.data()));
    }
    for (int p = 0; p < l.places; ++p)
        launch.out[launch.places++] =
            l.in_place ? const_cast<std::byte*>(launch.in[p])
                       : memory.at(4 + p, (l.offset + l.skew * std::size_t(p)) * sizeof(T) % 16);
    if (l.count > 0)
        reduce_elements<T, Op>({&op, pointers.data(), l.ranks, l.ranks,
                                reinterpret_cast<std::byte*>(expected.data()), l.count, before,
                                after});
    run_on_host(launch);
    INFO("count ", l.count, " offset ", l.offset, " skew ", l.skew, " ranks ", l.ranks, " places ",
         l.places, " in place ", l.in_place, " op ", Op::id);
    bool right = true;
    for (int p = 0; p < l.places; ++p) {
        const std::byte* const out = launch.out[p];
        right =
            right && (l.count == 0 || std::memcmp(out, expected.data(), l.count * sizeof(T)) == 0);
        right = right && out[-1] == untouched && out[l.count * sizeof(T)] == untouched;
    }
    REQUIRE(right);
}

// Reduces at equal and different alignments, in place and out of place, at ends and in the middle.
template <class T, class Op>
void check_reduction(const Op& op, double before = 1, double after = 1) {
    std::minstd_rand engine(7);
    for (const std::size_t count : {std::size_t(0), std::size_t(1), std::size_t(5), std::size_t(17),
                                    std::size_t(64), std::size_t(1003)})
        for (const int ranks : {1, 2, 3, 4})
            for (const bool in_place : {false, true})
                for (const std::size_t skew : {std::size_t(0), std::size_t(1)})
                    for (const std::size_t offset :
                         {std::size_t(0), std::size_t(1), std::size_t(3)})
                        check_layout<T>(op,
                                        {count, offset, skew, ranks,
                                         in_place ? ranks : 1 + ranks % 3, in_place},
                                        before, after, engine);
}

template <class T>
void check_floats() {
    check_reduction<T>(hvd::sum);
    check_reduction<T>(hvd::min);
    check_reduction<T>(hvd::max, 0.5);
    check_reduction<T>(hvd::product, 1, 3);
    check_reduction<T>(hvd::average, 1.0 / 3, 0.7);
}

template <class T>
void check_integers() {
    check_reduction<T>(hvd::sum);
    check_reduction<T>(hvd::min);
    check_reduction<T>(hvd::max);
    check_reduction<T>(hvd::product);
    check_reduction<T>(hvd::bit_and);
    check_reduction<T>(hvd::bit_or);
    check_reduction<T>(hvd::bit_xor);
    for (const auto mode :
         {hvd::rounding::toward_zero, hvd::rounding::nearest, hvd::rounding::down})
        check_reduction<T>(hvd::average(mode));
}

}  // namespace

TEST_CASE("16-bit floats, NaNs and infinities") {
    check_floats<hvd::float16>();
    check_floats<hvd::bfloat16>();
}
TEST_CASE("floats, NaNs and infinities") {
    check_floats<float>();
    check_floats<double>();
}
TEST_CASE("small integers") {
    check_integers<std::int8_t>();
    check_integers<std::uint8_t>();
    check_integers<std::int16_t>();
    check_integers<std::uint16_t>();
}
TEST_CASE("large integers") {
    check_integers<std::int32_t>();
    check_integers<std::uint32_t>();
    check_integers<std::int64_t>();
    check_integers<std::uint64_t>();
}

TEST_CASE("a launch of several blocks, aligned and not") {
    for (const std::size_t shift : {0, 1}) {
        constexpr std::size_t count = 20'000;
        std::vector<float> a(count + 1, 1), b(count + 1, 2), out(count + 1, -1);
        reduction_launch l{};
        l.in[0] = reinterpret_cast<const std::byte*>(a.data());
        l.in[1] = reinterpret_cast<const std::byte*>(b.data() + shift);
        l.out[0] = reinterpret_cast<std::byte*>(out.data());
        l.count = count;
        l.prescale = l.postscale = 1;
        l.ranks = 2;
        l.places = 1;
        l.id = hvd::dtype::float32;
        run_on_host(l);
        CHECK(l.head == (shift == 0 ? 0 : count));
        out.back() = 3;
        CHECK(out == std::vector<float>(count + 1, 3));
    }
}

}  // namespace reductions_tests
