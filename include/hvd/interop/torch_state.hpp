// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <concepts>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../train/checkpoint/checkpoint.hpp"
#include "torch.hpp"

namespace hvd::inline v0 {
namespace detail {

// The types of the options and of a parameter's state of an optimizer of LibTorch.
template <class O>
struct torch_parts;
template <>
struct torch_parts<torch::optim::SGD> {
    using options = torch::optim::SGDOptions;
    using state = torch::optim::SGDParamState;
};
template <>
struct torch_parts<torch::optim::Adam> {
    using options = torch::optim::AdamOptions;
    using state = torch::optim::AdamParamState;
};
template <>
struct torch_parts<torch::optim::AdamW> {
    using options = torch::optim::AdamWOptions;
    using state = torch::optim::AdamWParamState;
};
template <>
struct torch_parts<torch::optim::RMSprop> {
    using options = torch::optim::RMSpropOptions;
    using state = torch::optim::RMSpropParamState;
};
template <>
struct torch_parts<torch::optim::Adagrad> {
    using options = torch::optim::AdagradOptions;
    using state = torch::optim::AdagradParamState;
};

// Calls f(name, tensor&) for each tensor that such a state may have, by LibTorch's names.
template <class State, class F>
void for_each_torch_tensor(State& s, F f) {
    if constexpr (requires { s.exp_avg(); }) {
        f("exp_avg", s.exp_avg());
        f("exp_avg_sq", s.exp_avg_sq());
        f("max_exp_avg_sq", s.max_exp_avg_sq());
    }
    if constexpr (requires { s.square_avg(); }) f("square_avg", s.square_avg());
    if constexpr (requires { s.momentum_buffer(); }) f("momentum_buffer", s.momentum_buffer());
    if constexpr (requires { s.grad_avg(); }) f("grad_avg", s.grad_avg());
    if constexpr (requires { s.sum(); }) f("sum", s.sum());
}

// Calls f(name, number) for each of the options, and sets them to what f returns.
template <class Options, class F>
void for_each_torch_number(Options& o, F f) {
    const auto number = [&](const char* name, auto& n) {
        n = static_cast<std::remove_cvref_t<decltype(n)>>(f(name, double(n)));
    };
    number("lr", o.lr());
    number("weight_decay", o.weight_decay());
    if constexpr (requires { o.momentum(); }) number("momentum", o.momentum());
    if constexpr (requires { o.dampening(); }) number("dampening", o.dampening());
    if constexpr (requires { o.nesterov(); }) number("nesterov", o.nesterov());
    if constexpr (requires { o.betas(); }) {
        number("beta1", std::get<0>(o.betas()));
        number("beta2", std::get<1>(o.betas()));
    }
    if constexpr (requires { o.eps(); }) number("eps", o.eps());
    if constexpr (requires { o.amsgrad(); }) number("amsgrad", o.amsgrad());
    if constexpr (requires { o.alpha(); }) number("alpha", o.alpha());
    if constexpr (requires { o.centered(); }) number("centered", o.centered());
    if constexpr (requires { o.lr_decay(); }) number("lr_decay", o.lr_decay());
    if constexpr (requires { o.initial_accumulator_value(); })
        number("initial_accumulator_value", o.initial_accumulator_value());
}

// The state of an optimizer of LibTorch as slots and numbers, which checkpoints and broadcasts
// know. It is a copy: `take` makes it and `give` puts it back.
template <class O, class T>
class torch_state {
    using options = typename torch_parts<O>::options;
    using state = typename torch_parts<O>::state;
    static constexpr bool counts_steps = requires(state& s) { s.step(); };

public:
    using value_type = T;

    // `index_of(tensor)` is a parameter's index in the distributed optimizer.
    template <class IndexOf>
    void take(O& optimizer, IndexOf index_of) {
        state none;
        for_each_torch_tensor(none, [&](const char* name, auto&) { slots_.push_back({name, {}}); });
        for_each_number_of(optimizer, [&](std::string name, double number) {
            numbers_.emplace_back(std::move(name), number);
            return number;
        });
        for_each_parameter_of(optimizer, [&](const torch::Tensor& p) {
            const auto found = optimizer.state().find(key_of(optimizer, p));
            if (found == optimizer.state().end()) return;
            auto& of_parameter = static_cast<state&>(*found->second);
            const std::size_t i = index_of(p);
            std::size_t k = 0;
            for_each_torch_tensor(of_parameter, [&](const char*, torch::Tensor& t) {
                slot_of(slots_[k++].second, i) = t.defined() ? elements_of(t) : std::vector<T>();
            });
            if constexpr (counts_steps) slot_of(steps_, i) = {double(of_parameter.step())};
        });
    }

