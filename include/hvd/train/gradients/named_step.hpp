// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "../../platform/thread.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The state of a step whose gradients are matched by name. Several threads report them.
struct named_step {
    // For the reports, which several threads make.
    mutex reporting;
    // Why this rank can't take the step. The other ranks learn it at its end.
    std::string failure;
    // A hash of everything that the ranks must have alike in the step.
    std::optional<std::uint64_t> content;

    // The first failure counts.
    void fail(std::string_view why) {
        constexpr std::string_view hvd = "hvd: ";  // the error of the step adds it again
        if (why.substr(0, hvd.size()) == hvd) why.remove_prefix(hvd.size());
        if (failure.empty()) failure = why.empty() ? "unknown reason" : why;
    }
};

// Lists of names travel as one text, in which a NUL ends each name.
template <class F>
void for_each_name(std::string_view list, F f) {
    for (std::size_t end; (end = list.find('\0')) != list.npos; list.remove_prefix(end + 1))
        f(list.substr(0, end));
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
