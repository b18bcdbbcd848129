// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <hvd/protocol/packed_header.hpp>

#include <string>
#include <vector>

#include "hvd_test.hpp"

namespace packed_header_tests {

using namespace hvd::detail;

// Headers as they travel between nodes.

namespace {

call_header header(int root, std::string_view name, std::size_t dimensions,
                   std::string_view text = {}) {
    call_header h;
    h.kind = collective::broadcast;
    h.root = root;
    h.count = 12345;
    h.prescale = 0.25;
    h.plan = 7;
    h.content = 99;
    h.dimensions = std::uint8_t(dimensions);
    for (std::size_t d = 0; d < dimensions; ++d) h.extents[d] = 1000 * std::uint64_t(root) + d;
    store(h.name, name);
    store(h.type, "modular/4");
    if (!text.empty()) h.refuse(text);
    return h;
}

void check_equal(const call_header& a, const call_header& b) {
    CHECK(a.kind == b.kind);
    CHECK(a.refused == b.refused);
    CHECK(a.root == b.root);
    CHECK(a.count == b.count);
    CHECK(a.prescale == b.prescale);
    CHECK(a.postscale == b.postscale);
    CHECK(a.plan == b.plan);
    CHECK(a.content == b.content);
    REQUIRE(a.dimensions == b.dimensions);
    for (std::size_t d = 0; d < a.dimensions; ++d) CHECK(a.extents[d] == b.extents[d]);
    CHECK(std::string(a.name) == b.name);
    CHECK(std::string(a.type) == b.type);
    CHECK(std::string(a.text) == b.text);
}

std::size_t check_travel(const std::vector<call_header>& sent) {
    std::vector<std::byte> bytes(sent.size() * most_packed_header);
    const int n = int(sent.size());
    const std::byte* const end = pack_headers(
        n, bytes.data(), [&](int i) -> const call_header& { return sent[std::size_t(i)]; });
    // The place has another header before.
    std::vector<call_header> got(sent.size(), header(77, std::string(47, 'x'), 8, "old"));
    CHECK(unpack_headers(n, bytes.data(), end,
                         [&](int i) -> call_header& { return got[std::size_t(i)]; }) == end);
    for (std::size_t i = 0; i < sent.size(); ++i) check_equal(got[i], sent[i]);
    return std::size_t(end - bytes.data());
}

}  // namespace

TEST_CASE("headers arrive as they were sent") {
    check_travel({call_header{}});
    check_travel({header(1, "conv1", 2)});
    check_travel({header(1, "", 0), header(2, "a", 8), header(2, "a", 8), header(2, "b", 8)});
    check_travel({header(2, "a", 8), header(2, "a", 7), header(2, "a", 8, "because")});
}

TEST_CASE("the longest header has the room that is kept for it") {
    const call_header longest =
        header(3, std::string(100, 'n'), max_dimensions, std::string(400, 't'));
    call_header other = longest;
    other.count = UINT64_MAX;
    other.postscale = 0.5;
    store(other.type, std::string(100, 'm'));
    other.root = 4;
    call_header third = other;
    third.root = 5;
    CHECK(check_travel({other, third, other}) <= 3 * most_packed_header);
    CHECK(check_travel({other}) == most_packed_header);
}

TEST_CASE("most headers are short, and one that equals the one before it is a byte") {
    const std::size_t one = check_travel({header(1, "", 1)});
    CHECK(one < 100);
    call_header usual;
    for (const std::uint64_t count : {0, 1, 127, 128, 1 << 14, 1 << 30}) {
        usual.count = usual.extents[0] = count;
        usual.dimensions = 1;
        CHECK(check_travel({usual}) <= 23);
    }
    CHECK(check_travel({header(1, "", 1), header(1, "", 1), header(1, "", 1)}) == one + 2);
}

TEST_CASE("headers that end early or have a number of no kind are refused") {
    const std::vector<call_header> sent{header(1, "conv1", 2), header(1, "conv1", 2),
                                        header(2, "b", 8, "because")};
    std::vector<std::byte> bytes(sent.size() * most_packed_header);
    const std::byte* const end = pack_headers(
        3, bytes.data(), [&](int i) -> const call_header& { return sent[std::size_t(i)]; });
    std::vector<call_header> got(3);
    const auto read = [&](const std::byte* from, const std::byte* to) {
        return unpack_headers(3, from, to,
                              [&](int i) -> call_header& { return got[std::size_t(i)]; });
    };
    // Memory of its own for each, so that a sanitizer sees what is read beside it.
    for (std::size_t n = 0; n < std::size_t(end - bytes.data()); ++n) {
        const std::vector<std::byte> cut(bytes.data(), bytes.data() + n);
        CHECK(read(cut.data(), cut.data() + n) == nullptr);
    }
    for (std::size_t at = 0; at < std::size_t(end - bytes.data()); ++at) {
        for (const int value : {0, 1, 2, 9, 12, 17, 127, 128, 255}) {
            std::vector<std::byte> changed(static_cast<const std::byte*>(bytes.data()), end);
            changed[at] = std::byte(value);
            const std::byte* const to = read(changed.data(), changed.data() + changed.size());
            if (to == nullptr) continue;
            CHECK(to <= changed.data() + changed.size());
            for (const call_header& h : got) {
                REQUIRE(is_header(h));
                for (int f = 0; f <= int(field::none); ++f) (void)print_field(h, field(f));
            }
        }
    }
    bytes[0] = std::byte(1);  // the first one has none before it
    CHECK(read(bytes.data(), end) == nullptr);
}

}  // namespace packed_header_tests