    template <class IndexOf>
    void give(O& optimizer, IndexOf index_of) const {
        std::size_t next = 0;
        for_each_number_of(optimizer,
                           [&](const std::string&, double) { return numbers_[next++].second; });
        for_each_parameter_of(optimizer, [&](const torch::Tensor& p) {
            const std::size_t i = index_of(p);
            auto made = std::make_unique<state>();
            bool any = false;
            std::size_t k = 0;
            for_each_torch_tensor(*made, [&](const char*, torch::Tensor& t) {
                const auto& slots = slots_[k++].second;
                if (i >= slots.size() || slots[i].empty()) return;
                t = torch::empty_like(p.detach(), at::MemoryFormat::Contiguous);
                std::ranges::copy(slots[i], torch_view<T>(t).data());
                any = true;
            });
            if constexpr (counts_steps) made->step(std::int64_t(steps_.of(i)));
            if (!any) reset(optimizer, p, *made);
            if (any || std::is_same_v<O, torch::optim::Adagrad>)
                optimizer.state()[key_of(optimizer, p)] = std::move(made);
            else optimizer.state().erase(key_of(optimizer, p));
        });
    }

    template <class F>
    void for_each_slot(F f) {
        for (auto& [name, slots] : slots_) f(name, slots);
        if constexpr (counts_steps) f("step", steps_);
    }
    template <class F>
    void for_each_number(F f) {
        for (auto& [name, number] : numbers_) f(name.c_str(), number);
    }
    // They are there with some options only.
    static constexpr bool is_optional_slot(std::string_view name) {
        return name == "max_exp_avg_sq" || name == "momentum_buffer" || name == "grad_avg";
    }

private:
    static auto key_of(O& optimizer, const torch::Tensor& p) {
        using key = typename std::remove_cvref_t<decltype(optimizer.state())>::key_type;
        if constexpr (std::is_same_v<key, std::string>) {
            std::ostringstream text;
            text.imbue(std::locale::classic());
            text << p.unsafeGetTensorImpl();
            return text.str();
        } else return key(p.unsafeGetTensorImpl());
    }

    template <class F>
    static void for_each_parameter_of(O& optimizer, F f) {
        for (const auto& group : optimizer.param_groups())
            for (const auto& p : group.params()) f(p);
    }

    // The numbers of further groups have names of their own.
    template <class F>
    static void for_each_number_of(O& optimizer, F f) {
        for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
            const std::string prefix = g == 0 ? "" : "group" + std::to_string(g) + ".";
            for_each_torch_number(
                static_cast<options&>(optimizer.param_groups()[g].options()),
                [&](const char* name, double number) { return f(prefix + name, number); });
        }
    }

    // Adagrad has state before its first step.
    static void reset(O& optimizer, const torch::Tensor& p, state& s) {
        if constexpr (std::is_same_v<O, torch::optim::Adagrad>) {
            const auto& numbers = static_cast<const options&>(optimizer.defaults());
            s.sum(torch::full_like(p.detach(), numbers.initial_accumulator_value()));
        }
    }

    template <class Slots>
    static auto& slot_of(Slots& slots, std::size_t i) {
        if (slots.size() <= i) slots.resize(i + 1);
        return slots[i];
    }

    static std::vector<T> elements_of(const torch::Tensor& tensor) {
        const auto dense = tensor.contiguous();
        const auto flat = torch_view<T>(dense);
        return {flat.data(), flat.data() + flat.size()};
    }

    std::vector<std::pair<const char*, optimizers::slots<T>>> slots_;
    optimizers::step_counts steps_;
    std::vector<std::pair<std::string, double>> numbers_;
};

// A distributed optimizer around one of LibTorch, as checkpoints see those of hvd.
template <class Comm, class O, class T>
class torch_training {
public:
    explicit torch_training(distributed_optimizer<Comm, O, T>& optimizer) : of_(optimizer) {
        of_.for_each_parameter([&](const std::string&, const auto& value, const auto&) {
            places_.push_back(value.data());
        });
        state_.take(of_.optimizer(), [&](const torch::Tensor& p) { return index_of(p); });
    }

