// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The code of docs/your_own_types.md, between `//! [name]` and the same again. It runs on threads
// and on MPI.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "hvd_test.hpp"

using communicator = hvd_test::communicator;

namespace mine {

//! [tensor]
struct tensor {  // a type of your engine
    std::vector<float> cells;
    std::size_t rows, columns;
};
//! [tensor]

//! [particle]
struct particle {
    double position[3];
    double mass;
};
//! [particle]

//! [fixed_point]
struct fixed_point {  // 16 bits before the point, 16 behind it
    std::int32_t bits = 0;
    friend fixed_point operator+(fixed_point a, fixed_point b) { return {a.bits + b.bits}; }
    friend fixed_point operator*(fixed_point a, fixed_point b) {
        return {std::int32_t((std::int64_t(a.bits) * b.bits) >> 16)};
    }
    friend auto operator<=>(const fixed_point&, const fixed_point&) = default;
};
//! [fixed_point]

//! [settings]
struct settings {
    std::map<std::string, double> values;
    bool operator==(const settings&) const = default;
};
//! [settings]

}  // namespace mine

//! [view_traits]
template <>
struct hvd::view_traits<mine::tensor> {
    static constexpr bool borrowed = false;  // a temporary tensor takes its memory with it
    static auto view(auto& t) { return hvd::view(t.cells.data(), hvd::shape(t.rows, t.columns)); }
};
//! [view_traits]

//! [transport_only]
template <>
struct hvd::dtype_traits<mine::particle> : hvd::transport_only<mine::particle> {
    static constexpr std::string_view name = "particle";
};
//! [transport_only]

//! [arithmetic_element]
template <>
struct hvd::dtype_traits<mine::fixed_point> : hvd::arithmetic_element<mine::fixed_point> {
    static constexpr std::string_view name = "fixed_point";
};
//! [arithmetic_element]

//! [serializer]
template <>
struct hvd::serializer<mine::settings> {
    static void write(std::vector<std::byte>& buffer, const mine::settings& s) {
        hvd::serializer<std::uint64_t>::write(buffer, s.values.size());
        for (const auto& [key, value] : s.values) {
            hvd::serializer<std::string>::write(buffer, key);
            hvd::serializer<double>::write(buffer, value);
        }
    }
    static mine::settings read(std::span<const std::byte>& bytes) {
        mine::settings s;
        for (auto left = hvd::serializer<std::uint64_t>::read(bytes); left > 0; --left) {
            const auto key = hvd::serializer<std::string>::read(bytes);
            s.values[key] = hvd::serializer<double>::read(bytes);
        }
        return s;
    }
};
//! [serializer]

namespace {

using mine::fixed_point;
using mine::particle;
using mine::settings;
using mine::tensor;

void tensors(communicator& world) {
    const auto rank = float(world.rank());
    //! [use_tensor]
    tensor weights{std::vector<float>(12, rank), 3, 4};
    world.broadcast(weights, hvd::root{0});
    world.allreduce(weights, hvd::average);
    world.allreduce(hvd::fuse(weights, weights.cells.front()), hvd::max);
    //! [use_tensor]
    CHECK(weights.cells == std::vector<float>(12, 0));
}

void particles(communicator& world) {
    //! [use_particle]
    std::vector<particle> mine(std::size_t(world.rank()), particle{{0, 0, 0}, 2.0});
    const auto all = world.allgather(mine);  // rank r has r of them

    particle heaviest{{1, 2, 3}, double(world.rank())};
    world.allreduce(heaviest,
                    [](const particle& a, const particle& b) { return b.mass > a.mass ? b : a; });
    //! [use_particle]
    CHECK(all.values.size() == std::size_t(world.size() * (world.size() - 1) / 2));
    CHECK(heaviest.mass == world.size() - 1);
}

void numbers(communicator& world) {
    //! [use_fixed_point]
    std::vector<fixed_point> x(4, fixed_point{1 << 16});  // 1.0
    world.allreduce(x, hvd::sum);
    world.allreduce(x, hvd::max);
    //! [use_fixed_point]
    CHECK(x.front().bits == world.size() << 16);
}

void objects(communicator& world) {
    //! [use_settings]
    settings chosen;
    if (world.rank() == 0) chosen.values = {{"rate", 0.1}, {"momentum", 0.9}};
    world.broadcast_object(chosen, hvd::root{0});
    const std::vector<settings> everybodys = world.allgather_object(chosen);
    //! [use_settings]
    CHECK(chosen.values.at("rate") == 0.1);
    CHECK(everybodys == std::vector(std::size_t(world.size()), chosen));
}

void counts(communicator& world) {
    //! [scatter_with_counts]
    std::vector<std::size_t> counts;  // only the root's matter
    std::vector<int> samples;
    if (world.rank() == 0) {
        for (int r = 0; r < world.size(); ++r) counts.push_back(std::size_t(r) + 1);
        samples.resize(std::accumulate(counts.begin(), counts.end(), std::size_t(0)));
        std::iota(samples.begin(), samples.end(), 0);
    }
    const std::vector<int> mine = world.scatter(samples, counts, hvd::root{0});
    //! [scatter_with_counts]
    const int r = world.rank();
    REQUIRE(mine.size() == std::size_t(r) + 1);
    CHECK(mine.front() == r * (r + 1) / 2);
}

void operations(communicator& world) {
    std::vector<float> x(3, float(world.rank()));
    //! [custom]
    const float limit = 10;
    world.allreduce(x, hvd::custom([limit](float a, float b) { return std::min(a + b, limit); },
                                   hvd::commutative));
    //! [custom]
    CHECK(x.front() == std::min(limit, float(world.size() * (world.size() - 1) / 2)));
}

}  // namespace

TEST_CASE("a tensor of a user's engine is viewable with view_traits") {
    hvd_test::on_ranks(tensors);
}
TEST_CASE("a user's struct is moved, and reduced by a callable") { hvd_test::on_ranks(particles); }
TEST_CASE("a user's number is reduced by the built-in operations") { hvd_test::on_ranks(numbers); }
TEST_CASE("a user's object travels by its serializer") { hvd_test::on_ranks(objects); }
TEST_CASE("the root's counts say how many elements each rank gets") { hvd_test::on_ranks(counts); }
TEST_CASE("a user's operation may have captures") { hvd_test::on_ranks(operations); }
