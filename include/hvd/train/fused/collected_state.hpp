// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "../../comm/plan.hpp"
#include "sliced_state.hpp"

namespace hvd::inline v0::detail {

// The numbers of this rank's elements: for each run its place and size, the number of kinds, and
// the numbers of each kind.
template <class T>
std::vector<std::byte> packed_state(const sliced_state<T>& state) {
    std::vector<std::byte> bytes;
    const auto add = [&](const auto* from, std::size_t n) {
        const auto of_all = std::as_bytes(std::span(from, n));
        bytes.insert(bytes.end(), of_all.begin(), of_all.end());
    };
    const std::uint64_t kinds = std::uint64_t(std::ranges::count_if(
        state.numbers(), [](const auto& of_kind) { return !of_kind.empty(); }));
    std::size_t done = 0;
    for (const auto& run : state.runs()) {
        add(&run, 1);
        add(&kinds, 1);
        for (const auto& numbers : state.numbers())
            if (!numbers.empty()) add(numbers.data() + done, std::size_t(run.count));
        done += std::size_t(run.count);
    }
    return bytes;
}

// Puts the packed numbers of all ranks to their places of so many elements. Kinds that no rank has
// stay empty. It returns the number of elements that were packed, each counted once.
template <class T>
std::size_t unpack_state(std::span<const std::byte> bytes, std::size_t all,
                         state_numbers<T>& whole) {
    const auto take = [&bytes](auto* to, std::size_t n) {
        std::memcpy(to, bytes.data(), n * sizeof *to);
        bytes = bytes.subspan(n * sizeof *to);
    };
    std::vector<typename sliced_state<T>::run> runs;
    while (!bytes.empty()) {
        auto& run = runs.emplace_back();
        std::uint64_t kinds = 0;
        take(&run, 1);
        take(&kinds, 1);
        for (std::size_t k = 0; k < kinds; ++k) {
            whole[k].resize(all);
            take(whole[k].data() + run.place, std::size_t(run.count));
        }
    }
    std::ranges::sort(runs, {}, &sliced_state<T>::run::place);
    std::size_t elements = 0, end = 0;
    for (const auto& run : runs) {
        const std::size_t first = std::max(end, std::size_t(run.place));
        end = std::max(end, std::size_t(run.place + run.count));
        elements += end - std::min(first, end);
    }
    return elements;
}

// The ranks of a plan compare how far a step is that they begin to run by it.
struct step_standing {
    std::uint64_t steps;
    std::size_t elements, held;  // of the parameters, and those whose state this rank has
    bool whole;                  // it has that of all of them, as after loading a checkpoint
};

// **Collective**. The standing of all ranks, by rank.
inline std::vector<step_standing> standing_of_all(ranks_of_plan& ranks, const step_standing& mine) {
    const std::int64_t numbers[] = {std::int64_t(mine.steps), std::int64_t(mine.elements),
                                    std::int64_t(mine.held), mine.whole};
    const auto all = numbers_of_all(ranks.channel(), "run_and_apply",
                                    slice<const std::int64_t>(numbers, 4), ranks.limit());
    std::vector<step_standing> standing;
    for (std::size_t r = 0; r < all.size(); r += 4)
        standing.push_back({std::uint64_t(all[r]), std::size_t(all[r + 1]), std::size_t(all[r + 2]),
                            all[r + 3] != 0});
    const auto require = [&](const char* name, auto of_rank) {
        table<message> texts(standing.size());
        for (std::size_t r = 0; r < standing.size(); ++r) texts[r] = text(of_rank(standing[r]));
        require_equal(ranks.channel().rank(), "run_and_apply", name, texts);
    };
    require("steps", [](const step_standing& s) { return s.steps; });
    require("elements", [](const step_standing& s) { return s.elements; });
    require("loaded state", [](const step_standing& s) { return s.whole; });
    return standing;
}

// **Collective**. Brings the state of all ranks' slices together, on each of them. Without a state
// anywhere there is nothing to bring.
template <class T>
void collect_state(ranks_of_plan& ranks, const step_standing& mine, sliced_state<T>& state) {
    const std::vector<step_standing> all = standing_of_all(ranks, mine);
    if (mine.whole) return state.cut_again();
    const auto has_all = [&](const step_standing& s) { return s.held == mine.elements; };
    const bool none = std::ranges::all_of(all, [](const auto& s) { return s.held == 0; });
    if (none || mine.steps == 0) return state.take_whole({});
    // One rank of several that have everything is enough.
    const std::size_t giver = std::size_t(std::ranges::find_if(all, has_all) - all.begin());
    const bool gives = giver == all.size() || giver == std::size_t(ranks.channel().rank());
    const auto packed = run_on_all(ranks.channel(), "run_and_apply", ranks.limit(), [&] {
        return gives ? packed_state(state) : std::vector<std::byte>();
    });
    const gathered<std::byte> bytes =
        ranks.gather(slice<const std::byte>(packed.data(), packed.size()));
    state.take_whole(run_on_all(ranks.channel(), "run_and_apply", ranks.limit(), [&] {
        state_numbers<T> whole;
        const std::size_t found = unpack_state<T>(bytes.values, mine.elements, whole);
        if (found != mine.elements && !whole[0].empty())
            throw usage_error(
                -1, text("hvd: run_and_apply: the step was run by another plan before, and the ",
                         "ranks of this plan have the optimizer's state of ", found,
                         " elements of ", mine.elements,
                         ": go on with a plan of all ranks that have it, or from a checkpoint"));
        return whole;
    }));
}

}  // namespace hvd::inline v0::detail
