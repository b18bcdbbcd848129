// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <hvd/kernel/not_finite.hpp>
#include <hvd/kernel/reduce.hpp>

namespace kernel_tests {

// The host kernel that reduces N tensors into one, against plain serial loops.

namespace {

using hvd::bfloat16;
using hvd::float16;
using hvd::rounding;
namespace op = hvd::op;

struct scales {
    double before = 1, after = 1;
};

template <class T, class Op>
void reduce(const Op& operation, const std::vector<const std::byte*>& inputs, T* out, std::size_t n,
            scales s) {
    const int ranks = int(inputs.size());
    hvd::detail::reduce_elements<T, Op>({&operation, inputs.data(), ranks, ranks,
                                         reinterpret_cast<std::byte*>(out), n, s.before, s.after});
}

// Reduces `inputs` into new memory, or over input number `over`.
template <class T, class Op>
std::vector<T> kernel(const Op& operation, std::vector<std::vector<T>> inputs, int over = -1) {
    std::vector<const std::byte*> pointers;
    for (const auto& in : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(in.data()));
    std::vector<T> fresh(inputs.front().size());
    std::vector<T>& out = over < 0 ? fresh : inputs[std::size_t(over)];
    reduce(operation, pointers, out.data(), out.size(), {});
    return out;
}

// Reduces one element of each input.
template <class T, class Op>
T one(const Op& operation, std::initializer_list<T> values, scales s = {}) {
    std::vector<const std::byte*> pointers;
    for (const T& value : values) pointers.push_back(reinterpret_cast<const std::byte*>(&value));
    T result;
    reduce(operation, pointers, &result, 1, s);
    return result;
}

template <class T>
std::vector<std::vector<T>> numbers(int ranks, std::size_t n) {
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(ranks), std::vector<T>(n));
    for (std::size_t r = 0; r < inputs.size(); ++r)
        for (std::size_t i = 0; i < n; ++i) inputs[r][i] = T(float(int((i * 7 + r * 5) % 23) - 11));
    return inputs;
}

template <class T, class Op, class F>
std::size_t wrong(const Op& operation, int ranks, std::size_t n, F combine) {
    const auto inputs = numbers<T>(ranks, n);
    std::size_t count = 0;
    const auto check = [&](const std::vector<T>& got) {
        for (std::size_t i = 0; i < n; ++i) {
            double expected = double(float(inputs[0][i]));
            for (std::size_t r = 1; r < inputs.size(); ++r)
                expected = combine(expected, double(float(inputs[r][i])));
            count += double(float(got[i])) == double(float(T(float(expected)))) ? 0 : 1;
        }
    };
    check(kernel<T>(operation, inputs));
    for (int over = 0; over < ranks; ++over) check(kernel<T>(operation, inputs, over));
    return count;
}

constexpr auto most = std::numeric_limits<std::int64_t>::max();
constexpr auto least = std::numeric_limits<std::int64_t>::min();

}  // namespace

// The sizes are around the kernel's block of 4 KiB of running results. There are 1, 2 and many
// inputs, also in place over any of them.
TEST_CASE_TEMPLATE("every size and number of inputs equals the serial loop", T, float, double,
                   std::int32_t, std::int16_t, float16, bfloat16) {
    for (const std::size_t n :
         {0, 1, 3, 7, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 2047, 2049, 4097, 10007})
        for (const int ranks : {1, 2, 3, 8}) {
            INFO(n, " elements of ", ranks, " inputs");
            CHECK(wrong<T>(hvd::sum, ranks, n, [](double a, double b) { return a + b; }) == 0);
            CHECK(wrong<T>(hvd::min, ranks, n, [](double a, double b) { return std::min(a, b); }) ==
                  0);
            CHECK(wrong<T>(hvd::max, ranks, n, [](double a, double b) { return std::max(a, b); }) ==
                  0);
        }
}

