// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hvd/protocol/comparison.hpp>

namespace digest_tests {

// Ranks of one node compare digests, and look at the headers only where these differ. So a
// difference that an error would name must show in the digest.

namespace {

using namespace hvd::detail;

call_header a_header() {
    call_header h;
    h.kind = collective::allreduce;
    h.id = hvd::dtype::float32;
    h.dimensions = 2;
    h.count = 12;
    h.extents[0] = 3;
    h.extents[1] = 4;
    h.compares_names = true;
    store(h.name, "loss");
    return h;
}

using header_change = std::function<void(call_header&)>;

const std::vector<std::pair<field, header_change>> changes = {
    {field::collective, [](call_header& h) { h.kind = collective::reduce; }},
    {field::collective, [](call_header& h) { h.plan = 1; }},
    {field::collective, [](call_header& h) { h.making_plan = true; }},
    {field::collective, [](call_header& h) { h.fused = true; }},
    {field::element_type, [](call_header& h) { h.id = hvd::dtype::int32; }},
    {field::element_type, [](call_header& h) { store(h.type, "point/8"); }},
    {field::operation, [](call_header& h) { h.op = 1; }},
    {field::rounding, [](call_header& h) { h.mode = 2; }},
    {field::shape, [](call_header& h) { h.dimensions = 1; }},
    {field::shape, [](call_header& h) { std::swap(h.extents[0], h.extents[1]); }},
    {field::shape, [](call_header& h) { h.extents[1] = std::uint64_t(1) << 63; }},
    {field::count, [](call_header& h) { h.count = 13; }},
    {field::root, [](call_header& h) { h.root = 0; }},
    {field::prescale, [](call_header& h) { h.prescale = 2; }},
    {field::postscale, [](call_header& h) { h.postscale = 0.5; }},
    {field::name, [](call_header& h) { store(h.name, "accuracy"); }},
    {field::content, [](call_header& h) { h.content = 1; }},
};

}  // namespace

TEST_CASE("each field that ranks compare changes the digest of a header") {
    const call_digest before = digest_of(a_header());
    CHECK(digest_of(a_header()) == before);
    CHECK((before.signs & call_digest::open) == 0);
    for (const auto& [different, change] : changes) {
        CAPTURE(field_names[int(different)]);
        call_header h = a_header();
        change(h);
        CHECK(first_difference(h, a_header()) == different);
        CHECK_FALSE(digest_of(h) == before);
    }
}

TEST_CASE("two changes at once do not cancel each other") {
    for (const auto& [first, change] : changes)
        for (const auto& [second, other_change] : changes) {
            call_header h = a_header(), other = a_header();
            change(h);
            other_change(other);
            if (first_difference(h, other) == field::none) continue;
            CAPTURE(field_names[int(first)]);
            CAPTURE(field_names[int(second)]);
            CHECK_FALSE(digest_of(h) == digest_of(other));
            other_change(h);
            if (first_difference(h, a_header()) != field::none)
                CHECK_FALSE(digest_of(h) == digest_of(a_header()));
        }
}

TEST_CASE("names that nobody compares, and what is left in unused memory, are not in the digest") {
    call_header h = a_header(), other = a_header();
    h.compares_names = other.compares_names = false;
    store(other.name, "accuracy");
    for (std::size_t d = h.dimensions; d < max_dimensions; ++d) {
        h.extents[d] = 7;
        other.extents[d] = 8;
    }
    h.type[5] = 'x';
    other.type[5] = 'y';
    CHECK(digest_of(h) == digest_of(other));
    h.kind = other.kind = collective::agree;  // known by their names
    CHECK_FALSE(digest_of(h) == digest_of(other));
}

TEST_CASE("a header that refuses its call is looked at, and NaNs as scales are told apart") {
    call_header h = a_header();
    h.refuse("no");
    CHECK((digest_of(h).signs & call_digest::open) != 0);
    for (double call_header::* scale : {&call_header::prescale, &call_header::postscale}) {
        h = a_header();
        h.*scale = std::numeric_limits<double>::quiet_NaN();
        call_header other = h;
        CHECK(digest_of(h) == digest_of(other));
        other.*scale = -(h.*scale);  // the fields agree, and the headers are looked at
        CHECK_FALSE(digest_of(h) == digest_of(other));
        CHECK(first_difference(h, other) == field::none);
    }
}

}  // namespace digest_tests
