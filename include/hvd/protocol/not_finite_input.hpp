// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <charconv>
#include <string_view>

#include "../core/error.hpp"
#include "../kernel/not_finite.hpp"
#include "call_header.hpp"

namespace hvd::inline v0::detail {

// A rank that gives a NaN or an infinity refuses the call by a header that says so. Its text is
// "nan at element 17", and has the words for the tensor behind that if there are several:
// "-inf at element 0 of gradient 'w1'".
struct not_finite_input {
    bad_value value = bad_value::nan;
    std::size_t index = 0;
    std::string_view tensor{};
};

inline constexpr std::string_view at_element = " at element ", of_tensor = " of ";

[[gnu::cold]] inline void refuse_not_finite(call_header& h, const not_finite_input& input) {
    if (h.refused) return;
    h.refused = h.not_finite = true;
    store_parts(h.text, {bad_value_names[std::size_t(input.value)], at_element, input.index,
                         input.tensor.empty() ? "" : of_tensor, input.tensor});
}

// The call is made again, as a plan is, with another input.
[[gnu::cold]] inline void take_back_not_finite(call_header& h) {
    if (!h.not_finite) return;
    h.refused = h.not_finite = false;
    h.text[0] = 0;
}

// Reads the text of such a header. It returns false for one that no rank writes.
[[gnu::cold]] inline bool read_not_finite(std::string_view text, not_finite_input& input) {
    const std::size_t space = text.find(' ');
    const std::string_view value = text.substr(0, space);
    bool known = false;
    for (std::size_t i = 0; i < std::size(bad_value_names); ++i)
        if (value == bad_value_names[i]) {
            input.value = bad_value(i);
            known = true;
        }
    if (!known || space == text.npos || !text.substr(space).starts_with(at_element)) return false;
    text.remove_prefix(space + at_element.size());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), input.index);
    if (error != std::errc()) return false;
    text.remove_prefix(std::size_t(end - text.data()));
    if (text.empty()) return true;
    if (!text.starts_with(of_tensor)) return false;
    input.tensor = text.substr(of_tensor.size());
    return true;
}

constexpr double value_of(bad_value v) {
    constexpr std::uint64_t infinity = infinity_bits<double>, sign = std::uint64_t(1) << 63;
    return std::bit_cast<double>(v == bad_value::nan        ? infinity | infinity >> 1
                                 : v == bad_value::infinity ? infinity
                                                            : infinity | sign);
}

// Throws what the header of rank `source` says, with the same words on every rank.
[[gnu::cold, noreturn]] inline void throw_not_finite(int me, int source, const call_header& mine,
                                                     const call_header& its) {
    const std::string_view said(its.text);
    not_finite_input input;
    if (!read_not_finite(said, input))
        throw peer_error(
            me,
            text("hvd: ", mine.label(), " on rank ", me, ": rank ", source, " refused it: ", said),
            {source});
    throw not_finite_error(me,
                           text("hvd: ", mine.label(), " on rank ", me, ": the input of rank ",
                                source, " is not finite: ", said),
                           source, input.tensor, input.index, value_of(input.value));
}

}  // namespace hvd::inline v0::detail