TEST_CASE("integers wrap around as two's complement, without undefined behaviour") {
    CHECK(one<std::int8_t>(hvd::sum, {127, 1}) == -128);
    CHECK(one<std::int8_t>(hvd::product, {64, 4}) == 0);
    CHECK(one<std::uint8_t>(hvd::sum, {255, 255}) == 254);
    CHECK(one<std::int16_t>(hvd::product, {32767, 32767}) == 1);
    CHECK(one<std::uint16_t>(hvd::product, {65535, 65535}) ==
          1);  // promoted to int, this would overflow
    CHECK(one<std::int32_t>(hvd::sum, {std::numeric_limits<std::int32_t>::max(), 1}) ==
          std::numeric_limits<std::int32_t>::min());
    CHECK(one<std::int32_t>(hvd::product, {65536, 65536}) == 0);
    CHECK(one<std::int64_t>(hvd::sum, {most, 1}) == least);
    CHECK(one<std::int64_t>(hvd::product, {least, -1}) == least);
    CHECK(one<std::uint64_t>(hvd::product, {std::uint64_t(1) << 63, 2}) == 0);
}

TEST_CASE("averages of integers round as they are told, for both signs") {
    const auto average = [](rounding mode, std::initializer_list<int> values) {
        return one<int>(hvd::average(mode), values);
    };
    CHECK(average(rounding::toward_zero, {7, 8}) == 7);
    CHECK(average(rounding::toward_zero, {-7, -8}) == -7);
    CHECK(average(rounding::nearest, {7, 8}) == 8);
    CHECK(average(rounding::nearest, {-7, -8}) == -8);
    CHECK(average(rounding::nearest, {1, 0, 0}) == 0);
    CHECK(average(rounding::nearest, {1, 1, 0}) == 1);
    CHECK(average(rounding::nearest, {-1, -1, 0}) == -1);
    CHECK(average(rounding::down, {7, 8}) == 7);
    CHECK(average(rounding::down, {-7, -8}) == -8);
    CHECK(average(rounding::down, {-1, 0, 0}) == -1);
    CHECK(average(rounding::down, {-6, -6}) == -6);
}

TEST_CASE("averages of integers do not overflow before they are divided") {
    CHECK(one<std::int64_t>(hvd::average(rounding::toward_zero), {most, most, most}) == most);
    CHECK(one<std::int64_t>(hvd::average(rounding::down), {least, least}) == least);
    CHECK(one<std::int64_t>(hvd::average(rounding::nearest), {most, least}) == -1);
    CHECK(one<std::uint64_t>(hvd::average(rounding::down),
                             {~std::uint64_t(0), ~std::uint64_t(0) - 1}) == ~std::uint64_t(0) - 1);
    CHECK(one<std::int8_t>(hvd::average(rounding::toward_zero), {127, 127}) == 127);
}

TEST_CASE("scaled integers are rounded, and stop at the ends of their type") {
    CHECK(one<int>(hvd::sum(rounding::toward_zero), {3, 4}, {0.5, 1}) == 3);
    CHECK(one<int>(hvd::sum(rounding::nearest), {3, 4}, {0.5, 1}) == 4);
    CHECK(one<int>(hvd::sum(rounding::down), {-3, -4}, {1, 0.5}) == -4);
    CHECK(one<std::int8_t>(hvd::sum(rounding::nearest), {100, 100}, {1, 2}) == 127);
    CHECK(one<std::int8_t>(hvd::sum(rounding::nearest), {-100, -100}, {1, 2}) == -128);
    CHECK(one<std::uint8_t>(hvd::sum(rounding::nearest), {100}, {1, -1}) == 0);
    CHECK(one<int>(hvd::average(rounding::nearest), {10, 20}, {2, 2}) == 60);
    CHECK(one<std::int64_t>(hvd::sum(rounding::nearest), {most, 0}, {2, 1}) == most);
}

