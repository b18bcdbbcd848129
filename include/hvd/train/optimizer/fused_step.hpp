// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>

#include "../../fusion/layout.hpp"
#include "../../kernel/update.hpp"
#include "../../transport/operation.hpp"
#include "optimizers.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The rule of the step after `steps` ones, and a hash of all that it depends on.
template <class T>
sgd_rule<T> next_rule(const optimizers::momentum<T>& o, std::uint64_t) {
    return {o.rate, o.factor, T(0), o.decay, o.nesterov, false};
}
template <class T>
std::uint64_t content_of(const optimizers::momentum<T>& o, std::uint64_t) {
    return hash()
        .add("momentum")
        .add(double(o.rate))
        .add(double(o.factor))
        .add(double(o.decay))
        .add(double(o.nesterov))
        .value();
}

template <class T, bool Decays>
adam_rule<T> next_rule(const optimizers::adam<T, Decays>& o, std::uint64_t steps) {
    return {double(o.rate),
            double(o.beta1),
            double(o.beta2),
            double(o.epsilon),
            double(o.decay),
            true,
            static_cast<long long>(steps) + 1};
}
template <class T, bool Decays>
std::uint64_t content_of(const optimizers::adam<T, Decays>& o, std::uint64_t steps) {
    return hash()
        .add("adam")
        .add(double(o.rate))
        .add(double(o.beta1))
        .add(double(o.beta2))
        .add(double(o.epsilon))
        .add(double(o.decay))
        .add(steps)
        .value();
}

}  // namespace detail

/// Parameters and their optimizer, which a plan of the gradients steps in one pass: see
/// `plan::run_and_apply`.
///
/// `Optimizer` is `optimizers::momentum`, `adam` or `adamw`. Its slots stay empty: the state is
/// here, on each rank for its own slices only, and the first run makes it. Rates and other numbers
/// may change between runs through `optimizer()`, on all ranks alike; they are compared.
/// **Lifetime**: the parameters outlive it and do not move. It belongs to one plan, since its state
/// has the order of that plan's slices.
/// @snippet tests/train/snippets.cpp run_and_apply
template <class Optimizer>
class fused_step {
public:
    using value_type = typename Optimizer::value_type;

    /// Takes parameters as `hvd::fuse(…)` gives them, all of the optimizer's element type (float or
    /// double).
    /// @throws hvd::usage_error for a parameter with gaps.
    template <class... Parts>
    fused_step(const fused<Parts...>& parameters, Optimizer optimizer)
        : optimizer_(std::move(optimizer)) {
        static_assert(
            std::is_same_v<detail::fused_types_t<fused<Parts...>>, detail::type_list<value_type>>,
            "hvd: the parameters of a fused_step are all of the optimizer's element type");
        parameters.for_each([&](const auto& view) {
            targets_.push_back(detail::erase(view));
            if (!targets_.back().dense)
                throw usage_error(-1, detail::text("hvd: fused_step: parameter ",
                                                   targets_.size() - 1, " has gaps"));
        });
        update_.targets = targets_;
        update_.id = dtype_traits<value_type>::id;
        update_.apply = &apply;
        update_.self = this;
    }

    fused_step(const fused_step&) = delete;
    fused_step& operator=(const fused_step&) = delete;

    /// Rates, decay and other numbers for the next run.
    Optimizer& optimizer() noexcept { return optimizer_; }

    /// The number of steps so far, the same for all parameters.
    std::uint64_t steps() const noexcept { return steps_; }

    /// Bytes of optimizer state on this rank.
    std::size_t state_bytes() const noexcept {
        return (first_.size() + second_.size()) * sizeof(value_type);
    }

    /// For plans: begins the next step. The step counts only after end(), so a step on which the
    /// ranks could not agree does not count.
    const detail::fused_update& begin() {
        rule_.emplace(detail::next_rule(optimizer_, steps_));
        update_.content = detail::content_of(optimizer_, steps_);
        first_.shrink_to_fit();  // the first run grew them
        second_.shrink_to_fit();
        return update_;
    }
    /// For plans: the step is complete.
    void end() { ++steps_; }

private:
    using rule = decltype(detail::next_rule(std::declval<Optimizer&>(), std::uint64_t()));

    static void apply(void* self, std::size_t done, std::size_t bytes, std::byte* values,
                      const std::byte* current) {
        static_cast<fused_step*>(self)->apply_to(
            done / sizeof(value_type), bytes / sizeof(value_type),
            reinterpret_cast<value_type*>(values), reinterpret_cast<const value_type*>(current));
    }

    void apply_to(std::size_t first, std::size_t n, value_type* values, const value_type* current) {
        provide(first_, first + n);
        if constexpr (rule::states > 1) provide(second_, first + n);
        detail::update_elements(*rule_, n, current, values, first_.data() + first,
                                rule::states > 1 ? second_.data() + first : nullptr, values);
    }

    static void provide(std::vector<value_type>& state, std::size_t size) {
        if (state.size() < size) state.resize(size);
    }

    Optimizer optimizer_;
    std::uint64_t steps_ = 0;
    std::optional<rule> rule_;  // the rule of the step under way
    std::vector<detail::tensor_ref> targets_;
    detail::fused_update update_;
    std::vector<value_type> first_, second_;  // in the order of this rank's slices
};

}  // namespace v0
}  // namespace hvd
