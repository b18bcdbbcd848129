// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The copy kernel, with the same body that a GPU runs: every kind, alignment and edge against a
// plain loop.

#include <cmath>
#include <cstring>

#include <hvd/kernel/cuda/pack.cuh>
#include "support.hpp"

namespace kernels_tests {

using namespace hvd::detail;
using device_test::tensor;

namespace {

constexpr std::size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 255, 1000};
constexpr std::byte untouched{0x5a};

template <class From, class To>
void fill(std::vector<std::byte>& memory, std::size_t offset, std::size_t count,
          std::vector<float>& values) {
    const float first = std::is_unsigned_v<From> ? 0 : -100;
    values.clear();
    for (std::size_t i = 0; i < count; ++i) {
        values.push_back(first + float(i % 251) + (i % 3 == 0 ? 0.5f : 0.0f));
        const From x = From(values.back());
        std::memcpy(memory.data() + offset + i * sizeof x, &x, sizeof x);
    }
}

// Copies at every offset of source and target from 16 bytes, with guards on both sides of the
// target.
template <class From, class To>
void check_copies(copy_kind kind, double scale) {
    std::vector<float> values;
    for (const std::size_t count : counts)
        for (std::size_t a = 0; a < 16; a += sizeof(From))
            for (std::size_t b = 0; b < 16; b += sizeof(To)) {
                alignas(16) std::byte storage[2][9000];
                std::vector<std::byte> from(a + count * sizeof(From));
                fill<From, To>(from, a, count, values);
                if (!from.empty()) std::memcpy(storage[0] + 16, from.data(), from.size());
                std::memset(storage[1], int(untouched), sizeof storage[1]);
                const std::byte* const source = storage[0] + 16 + a;
                std::byte* const target = storage[1] + 16 + b;
                const tile t{source, target, scale, std::uint32_t(count), kind};
                for (unsigned thread = 0; thread < tile_threads; ++thread) copy_tile(t, thread);
                bool right = target[-1] == untouched && target[count * sizeof(To)] == untouched;
                for (std::size_t i = 0; i < count; ++i) {
                    From x;
                    To got;
                    std::memcpy(&x, source + i * sizeof x, sizeof x);
                    std::memcpy(&got, target + i * sizeof got, sizeof got);
                    using A = std::conditional_t<sizeof(From) == 8, double, float>;
                    const To expected = To(A(x) * A(scale));
                    right = right && std::memcmp(&got, &expected, sizeof got) == 0;
                }
                INFO("count ", count, " offsets ", a, " ", b);
                REQUIRE(right);
            }
}

}  // namespace

TEST_CASE("every kind of copy, every alignment and every edge") {
    check_copies<std::uint8_t, std::uint8_t>(copy_kind::bytes, 1);
    check_copies<hvd::float16, hvd::float16>(copy_kind::float16, 1.0 / 3);
    check_copies<hvd::bfloat16, hvd::bfloat16>(copy_kind::bfloat16, 1.0 / 3);
    check_copies<float, float>(copy_kind::float32, 1.0 / 3);
    check_copies<double, double>(copy_kind::float64, 1.0 / 3);
    check_copies<float, hvd::float16>(copy_kind::float32_to_float16, 0.25);
    check_copies<hvd::float16, float>(copy_kind::float16_to_float32, 0.1);
    check_copies<float, hvd::bfloat16>(copy_kind::float32_to_bfloat16, 0.25);
    check_copies<hvd::bfloat16, float>(copy_kind::bfloat16_to_float32, 0.1);
}

TEST_CASE("tensors are cut by bytes, into tiles of at most four loads a thread") {
    std::vector<tile> tiles;
    std::vector<std::byte> memory(std::size_t(64) << 20);
    cut_into_tiles(tiles, memory.data(), memory.data(), 64, copy_kind::float32, 1);
    CHECK(tiles.size() == 1);
    const std::size_t all = memory.size() / sizeof(float);
    cut_into_tiles(tiles, memory.data(), memory.data(), all, copy_kind::float32, 1);
    CHECK(tiles.size() == 1 + 4096);  // tiles of 16 KiB
    for (const tile& t : tiles) CHECK(t.count <= tile_threads * tile_loads * 4);
}

TEST_CASE("a launch for a long tensor, cut by its blocks") {
    cudaStream_t stream{};
    cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
    {
        const tensor<float> x(std::vector<float>(100'001, 3));
        launch_scale(reinterpret_cast<std::byte*>(x.data()), 100'001, copy_kind::float32, 0.5,
                     stream, 0);
        cudaStreamSynchronize(stream);
        CHECK(x.values() == std::vector<float>(100'001, 1.5));
        const tensor<hvd::bfloat16> y(std::vector<hvd::bfloat16>(20'003, hvd::bfloat16(3)));
        launch_scale(reinterpret_cast<std::byte*>(y.data()), 20'003, copy_kind::bfloat16, 2, stream,
                     0);
        cudaStreamSynchronize(stream);
        for (const auto v : y.values()) REQUIRE(float(v) == 6);
    }
    cudaStreamDestroy(stream);
    CHECK(emulation::live_objects() == 0);
}

}  // namespace kernels_tests