// The expected numbers come from rational arithmetic. In the first nine the product has more digits
// than `long double`, which rounds it across a whole number or a half.
TEST_CASE("scaled integers are rounded once, not in between") {
    const struct {
        std::int64_t value;
        double scale;
        int ranks;
        rounding mode;
        std::int64_t expected;
    } cases[] = {
        {-4062458681156213149, 0x1.6666666666666p-1, 1, rounding::toward_zero,
         -2843721076809349023},
        {-567910901312142581, 0x1.3333333333333p-2, 3, rounding::toward_zero, -56791090131214255},
        {1994836694932247048, -0x1.199999999999ap+0, 3, rounding::toward_zero, -731440121475157309},
        {459548545290208982, 0x1.3333333333333p-2, 1, rounding::nearest, 137864563587062689},
        {2803416523480748945, -0x1.199999999999ap+0, 1, rounding::nearest, -3083758175828824088},
        {3224850477970151340, -0x1.199999999999ap+0, 1, rounding::nearest, -3547335525767166760},
        {-4358377337752609718, -0x1.199999999999ap+0, 1, rounding::down, 4794215071527871076},
        {1206978402419344228, -0x1.199999999999ap+0, 3, rounding::down, -442558747553759587},
        {3794002364920086502, 0x1.6666666666666p-1, 1, rounding::down, 2655801655444060382},
        {4611686018427387904, 3.0, 1, rounding::nearest, most},
        {-4611686018427387904, 3.0, 1, rounding::nearest, least},
        {5, 0x1.56e1fc2f8f359p-997, 3, rounding::nearest, 0},
        {-5, 0x1.56e1fc2f8f359p-997, 3, rounding::down, -1},
        {1, 0x1.0000000000000p+62, 1, rounding::nearest, 4611686018427387904},
        {1, 0x1.0000000000000p+63, 1, rounding::nearest, most},
        {3, 0x1.0000000000000p+60, 7, rounding::down, 494109216260077275},
        {7, 0.5, 1, rounding::nearest, 4},
        {-7, 0.5, 1, rounding::nearest, -4},
        {1, 0x0.0000000000001p-1022, 1, rounding::down, 0},
        {-1, 0x0.0000000000001p-1022, 1, rounding::down, -1},
        {9, 0x1.7e43c8800759cp+996, 1, rounding::nearest, most},
    };
    for (const auto& c : cases) {
        CAPTURE(c.value);
        CAPTURE(c.scale);
        const std::int64_t none = 0;
        const std::byte* const zero = reinterpret_cast<const std::byte*>(&none);
        std::vector<const std::byte*> inputs(std::size_t(c.ranks), zero);
        inputs[0] = reinterpret_cast<const std::byte*>(&c.value);
        std::int64_t result = 0;
        reduce<std::int64_t>(hvd::average(c.mode), inputs, &result, 1, {1, c.scale});
        CHECK(result == c.expected);
    }
}

#if defined(__SIZEOF_INT128__)
__extension__ typedef __int128 compilers_own;

// Compares the results of the kernels for sums of 64-bit integers.
template <class T>
void compare_wide_integers(compilers_own exact, int divisor, double factor) {
    using hvd::detail::wide_integer;
    const auto upper = std::int64_t(exact >> 64);
    wide_integer wide = upper;
    for (int i = 0; i < 64; ++i) wide += wide;
    wide += wide_integer(std::uint64_t(exact));
    REQUIRE(std::uint64_t(wide) == std::uint64_t(exact));
    REQUIRE(wide.high() == std::uint64_t(upper));
    REQUIRE((wide < 0) == (exact < 0));
    REQUIRE(std::int64_t(wide % divisor) == std::int64_t(exact % divisor));
    for (const rounding mode : {rounding::toward_zero, rounding::nearest, rounding::down}) {
        REQUIRE(hvd::detail::rounded_quotient<T>(wide, divisor, mode) ==
                hvd::detail::rounded_quotient<T>(exact, divisor, mode));
        REQUIRE(hvd::detail::scaled_integer<T>(wide, factor, divisor, mode) ==
                hvd::detail::scaled_integer<T>(exact, factor, divisor, mode));
    }
}

