// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "../../core/lean/order.hpp"
#include "../../core/tuning.hpp"
#include "../agreement.hpp"
#include "options.hpp"
#include "registry.hpp"
#include "report_order.hpp"

namespace hvd::inline v0::detail {

using member_lists = std::vector<std::vector<std::size_t>>;

// Calls `refuse` with a text for an index of the options that names no parameter. `grouped` has a
// zero for each parameter.
template <class Refuse>
[[gnu::cold]] void check_members(std::vector<char> grouped, const optimizer_options& options,
                                 Refuse refuse) {
    const std::size_t parameters = grouped.size();
    for (const auto& group : options.groups)
        for (const std::size_t i : group) {
            if (i >= parameters) refuse("a group names parameter ", i, "; there are ", parameters);
            if (std::exchange(grouped[i], char(1)))
                refuse("parameter ", i, " stands in groups more than once");
        }
    for (const std::size_t i : options.may_be_unreported)
        if (i >= parameters)
            refuse("`may_be_unreported` names parameter ", i, "; there are ", parameters);
}

// Returns the groups of the options, without parameters that do not travel. `grouped` marks the
// parameters in a group.
[[gnu::cold]] inline member_lists group_members(const parameter_list& parameters,
                                                const optimizer_options& options,
                                                std::vector<char>& grouped) {
    member_lists all;
    for (const auto& group : options.groups) {
        all.emplace_back();
        for (const std::size_t i : group) {
            grouped[i] = 1;
            if (parameters[i].travels()) all.back().push_back(i);
        }
        if (all.back().empty()) all.pop_back();
    }
    return all;
}

// Fills buckets with the parameters that are in no group, in the order of their reports. Those that
// may stay unreported have buckets of their own, so that they stop no others.
[[gnu::cold]] inline void fill_buckets(member_lists& all, const parameter_list& parameters,
                                       const std::vector<char>& grouped, std::size_t bucket_bytes,
                                       const expected_reports& expected) {
    std::size_t room = 0;
    for (std::size_t k = 0; k < expected.order.size(); ++k) {
        if (k == expected.reported) room = 0;
        const std::size_t i = expected.order[k];
        if (grouped[i] || !parameters[i].travels()) continue;
        const std::size_t bytes = parameters[i].gradient.bytes();
        if (room < bytes || room == 0) {
            all.emplace_back();
            room = bucket_bytes;
        }
        all.back().push_back(i);
        room -= bytes < room ? bytes : room;
    }
}

// A bucket takes the place of the gradient in it that is reported last.
[[gnu::cold]] inline void order_by_last_report(member_lists& all,
                                               const std::vector<std::size_t>& order) {
    std::vector<std::int64_t> place(order.size()), last(all.size());
    for (std::size_t k = 0; k < order.size(); ++k) place[order[k]] = std::int64_t(k);
    for (std::size_t b = 0; b < all.size(); ++b)
        for (const std::size_t i : all[b])
            if (place[i] > last[b]) last[b] = place[i];
    member_lists ordered(all.size());
    std::size_t next = 0;
    for (const std::size_t b : ascending(last)) ordered[next++].swap(all[b]);
    all.swap(ordered);
}

// Sorts members from the last to the first.
[[gnu::cold]] inline void reverse_order(std::vector<std::size_t>& members) {
    std::vector<std::int64_t> keys;
    for (const std::size_t i : members) keys.push_back(-std::int64_t(i));
    members.clear();
    for (const std::size_t k : ascending(keys)) members.push_back(std::size_t(-keys[k]));
}

// Returns the parameters of each bucket, in the order in which the buckets start. With Adasum no
// gradient travels.
[[gnu::cold]] inline member_lists bucket_members(const parameter_list& parameters,
                                                 const optimizer_options& options,
                                                 const expected_reports& expected) {
    if (options.op == hvd::adasum) return {};
    std::vector<char> grouped(parameters.size());
    member_lists all = group_members(parameters, options, grouped);
    const std::size_t groups = all.size();
    fill_buckets(all, parameters, grouped, options.bucket_bytes, expected);
    // Reports that change places inside a bucket change nothing.
    for (std::size_t b = groups; b < all.size(); ++b) reverse_order(all[b]);
    order_by_last_report(all, expected.order);
    return all;
}

// Returns the bucket that takes a question along: the smallest. Several gradients, and those of a
// codec, are copied side by side anyway. One by itself would be copied for the question, which only
// a short one is. It returns the number of buckets if none takes it.
[[gnu::cold]] inline std::size_t bucket_with_question(const member_lists& all,
                                                      const parameter_list& parameters,
                                                      const optimizer_options& options) {
    constexpr std::size_t is_short = 64 * tuning::KiB;
    std::size_t chosen = all.size(), fewest = std::size_t(-1);
    for (std::size_t b = 0; b < all.size(); ++b) {
        std::size_t bytes = 0;
        for (const std::size_t i : all[b]) bytes += parameters[i].gradient.bytes();
        const bool is_copied = all[b].size() > 1 || options.codec != hvd::codec::none;
        if (bytes >= fewest || (!is_copied && bytes > is_short)) continue;
        chosen = b;
        fewest = bytes;
    }
    return chosen;
}

}  // namespace hvd::inline v0::detail
