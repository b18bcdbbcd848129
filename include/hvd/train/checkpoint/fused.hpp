// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../fused/fused_step.hpp"
#include "checkpoint.hpp"

namespace hvd::inline v0 {
namespace detail {

// A fused step as a checkpoint sees a distributed optimizer: the parameters, and an optimizer with
// the state of all of them.
template <class Optimizer>
class fused_training {
    using T = typename Optimizer::value_type;

public:
    explicit fused_training(const fused_step<Optimizer>& step, Optimizer optimizer)
        : step_(step), optimizer_(std::move(optimizer)) {}

    template <class F>
    void for_each_parameter(F f) const {
        for (std::size_t i = 0; i < step_.targets().size(); ++i) {
            const tensor_ref& t = step_.targets()[i];
            f(step_.names()[i], view(reinterpret_cast<T*>(t.data), t.count),
              std::vector<std::size_t>(t.extents, t.extents + t.dimensions));
        }
    }
    template <class F>
    void for_each_shared(F f) const {
        for_each_parameter(f);
    }
    template <class F>
    void for_each_buffer(F) const {}
    bool is_local(std::size_t) const { return false; }

    Optimizer& optimizer() { return optimizer_; }

    std::size_t elements() const {
        std::size_t all = 0;
        for (const tensor_ref& t : step_.targets()) all += t.count;
        return all;
    }

    // Makes slots of the numbers of all elements. Kinds without numbers have none.
    void take(const state_numbers<T>& whole, std::uint64_t steps) {
        const auto targets = step_.targets();
        std::size_t k = 0;
        optimizer_.for_each_slot([&]<class S>(const char*, S& slots) {
            slots.assign(targets.size(), {});
            if constexpr (std::is_same_v<S, optimizers::step_counts>) {
                for (std::size_t i = 0; i < targets.size(); ++i)
                    if (targets[i].count > 0) slots[i] = {double(steps)};
            } else if (const std::vector<T>& of_kind = whole[k++]; !of_kind.empty()) {
                auto from = of_kind.begin();
                for (std::size_t i = 0; i < targets.size(); ++i) {
                    const auto end = from + std::ptrdiff_t(targets[i].count);
                    slots[i].assign(std::exchange(from, end), end);
                }
            }
        });
    }

    // Hands the slots to a step. An optimizer that counts no steps has taken those of the progress.
    void give(fused_step<Optimizer>& step, std::uint64_t of_progress) {
        state_numbers<T> whole;
        std::size_t k = 0;
        double steps = counts_steps ? 0 : double(of_progress);
        optimizer_.for_each_slot([&]<class S>(const char*, S& slots) {
            const auto of_slots = std::exchange(slots, {});
            for (std::size_t i = 0; i < of_slots.size(); ++i)
                if constexpr (std::is_same_v<S, optimizers::step_counts>)
                    steps = std::max(steps, of_slots.of(i));
                else if (!of_slots[i].empty()) put(whole[k], i, of_slots[i]);
            ++k;
        });
        step.take(std::move(optimizer_), std::uint64_t(steps), std::move(whole));
    }

private:
    static constexpr bool counts_steps = requires(const Optimizer& o) { o.steps; };

    // Parameters without a slot have a state of zeros.
    void put(std::vector<T>& whole, std::size_t parameter, const std::vector<T>& slot) const {
        whole.resize(elements());
        auto to = whole.begin();
        for (std::size_t i = 0; i < parameter; ++i) to += std::ptrdiff_t(step_.targets()[i].count);
        std::ranges::copy(slot, to);
    }