TEST_CASE("128-bit integers of hvd compute what the compiler's do") {
    std::uint64_t state = 1;
    const auto random = [&] {  // splitmix64
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    };
    const int divisors[] = {1, 2, 3, 7, 1 << 16, 65537, INT32_MAX};
    const double factors[] = {-1.0 / 3, 0.5, 1, -1e-30, 1e30, 0x1p-64, 3.999};
    // Sums of up to 2^31 ranks have 95 bits and a sign.
    for (int i = 0; i < 20'000; ++i) {
        auto exact = compilers_own(random() >> (random() % 33)) << 31 ^
                     compilers_own(random() >> random() % 64);
        if (random() % 2 == 0) exact = -exact;
        compare_wide_integers<std::int64_t>(exact, divisors[i % 7], factors[random() % 7]);
        compare_wide_integers<std::uint64_t>(exact, int(random() >> 33) | 1, factors[i % 7]);
    }
    const compilers_own one = 1;
    for (const int bits : {0, 1, 31, 32, 33, 62, 63, 64, 65, 93, 94})
        for (const int more : {-1, 0, 1})
            for (const int divisor : divisors)
                for (const double factor : factors)
                    for (const int sign : {-1, 1}) {
                        const compilers_own exact = sign * ((one << bits) + more);
                        compare_wide_integers<std::int64_t>(exact, divisor, factor);
                        compare_wide_integers<std::uint64_t>(exact, divisor, factor);
                    }
}
#endif

TEST_CASE("floats are scaled before, scaled after, then divided") {
    CHECK(one<float>(hvd::sum, {1, 2, 3}, {2, 0.5}) == 6);
    CHECK(one<float>(hvd::average, {1, 2, 6}) == 3);
    CHECK(one<float>(hvd::average, {1, 2, 6}, {2, 4}) == 24);
    CHECK(one<float>(hvd::max, {1, 2}, {-1, 3}) == -3);
    CHECK(one<float>(hvd::product, {2, 3}, {2, 1}) == 24);
    CHECK(one<std::complex<float>>(hvd::average, {{1, 2}, {3, 4}}, {2, 1}) ==
          std::complex<float>(4, 6));
}

TEST_CASE("16-bit floats are combined in float and rounded once") {
    CHECK(float(one<float16>(hvd::sum, {float16(2048), float16(1), float16(1)})) == 2050);
    CHECK(float(one<bfloat16>(hvd::sum, {bfloat16(256), bfloat16(1), bfloat16(1)})) == 258);
    CHECK(float(one<float16>(hvd::average, {float16(65504), float16(65504)})) ==
          65504);  // the sum alone overflows
    CHECK(float(one<float16>(hvd::sum, {float16(1), float16(1)}, {1, 0x1p-24})) == 0x1p-23f);
}

TEST_CASE("one NaN among the inputs is what min and max give") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto& values : {std::initializer_list<float>{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}}) {
        CHECK(std::isnan(one<float>(hvd::min, values)));
        CHECK(std::isnan(one<float>(hvd::max, values)));
        CHECK(std::isnan(one<float>(hvd::sum, values)));
    }
    CHECK(std::isnan(float(one<float16>(hvd::min, {float16(nan), float16(1)}))));
}

TEST_CASE("infinities and signed zeros") {
    const double infinite = std::numeric_limits<double>::infinity();
    CHECK(one<double>(hvd::max, {1, infinite, 2}) == infinite);
    CHECK(one<double>(hvd::min, {-infinite, 1}) == -infinite);
    CHECK(std::isnan(one<double>(hvd::sum, {infinite, -infinite})));
    CHECK(std::signbit(one<double>(hvd::sum, {-0.0, -0.0})));
}