    // Sets the optimizer's state to what was read.
    void give() {
        state_.give(of_.optimizer(), [&](const torch::Tensor& p) { return index_of(p); });
    }

    template <class F>
    void for_each_shared(F f) const {
        of_.for_each_shared(f);
    }
    template <class F>
    void for_each_buffer(F f) const {
        of_.for_each_buffer(f);
    }
    template <class F>
    void for_each_parameter(F f) const {
        of_.for_each_parameter(f);
    }
    bool is_local(std::size_t i) const { return of_.is_local(i); }
    torch_state<std::remove_reference_t<O>, T>& optimizer() { return state_; }

private:
    std::size_t index_of(const torch::Tensor& p) const {
        const auto found = std::ranges::find(places_, torch_view<T>(p).data());
        if (found == places_.end())
            refuse(of_.comm().rank(), "LibTorch's optimizer has a parameter of ", p.numel(),
                   " elements that is not registered with the distributed one");
        return std::size_t(found - places_.begin());
    }

    distributed_optimizer<Comm, O, T>& of_;
    std::vector<const T*> places_;  // of the parameters, in the order of their registration
    torch_state<std::remove_reference_t<O>, T> state_;
};

}  // namespace detail

/// O is an optimizer of LibTorch whose state hvd saves: SGD, Adam, AdamW, RMSprop and Adagrad.
template <class O>
concept torch_optimizer_with_state =
    requires { typename detail::torch_parts<std::remove_reference_t<O>>::state; };

/// Rank 0 writes model, progress and the state of LibTorch's optimizer in one atomic file, with
/// LibTorch's names: `optimizer.exp_avg.NAME`, and the options as numbers, `optimizer.lr`. The
/// options of further parameter groups are `optimizer.group1.lr`, ….
/// **Collective**, for modules on the host.
/// @throws hvd::checkpoint_error as `save_checkpoint` of hvd's optimizers; hvd::usage_error for
/// parameters of LibTorch's optimizer that are not registered.
/// @snippet tests/interop/torch_state.cpp torch_checkpoint
template <class Comm, torch_optimizer_with_state O, class T>
    requires(!detail::device_communicator<Comm>)
void save_checkpoint(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer,
                     const training_progress& progress, const checkpoint_metadata& metadata = {},
                     const checkpoint_options& options = {}) {
    detail::torch_training<Comm, O, T> training(optimizer);
    detail::save_training(path, optimizer.comm(), training, optimizer.residuals(), progress,
                          metadata, options);
}

/// Rank 0 reads such a file, and all ranks go on with its parameters, state and options.
/// **Collective**, with the same class and the same parameter groups. A file that is refused
/// changes nothing.
/// @throws as `save_checkpoint`, with path and reason.
template <class Comm, torch_optimizer_with_state O, class T>
    requires(!detail::device_communicator<Comm>)
training_progress load_checkpoint(const std::string& path,
                                  distributed_optimizer<Comm, O, T>& optimizer,
                                  const checkpoint_options& options = {}) {
    detail::torch_training<Comm, O, T> training(optimizer);
    detail::whole_residuals residuals;
    const training_progress progress =
        detail::load_training(path, optimizer.comm(), training, residuals, options);
    training.give();
    broadcast_parameters(optimizer);
    optimizer.take_residuals(std::move(residuals));
    return progress;
}

/// Copies the root's state and options of LibTorch's optimizer to all ranks. State of local
/// parameters stays as it is.
/// **Collective**. @throws as `broadcast`.
template <class Comm, torch_optimizer_with_state O, class T>
    requires(!detail::device_communicator<Comm>)
void broadcast_optimizer_state(distributed_optimizer<Comm, O, T>& optimizer, root from = root{0}) {
    detail::torch_training<Comm, O, T> training(optimizer);
    broadcast_optimizer_state(
        optimizer.comm(), training.optimizer(),
        [&](std::size_t i) { return optimizer.is_local(i); }, from);
    training.give();
}

}  // namespace hvd::inline v0
