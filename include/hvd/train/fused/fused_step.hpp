// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "../../fusion/layout.hpp"
#include "../../kernel/update.hpp"
#include "../../transport/operation.hpp"
#include "../optimizer/optimizers.hpp"
#include "collected_state.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class T>
constexpr const char* rule_name(const optimizers::sgd<T>&) {
    return "sgd";
}
template <class T, bool Decoupled>
constexpr const char* rule_name(const optimizers::adam<T, Decoupled>&) {
    return Decoupled ? "adamw" : "adam";
}

// The work of a step, for the ranks to compare: a hash, and for people the lines of
// check_content_lines.
class said_step {
public:
    template <class O>
    void take(O& optimizer, std::uint64_t steps) {
        hash numbers;
        optimizer.for_each_number([&](const char*, auto number) { numbers.add(double(number)); });
        if (length_ == 0 || numbers.value() != numbers_) describe(optimizer);
        numbers_ = numbers.value();
        content_ = hash().add(rule_name(optimizer)).add(numbers_).add(steps).value();
        // the rest of the text has room for all digits
        end_ = std::to_chars(text_ + length_, text_ + sizeof text_, steps).ptr;
    }

    std::uint64_t content() const { return content_; }
    std::string_view lines() const { return {text_, std::size_t(end_ - text_)}; }

private:
    template <class O>
    [[gnu::cold]] void describe(O& optimizer) {
        message all = text("call run_and_apply\noptimizer ", rule_name(optimizer));
        optimizer.for_each_number(
            [&](const char* name, auto number) { all += text("\n", name, " ", number); });
        all += "\nsteps ";
        store(text_, all);
        length_ = std::string_view(text_).size();
    }

    std::uint64_t numbers_ = 0, content_ = 0;
    std::size_t length_ = 0;
    char text_[sizeof call_header::text + 24];
    const char* end_ = text_;
};

// Other optimizers that derive from these step otherwise.
template <class O>
constexpr bool is_fusable = false;
template <class T>
constexpr bool is_fusable<optimizers::sgd<T>> = true;
template <class T, bool Decoupled>
constexpr bool is_fusable<optimizers::adam<T, Decoupled>> = true;

}  // namespace detail

/// Parameters and their optimizer, which a plan of the gradients steps in one pass: see
/// `plan::run_and_apply`.
///
/// `Optimizer` is `optimizers::sgd`, `adam` or `adamw`. Its slots stay empty: the state is
/// here, on each rank for its own slices only, and the first run makes it. Rates and other numbers
/// may change between runs through `optimizer()`, on all ranks alike; they are compared.
/// `save_checkpoint(path, comm, step, progress)` saves parameters and state by the parameters'
/// names, and any number of ranks loads them.
/// Plans may be made anew, and several may run it by turns. Its state has the order of a plan's
/// slices: when another plan runs it, the ranks of that plan bring the state together first. So
/// each change of plans costs a message as large as the state.
/// **Lifetime**: the parameters outlive it and do not move.
/// @snippet tests/train/snippets.cpp run_and_apply
template <class Optimizer>
class fused_step {
    static_assert(detail::is_fusable<Optimizer>,
                  "hvd: the optimizer of a fused_step is hvd::optimizers::sgd, adam or adamw");

public:
    using value_type = typename Optimizer::value_type;

    /// Takes parameters as `hvd::fuse(…)` gives them, all of the optimizer's element type (float or
    /// double). Their names are for checkpoints: without any they are "0", "1", ….
    /// @throws hvd::usage_error for a parameter with gaps, a name that occurs twice, and other than
    /// one name for each parameter.
    template <class... Parts>
    fused_step(const fused<Parts...>& parameters, Optimizer optimizer,
               std::vector<std::string> names = {})
        : optimizer_(std::move(optimizer)), names_(std::move(names)) {
        static_assert(
            std::is_same_v<detail::fused_types_t<fused<Parts...>>, detail::type_list<value_type>>,
            "hvd: the parameters of a fused_step are all of the optimizer's element type");
        parameters.for_each([&](const auto& view) {
            targets_.push_back(detail::erase(view));
            if (!targets_.back().dense)
                throw usage_error(-1, detail::text("hvd: fused_step: parameter ",
                                                   targets_.size() - 1, " has gaps"));
        });
        take_names();
        update_.targets = targets_;
        update_.id = dtype_traits<value_type>::id;
        update_.apply = &apply;
        update_.self = this;
    }