TEST_CASE("bits and logic") {
    CHECK(one<std::uint8_t>(hvd::bit_and, {0b1100, 0b1010}) == 0b1000);
    CHECK(one<std::uint8_t>(hvd::bit_or, {0b1100, 0b1010}) == 0b1110);
    CHECK(one<std::uint8_t>(hvd::bit_xor, {0b1100, 0b1010, 0b0001}) == 0b0111);
    CHECK(one<std::byte>(hvd::bit_xor, {std::byte(3), std::byte(5)}) == std::byte(6));
    CHECK(one<int>(hvd::logical_and, {2, 4}) == 1);
    CHECK(one<int>(hvd::logical_and, {2, 0}) == 0);
    CHECK(one<int>(hvd::logical_or, {0, -5}) == 1);
    CHECK(one<int>(hvd::logical_or, {-5, 0}) == 1);
    CHECK(one<int>(hvd::logical_or, {5}) == 1);
    CHECK(one<std::uint8_t>(hvd::logical_and, {4}) == 1);
    CHECK(one<std::int64_t>(hvd::logical_and, {0}) == 0);
    CHECK(one<bool>(hvd::logical_or, {false, true}));
    CHECK(!one<bool>(hvd::bit_and, {false, true}));
    CHECK(!one<bool>(hvd::min, {false, true}));
}

TEST_CASE("callables get the running result on the left") {
    const auto digits = hvd::custom([](int a, int b) { return 10 * a + b; });
    CHECK(one<int>(digits, {1, 2, 3, 4}) == 1234);
    int offset = 100;
    CHECK(one<int>(hvd::custom([offset](int a, int b) { return a + b + offset; }), {1, 2, 3}) ==
          206);
}

namespace {

// Numbers from the whole range: zeros, the largest and smallest ones, denormal ones.
template <class T>
T finite_number(std::size_t i) {
    using limits = std::numeric_limits<float>;
    if constexpr (sizeof(T) == 2) {
        const std::uint16_t most = hvd::detail::infinity_bits<T> - 1;
        const std::uint16_t bits[] = {0, 0x8000, most, std::uint16_t(most | 0x8000), 1, 0x3c00};
        return std::bit_cast<T>(bits[i % 6]);
    } else if constexpr (std::is_same_v<T, double>) {
        const double all[] = {0, -0.0, std::numeric_limits<double>::max(), -1e300, 5e-324, 1};
        return all[i % 6];
    } else {
        const float all[] = {0, -0.0f, limits::max(), limits::lowest(), limits::denorm_min(), 1};
        return all[i % 6];
    }
}

template <class T>
void find_in_all_places(std::initializer_list<std::pair<T, hvd::detail::bad_value>> bad) {
    constexpr hvd::dtype id = hvd::dtype_traits<T>::id;
    const auto first = [](const std::vector<T>& x, std::size_t from = 0) {
        const std::byte* const data = reinterpret_cast<const std::byte*>(x.data() + from);
        return hvd::detail::first_not_finite(id, data, x.size() - from);
    };
    for (const std::size_t n : {0, 1, 7, 1023, 1024, 1025, 2048, 4096, 4097, 9000}) {
        CAPTURE(n);
        std::vector<T> x(n);
        for (std::size_t i = 0; i < n; ++i) x[i] = finite_number<T>(i);
        REQUIRE(first(x) == n);
        for (std::size_t at = 0; at < n; at += at % 512 < 3 || at % 512 > 508 ? 1 : 101)
            for (const auto& [value, kind] : bad) {
                CAPTURE(at);
                const T before = std::exchange(x[at], value);
                REQUIRE(first(x) == at);
                if (n > 1 && at > 0) REQUIRE(first(x, 1) == at - 1);
                REQUIRE(hvd::detail::bad_value_of(id, reinterpret_cast<std::byte*>(&x[at])) ==
                        kind);
                if (at + 1 < n) x[at + 1] = value;  // it is not the first
                REQUIRE(first(x) == at);
                if (at + 1 < n) x[at + 1] = finite_number<T>(at + 1);
                x[at] = before;
            }
    }
}

}  // namespace

