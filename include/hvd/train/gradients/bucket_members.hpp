// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../agreement.hpp"
#include "options.hpp"
#include "registry.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

using member_lists = std::vector<std::vector<std::size_t>>;

// Returns the groups of the options, without parameters that do not travel. `grouped` marks the
// parameters in a group.
template <class Comm, class T, class Space>
member_lists group_members(Comm& comm, const parameter_list<T, Space>& parameters,
                           const optimizer_options& options, std::vector<char>& grouped) {
    member_lists all;
    for (const auto& group : options.groups) {
        all.emplace_back();
        for (const std::size_t i : group) {
            if (i >= parameters.size())
                refuse_call(comm, "a group names parameter ", i, "; there are ", parameters.size());
            if (std::exchange(grouped[i], char(1)))
                refuse_call(comm, "parameter ", i, " stands in groups more than once");
            if (parameters[i].travels()) all.back().push_back(i);
        }
        if (all.back().empty()) all.pop_back();
    }
    return all;
}

inline std::size_t lowest(const std::vector<std::size_t>& members) {
    std::size_t low = ~std::size_t(0);
    for (const std::size_t i : members) low = i < low ? i : low;
    return low;
}

inline void order_by_last_report(member_lists& all) {
    for (std::size_t k = 1; k < all.size(); ++k)
        for (std::size_t j = k; j > 0 && lowest(all[j - 1]) < lowest(all[j]); --j)
            std::swap(all[j - 1], all[j]);
}

// Returns the parameters of each bucket, in the order in which the buckets start. Reports go from
// the last parameter to the first. So a group takes the place of the gradient in it that is
// reported last.
//
// **Collective** if it refuses: its refusal comes before the other messages of the step.
template <class Comm, class T, class Space>
member_lists bucket_members(Comm& comm, const parameter_list<T, Space>& parameters,
                            const optimizer_options& options) {
    std::vector<char> grouped(parameters.size());
    member_lists all = group_members(comm, parameters, options, grouped);
    std::size_t room = 0;
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (grouped[i] || !parameters[i].travels()) continue;
        const std::size_t bytes = parameters[i].gradient.size() * sizeof(T);
        if (room < bytes || room == 0) {
            all.emplace_back();
            room = options.bucket_bytes;
        }
        all.back().push_back(i);
        room -= bytes < room ? bytes : room;
    }
    order_by_last_report(all);
    return all;
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
