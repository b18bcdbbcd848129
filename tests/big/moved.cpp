// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <memory>

#include "../collective/support.hpp"

using namespace hvd_test;

// Tensors with more elements than an int counts are really moved: two ranks need some 5 GB.

namespace {

constexpr std::size_t many = (std::size_t(1) << 31) + 3;

// The period of the pattern is a prime, so that no chunk of it is right in another's place.
constexpr std::size_t period = 1000003;

std::int8_t element(int rank, std::size_t i) {
    return std::int8_t((i % period * 7 + std::size_t(rank) * 5) % 23);
}

void fill(std::int8_t* values, int rank) {
    for (std::size_t i = 0; i < period; ++i) values[i] = element(rank, i);
    for (std::size_t filled = period; filled < many; filled += period)
        std::copy_n(values, std::min(period, many - filled), values + filled);
}

// Checks the first and last elements, those around 2^31, and a sample of the others.
template <class F>
std::size_t wrong(const std::int8_t* values, F expected) {
    std::size_t count = 0;
    const auto look = [&](std::size_t i) { count += values[i] == expected(i) ? 0 : 1; };
    for (std::size_t i = 0; i < many; i += 4099) look(i);
    for (std::size_t i = 0; i < 100; ++i) {
        look(i);
        look(many - 1 - i);
        look(many / 2 - 50 + i);
    }
    return count;
}

}  // namespace

TEST_CASE("broadcast and allreduce of 2^31 + 3 elements arrive to the last one") {
    on_every_transport_from(2, [](auto& comm) {
        REQUIRE(comm.size() == 2);
        const std::unique_ptr<std::int8_t[]> memory(new std::int8_t[many]);
        const auto values = hvd::view(memory.get(), many);
        fill(memory.get(), comm.rank());
        comm.broadcast(values, hvd::root{1});
        CHECK(wrong(memory.get(), [](std::size_t i) { return element(1, i); }) == 0);
        fill(memory.get(), comm.rank());
        comm.allreduce(values, hvd::sum);
        CHECK(wrong(memory.get(), [](std::size_t i) { return element(0, i) + element(1, i); }) ==
              0);
    });
}