    fused_step(const fused_step&) = delete;
    fused_step& operator=(const fused_step&) = delete;

    /// Rates, weight decay and other numbers for the next run.
    Optimizer& optimizer() noexcept { return optimizer_; }

    /// The number of steps so far, the same for all parameters. A checkpoint has that of Adam; with
    /// `sgd` it goes on from the step of the loaded progress.
    std::uint64_t steps() const noexcept { return steps_; }

    /// Bytes of optimizer state on this rank.
    std::size_t state_bytes() const noexcept { return state_.bytes(); }

    /// For plans: begins the next step. The step counts only after end(), so a step on which the
    /// ranks could not agree does not count. **Collective** if another plan ran the last one.
    const detail::fused_update& begin(detail::ranks_of_plan& ranks) {
        if (!ranks.has(layout_)) enter(ranks);
        rule_.emplace(optimizer_.rule(steps_));
        said_.take(optimizer_, steps_);
        update_.content = said_.content();
        update_.said = said_.lines();
        state_.shrink();
        return update_;
    }
    /// For plans: the step is complete.
    void end() {
        ++steps_;
        state_.forget_whole();
    }

    /// For checkpoints: the parameters, their names, and the state of this rank's slices.
    std::span<const detail::tensor_ref> targets() const noexcept { return targets_; }
    const std::vector<std::string>& names() const noexcept { return names_; }
    const detail::sliced_state<value_type>& state() const noexcept { return state_; }
    /// For checkpoints: goes on with the numbers of an optimizer and the state of all elements,
    /// which is the same on all ranks.
    void take(Optimizer optimizer, std::uint64_t steps, detail::state_numbers<value_type> state) {
        optimizer_ = std::move(optimizer);
        steps_ = steps;
        state_.take_whole(std::move(state));
    }

private:
    using rule = decltype(std::declval<const Optimizer&>().rule(0));

    static void apply(void* self, std::size_t done, std::size_t place, std::size_t bytes,
                      std::byte* values, const std::byte* current) {
        static_cast<fused_step*>(self)->apply_to(
            done / sizeof(value_type), place / sizeof(value_type), bytes / sizeof(value_type),
            reinterpret_cast<value_type*>(values), reinterpret_cast<const value_type*>(current));
    }

    void apply_to(std::size_t done, std::size_t place, std::size_t n, value_type* values,
                  const value_type* current) {
        const int kinds = detail::states_of(*rule_);
        state_.provide(done, place, n, kinds);
        detail::step_elements(*rule_, n, current, values,
                              kinds > 0 ? state_.numbers(0, done) : nullptr,
                              kinds > 1 ? state_.numbers(1, done) : nullptr, values);
    }

    void enter(detail::ranks_of_plan& ranks) {
        std::size_t elements = 0;
        for (const detail::tensor_ref& t : targets_) elements += t.count;
        detail::collect_state(ranks, {steps_, elements, state_.size(), state_.is_whole()}, state_);
        layout_ = ranks.layout();
    }

    void take_names() {
        if (names_.empty())
            for (std::size_t i = 0; i < targets_.size(); ++i) names_.push_back(std::to_string(i));
        if (names_.size() != targets_.size())
            throw usage_error(-1, detail::text("hvd: fused_step: ", names_.size(), " names for ",
                                               targets_.size(), " parameters"));
        std::vector<std::string> sorted = names_;
        std::ranges::sort(sorted);
        if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
            throw usage_error(-1, detail::text("hvd: fused_step: two parameters are named \"",
                                               std::string_view(*twice), "\""));
    }

    Optimizer optimizer_;
    std::uint64_t steps_ = 0;
    std::optional<rule> rule_;  // the rule of the step under way
    std::vector<detail::tensor_ref> targets_;
    std::vector<std::string> names_;
    detail::fused_update update_;
    detail::said_step said_;
    detail::shared<detail::plan_layout> layout_;  // of the plan whose slices have the state
    detail::sliced_state<value_type> state_;
};

}  // namespace hvd::inline v0
