// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include <hvd/fusion/layout.hpp>

namespace packing_tests {

// Packing of strided tensors, and the layout of fused lists in one buffer.

namespace {

using namespace hvd::detail;

// Packs a view and returns the elements in the packed order.
template <class View>
auto packed(const View& view) {
    std::vector<typename View::value_type> result(view.size());
    pack(erase(view), reinterpret_cast<std::byte*>(result.data()));
    return result;
}

std::vector<int> counting(std::size_t n) {
    std::vector<int> values(n);
    std::iota(values.begin(), values.end(), 0);
    return values;
}

// Copies bytes between blocks at these offsets into a page. It returns true if exactly those bytes
// arrived.
bool copies(std::size_t bytes, std::size_t to, std::size_t from) {
    constexpr std::size_t page = 4096;
    const std::byte untouched{0xff};
    alignas(page) static std::byte source[3 * page], target[3 * page];
    for (std::size_t i = 0; i < sizeof source; ++i) source[i] = std::byte(i % 251);
    std::fill(std::begin(target), std::end(target), untouched);
    copy_bytes(target + to, source + from, bytes);
    for (std::size_t i = 0; i < sizeof target; ++i) {
        const bool inside = i >= to && i < to + bytes;
        if (target[i] != (inside ? source[from + i - to] : untouched)) return false;
    }
    return true;
}

template <class Fused>
struct placed {
    std::vector<tensor_ref> tensors;
    std::vector<std::size_t> offsets;
    fused_layout layout{tensors, offsets};
    std::array<fused_group, fused_types_t<Fused>::size> groups;