TEST_CASE("the first number that is not finite is found in each type and in each place") {
    using hvd::detail::bad_value;
    constexpr double inf = std::numeric_limits<double>::infinity();
    const double nan = std::nan("");
    find_in_all_places<double>({{nan, bad_value::nan},
                                {-nan, bad_value::nan},
                                {inf, bad_value::infinity},
                                {-inf, bad_value::minus_infinity}});
    find_in_all_places<float>({{float(nan), bad_value::nan},
                               {std::bit_cast<float>(0xff800001u), bad_value::nan},
                               {float(inf), bad_value::infinity},
                               {float(-inf), bad_value::minus_infinity}});
    find_in_all_places<float16>({{float16(float(nan)), bad_value::nan},
                                 {float16(float(inf)), bad_value::infinity},
                                 {float16(float(-inf)), bad_value::minus_infinity}});
    find_in_all_places<bfloat16>({{bfloat16(float(nan)), bad_value::nan},
                                  {bfloat16(float(inf)), bad_value::infinity},
                                  {bfloat16(float(-inf)), bad_value::minus_infinity}});
}

TEST_CASE("complex numbers are not finite by either part, and integers are always") {
    using complex = std::complex<float>;
    std::vector<complex> x(3000, complex(1, 2));
    const auto bytes = [](const auto& of) { return reinterpret_cast<const std::byte*>(of.data()); };
    const auto first = [&] {
        return hvd::detail::first_not_finite(hvd::dtype::complex64, bytes(x), x.size());
    };
    CHECK(first() == x.size());
    for (const std::size_t at : {0, 1, 511, 512, 2999})
        for (const bool imaginary : {false, true}) {
            const float inf = -std::numeric_limits<float>::infinity();
            x[at] = imaginary ? complex(0, inf) : complex(inf, 0);
            CHECK(first() == at);
            CHECK(hvd::detail::bad_value_of(hvd::dtype::complex64, bytes(x) + 8 * at) ==
                  hvd::detail::bad_value::minus_infinity);
            x[at] = 0;
        }
    const std::vector<std::uint64_t> ones(100, ~std::uint64_t(0));
    for (const hvd::dtype id : {hvd::dtype::uint64, hvd::dtype::int32, hvd::dtype::byte,
                                hvd::dtype::user, hvd::dtype::boolean})
        CHECK(hvd::detail::first_not_finite(id, bytes(ones), 100) == 100);
}

TEST_CASE("the first element of a tensor with gaps is found by its row-major index") {
    std::vector<float> memory(4 * 10 * 6, std::numeric_limits<float>::infinity());
    const auto tensor = hvd::view(memory.data(), hvd::shape(4, 5, 3), hvd::strides(60, 12, 2));
    const auto at = [&](std::size_t i, std::size_t j, std::size_t k) -> float& {
        return memory[60 * i + 12 * j + 2 * k];
    };
    for (std::size_t i = 0; i < 60; ++i) at(i / 15, i / 3 % 5, i % 3) = 1;
    const auto ref = hvd::detail::erase(tensor);
    CHECK(hvd::detail::find_not_finite(ref).place == nullptr);
    for (std::size_t i = 60; i-- > 0;) {
        at(i / 15, i / 3 % 5, i % 3) = float(std::nan(""));
        const auto found = hvd::detail::find_not_finite(ref);
        REQUIRE(found.place == reinterpret_cast<const std::byte*>(&at(i / 15, i / 3 % 5, i % 3)));
        CHECK(found.index == i);
    }
    // Rows without gaps, apart from each other.
    const auto rows = hvd::view(memory.data(), hvd::shape(3, 60), hvd::strides(80, 1));
    for (float& x : memory) x = 1;
    memory[80 + 17] = -std::numeric_limits<float>::infinity();
    CHECK(hvd::detail::find_not_finite(hvd::detail::erase(rows)).index == 60 + 17);
}

}  // namespace kernel_tests