    const fused_step<Optimizer>& step_;
    Optimizer optimizer_;
};

// **Collective**. Brings the state of all slices to rank 0, which makes slots of them.
template <class Comm, class Optimizer>
void gather_state(const std::string& path, Comm& comm, const fused_step<Optimizer>& step,
                  fused_training<Optimizer>& training) {
    using T = typename Optimizer::value_type;
    const bool loaded = !step.state().whole()[0].empty();
    if (loaded) {
        if (comm.rank() == 0) training.take(step.state().whole(), step.steps());
        return;
    }
    // On several nodes every rank has the whole state.
    std::uint64_t of_root = step.state().size();
    comm.broadcast_object(of_root, root{0});
    std::vector<std::byte> mine;
    if (comm.rank() == 0 || of_root < training.elements()) mine = packed_state(step.state());
    std::vector<std::size_t> counts(std::size_t(comm.size()));
    counts[0] = mine.size();
    const gathered<std::byte> all = comm.alltoall(mine, counts);
    on_root_or_all_throw(comm, "save_checkpoint", [&] {
        if (all.values.empty()) return;
        state_numbers<T> whole;
        const std::size_t found = unpack_state<T>(all.values, training.elements(), whole);
        if (found != training.elements())
            refuse_file(path, "not written: the step has state of ", found, " elements of ",
                        training.elements(), ", since its first run failed");
        training.take(whole, step.steps());
    });
}

// A fused step has one count for all parameters, and no residuals.
template <class Optimizer>
void check_fused(const safetensors_file& file, const fused_training<Optimizer>& training) {
    for (const named_tensor& t : model_tensors(training)) file.require(t);
    std::optional<double> steps;
    for_each_with_slots(training, [&](std::size_t, const std::string& name, std::size_t size) {
        const auto has = [&](const char* slot) {
            return file.tensors().contains(slot_name(slot, name));
        };
        if (has(residual_slot))
            refuse_file(file.path(), "has \"", slot_name(residual_slot, name),
                        "\": a fused_step has no error feedback");
        double count = 0;
        if (has("steps")) file.read(named(slot_name("steps", name), view(&count, 1)));
        if (size == 0) return;
        if (steps && *steps != count)
            refuse_file(file.path(), "has ", count, " steps of \"", name, "\" and ", *steps,
                        " of another parameter: in a fused_step all have taken as many");
        steps = count;
    });
}

}  // namespace detail

/// Rank 0 writes the parameters, the optimizer and the progress of a `fused_step` in one atomic
/// file. It is that of a `distributed_optimizer` with parameters of the same names, so either loads
/// the other's.
/// **Collective**: on a communicator of the plan's ranks, between runs.
/// @throws hvd::checkpoint_error on every rank, as for a distributed optimizer.
/// @snippet tests/train/checkpoint_fused.cpp save_fused
template <class Comm, class Optimizer>
void save_checkpoint(const std::string& path, Comm& comm, fused_step<Optimizer>& step,
                     const training_progress& progress, const checkpoint_metadata& metadata = {}) {
    detail::fused_training<Optimizer> training(step, step.optimizer());
    detail::gather_state(path, comm, step, training);
    detail::save_training(path, comm, training, detail::whole_residuals(step.targets().size()),
                          progress, metadata, {});
}

/// Rank 0 reads the file, and all ranks go on with its parameters, its state and its numbers, on
/// any number of ranks and with any plan of such gradients.
/// **Collective**. A file that is refused changes nothing.
/// @throws hvd::checkpoint_error on every rank, as for a distributed optimizer. It is also thrown
/// for parameters that have taken other numbers of steps than others, and for residuals.
/// @snippet tests/train/checkpoint_fused.cpp load_fused
template <class Comm, class Optimizer>
training_progress load_checkpoint(const std::string& path, Comm& comm,
                                  fused_step<Optimizer>& step) {
    using T = typename Optimizer::value_type;
    detail::fused_training<Optimizer> training(step, step.optimizer());
    training_progress progress;
    detail::on_root_or_all_throw(comm, "load_checkpoint", [&] {
        const safetensors_file file(path);
        detail::check_fused(file, training);
        detail::whole_residuals none;
        progress = detail::read_training(file, training, {}, none);
    });
    std::vector<tensor_view<T>> parameters;
    training.for_each_parameter(
        [&](const std::string&, auto value, const auto&) { parameters.push_back(value); });
    broadcast_parameters(comm, fuse(parameters));
    broadcast_optimizer_state(comm, training.optimizer());
    comm.broadcast_object(progress, root{0});
    training.give(step, progress.step);
    return progress;
}

}  // namespace hvd::inline v0