    explicit placed(const Fused& list) : groups(lay_out(list, layout)) {}
};

}  // namespace

TEST_CASE("a dense tensor is packed as it lies") {
    auto values = counting(24);
    CHECK(packed(hvd::view(values.data(), hvd::shape(2, 3, 4))) == values);
    CHECK(erase(hvd::view(values.data(), hvd::shape(2, 3, 4))).dense);
    CHECK(erase(hvd::view(values.data(), hvd::shape(6, 4), hvd::strides(4, 1))).dense);
    CHECK(erase(hvd::view(values.data(), hvd::shape(1, 4), hvd::strides(99, 1)))
              .dense);  // a single row has no next one
}

TEST_CASE("strided tensors are packed row by row") {
    auto values = counting(24);
    CHECK(packed(hvd::view(values.data() + 1, hvd::shape(4), hvd::strides(6))) ==
          std::vector<int>{1, 7, 13, 19});
    CHECK(packed(hvd::view(values.data(), hvd::shape(2, 3), hvd::strides(6, 1))) ==
          std::vector<int>{0, 1, 2, 6, 7, 8});
    CHECK(packed(hvd::view(values.data(), hvd::shape(3, 2), hvd::strides(1, 3))) ==
          std::vector<int>{0, 3, 1, 4, 2, 5});
    CHECK(packed(hvd::view(values.data() + 3, hvd::shape(4), hvd::strides(-1))) ==
          std::vector<int>{3, 2, 1, 0});
    CHECK(packed(hvd::view(values.data(), hvd::shape(2, 2, 2), hvd::strides(12, 4, 2))) ==
          std::vector<int>{0, 2, 4, 6, 12, 14, 16, 18});
    CHECK(packed(hvd::view(values.data() + 5, hvd::shape(3), hvd::strides(0))) ==
          std::vector<int>{5, 5, 5});
    CHECK(!erase(hvd::view(values.data(), hvd::shape(4), hvd::strides(6))).dense);
}

TEST_CASE("empty strided tensors touch nothing") {
    int* const nothing = nullptr;
    CHECK(packed(hvd::view(nothing, hvd::shape(0), hvd::strides(5))).empty());
    CHECK(packed(hvd::view(nothing, hvd::shape(3, 0), hvd::strides(5, 1))).empty());
    CHECK(packed(hvd::view(nothing, hvd::shape(0, 3), hvd::strides(5, 1))).empty());
}

TEST_CASE("unpacking writes the packed elements back, and nothing else") {
    const auto original = counting(100);
    for (const auto& [shape, steps] : {std::pair{hvd::shape(3, 4), hvd::strides(20, 5)},
                                       {hvd::shape(4, 3), hvd::strides(-4, 1)},
                                       {hvd::shape(5, 2), hvd::strides(2, 31)}}) {
        auto values = original;
        const auto view = hvd::view(values.data() + 12, shape, steps);
        auto taken = packed(view);
        for (int& x : taken) x += 1000;
        unpack(erase(view), reinterpret_cast<const std::byte*>(taken.data()));
        std::size_t changed = 0;
        for (std::size_t i = 0; i < values.size(); ++i) changed += values[i] != original[i] ? 1 : 0;
        CHECK(changed == view.size());
        CHECK(packed(view) == taken);
    }
}

TEST_CASE("a list made at compile time keeps the order of its tensors") {
    std::vector<float> a(3), b(5);
    double c = 0;
    const auto list = hvd::fuse(a, c, b);
    std::vector<const void*> seen;
    list.for_each([&](const auto& view) { seen.push_back(view.data()); });
    CHECK(list.count() == 3);
    CHECK(seen == std::vector<const void*>{a.data(), &c, b.data()});
}

TEST_CASE("a list made at run time, and a mixed one, keep their order") {
    std::vector<float> a(3), b(5), d(1);
    double c = 0;
    std::vector<hvd::tensor_view<float>> views = {hvd::view(a.data(), 3), hvd::view(b.data(), 5)};
    CHECK(hvd::fuse(views).count() == 2);
    const auto mixed = hvd::fuse(c, views, d);
    std::vector<const void*> seen;
    mixed.for_each([&](const auto& view) { seen.push_back(view.data()); });
    CHECK(mixed.count() == 4);
    CHECK(seen == std::vector<const void*>{&c, a.data(), b.data(), d.data()});
    views.clear();
    CHECK(hvd::fuse(views).count() == 0);
}

TEST_CASE("each element type stands once, in the order in which they come") {
    std::vector<float> a, b;
    std::vector<double> c;
    using types = fused_types_t<decltype(hvd::fuse(a, c, b))>;
    CHECK(std::is_same_v<types, type_list<float, double>>);
}

TEST_CASE("a layout groups by element type, without gaps inside, each group on a cache line") {
    std::vector<float> a(3), b(5), empty;
    std::vector<std::int8_t> c(7);
    std::vector<double> d(2);
    const auto list = hvd::fuse(a, c, b, d, empty);
    const placed p(list);
    CHECK(p.groups[0].offset == 0);
    CHECK(p.groups[0].count == 8);  // a, b and nothing
    CHECK(p.groups[1].offset == 64);
    CHECK(p.groups[1].count == 7);
    CHECK(p.groups[2].offset == 128);
    CHECK(p.groups[2].count == 2);
    CHECK(p.layout.bytes == 128 + 16);
    CHECK(p.offsets == std::vector<std::size_t>{0, 12, 32, 64, 128});
    CHECK(p.tensors[1].data == reinterpret_cast<std::byte*>(b.data()));
    CHECK(p.tensors[3].element_bytes == 1);
}

TEST_CASE("bytes are copied wherever in their pages they lie, and no others") {
    for (const std::size_t bytes : {0, 1, 63, 64, 2047, 2048, 2049, 2111, 2112, 4097, 8000})
        for (const std::size_t to : {0, 1, 16, 4080})
            for (const std::size_t from : {0, 1, 16, 4080}) {
                CAPTURE(bytes);
                CAPTURE(to);
                CAPTURE(from);
                CHECK(copies(bytes, to, from));
            }
    copy_bytes(nullptr, nullptr, 0);
}

TEST_CASE("a layout of nothing has no bytes") {
    std::vector<float> empty;
    const placed p(hvd::fuse(empty));
    CHECK(p.layout.bytes == 0);
    CHECK(p.groups[0].count == 0);
}

}  // namespace packing_tests
