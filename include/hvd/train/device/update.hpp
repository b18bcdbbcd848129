// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <vector>

#include "../../kernel/cuda/update_device.hpp"
#include "../optimizer/optimizers.hpp"
#include "../wrappers/grouped.hpp"
#include "../wrappers/lazy_rows.hpp"
#include "mirror.hpp"
#include "shard.hpp"
#include "streams.hpp"

namespace hvd::inline v0::detail {

// The rules of hvd's optimizers that a launch on the device computes.
template <class T>
update_rule device_rule(const optimizers::sgd<T>& o) {
    return {.kind = update_kind::sgd,
            .nesterov = o.nesterov,
            .rate = double(o.rate),
            .decay = double(o.weight_decay),
            .momentum = double(o.momentum)};
}
template <class T, bool Decoupled>
update_rule device_rule(const optimizers::adam<T, Decoupled>& o) {
    return {.kind = update_kind::adam,
            .decoupled = Decoupled,
            .rate = double(o.rate),
            .decay = double(o.weight_decay),
            .beta1 = double(o.beta1),
            .beta2 = double(o.beta2),
            .epsilon = double(o.epsilon)};
}

template <class O>
update_rule device_rule(const optimizers::lazy_rows<O>&) = delete;  // a launch steps whole tables
template <class O>
update_rule device_rule(const optimizers::grouped<O>&) = delete;  // a launch has one rule

template <class O>
concept has_device_rule = requires(const O& o) { device_rule(o); };

// The elements of a parameter that this rank steps, and the number of all.
struct stepped_part {
    std::size_t begin, count, whole;
    bool frozen;
};

// The part of a gradient in the norm of all. A local parameter's has none, and is not clipped.
enum class norm_part : std::uint8_t { none, measured, measured_elsewhere };

// The state on the device of one of hvd's optimizers, and its step: one launch for all parameters.
// The optimizer on the host has the numbers that a launch reads. Its slots are empty, but for
// checkpoints and broadcasts, which `to_host` and `to_device` bring there and back.
template <class O>
class device_update {
    using T = typename O::value_type;
    using R = optimizers::number<T>;
    using views = std::span<const tensor_view<T, device>>;
    static constexpr int masters = keeps_masters<O> ? 1 : 0;  // slots before those of the rule
    static constexpr std::size_t max_slots = masters + 2;

public:
    explicit device_update(device_session& session) : session_(session) {}

    // Takes the parameters that are stepped, and gradients of equal sizes. Views of those that are
    // not stepped are empty. It makes missing state of zeros, and missing masters of the parameters
    // behind the work of `writer`, and waits for that.
    void take(views parameters, views gradients, std::span<const norm_part> norm,
              std::span<const stepped_part> parts, const O& optimizer, cudaStream_t writer) {
        const current_device here(session_.device(), session_.rank());
        session_.guarded([&] {
            const update_rule rule = device_rule(optimizer);
            take_clocks(rule, parts, writer);
            if (state_.size() < parameters.size()) state_.resize(parameters.size());
            std::vector<update_row> rows, measured;
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                if (parameters[i].size() == 0) continue;
                if constexpr (masters != 0) provide_master(i, parameters[i], writer);
                for (int k = 0; k < rule.states(); ++k)
                    provide(i, masters + k, parameters[i].size());
                rows.push_back({.parameter = bytes_of(parameters[i]),
                                .parameter_id = dtype_traits<T>::id,
                                .gradient = bytes_of(gradients[i]),
                                .gradient_id = dtype_traits<T>::id,
                                .count = parameters[i].size(),
                                .master = masters != 0 ? state_[i][0].data() : nullptr,
                                .state1 = state_[i][masters].data(),
                                .state2 = state_[i][masters + 1].data(),
                                .clipped = norm[i] != norm_part::none,
                                .clock = std::uint32_t(i)});
                if (norm[i] == norm_part::measured) measured.push_back(rows.back());
            }
            measured_ = measured_rows(measured, stream(), session_.rank());
            rows_ = update_rows(rows, stream(), session_.rank());
        });
        taken_ = true;
    }
    // False if state has moved since, and for an optimizer that now needs more of it.
    bool has_taken_for(const O& optimizer) const {
        return taken_ && device_rule(optimizer).states() <= rows_.states();
    }
    bool has_started() const { return progress_.data() != nullptr; }

    // The largest norm is that of the gradients times the factor.
    void step(const O& optimizer, double factor, double max_norm, cudaStream_t stream,
              const std::uint32_t* stop) {
        update_rule rule = device_rule(optimizer);
        rule.factor = factor;
        rule.max_norm = max_norm / factor;  // it is compared with the measured norm
        launch_update(rule, rows_, progress_, stream, session_.rank(), update_work::finish, stop);
    }

    // Adds up the squares of this rank's gradients, in device memory.
    void measure(cudaStream_t stream) {
        launch_measure(measured_, progress_, stream, session_.rank());
    }
    double* squares() const { return progress_.squares(); }

    // Sets the flag, in device memory, that skips the next step if a gradient is not finite.
    void look(cudaStream_t stream) { launch_look(rows_, progress_, stream, session_.rank()); }
    std::uint32_t* skip() const { return progress_.skip(); }

    std::size_t state_bytes() const {
        std::size_t bytes = 0;
        for (const parameter_state& s : state_)
            for (const cuda_memory& memory : s) bytes += memory.size();
        return bytes;
    }

    // The steps that were made and those that were left out. They wait for the stream.
    update_progress progress(cudaStream_t stream) const {
        if (progress_.data() == nullptr) return {};
        const current_device here(session_.device(), session_.rank());
        return progress_.get(stream, session_.rank());
    }

    // Copies the state to the slots of an optimizer on the host. With sharded state
    // `complete(slots)` adds what the other ranks have.
    template <class Complete>
    void to_host(O& optimizer, std::span<const stepped_part> parts, cudaStream_t stream,
                 Complete complete) {
        int k = 0;
        std::vector<bool> exist(parts.size());
        for_each_kind_of_slot(
            optimizer,
            [&](optimizers::slots<R>& slots) {
                slots.assign(parts.size(), {});
                for (std::size_t i = 0; i < state_.size(); ++i)
                    if (count(i, k) > 0) slots[i].resize(parts[i].whole);
                copy(slots, parts, k++, stream, true);
                complete(slots);
                for (std::size_t i = 0; i < parts.size(); ++i)
                    exist[i] = exist[i] || !slots[i].empty();
            },
            [&](optimizers::step_counts& counts) {
                counts.assign(parts.size(), {});
                const current_device here(session_.device(), session_.rank());
                const auto clocks = progress_.get_clocks(stream, session_.rank());
                for (std::size_t i = 0; i < parts.size() && i < clocks.size(); ++i)
                    if (exist[i]) counts[i] = {double(clocks[i].steps)};
            });
    }

    // Takes this rank's part of the state of an optimizer on the host.
    void to_device(O& optimizer, std::span<const stepped_part> parts, cudaStream_t stream) {
        const current_device here(session_.device(), session_.rank());
        int k = 0;
        std::vector<std::uint64_t> steps(parts.size());
        state_.resize(parts.size());
        for_each_kind_of_slot(
            optimizer,
            [&](optimizers::slots<R>& slots) {
                slots.resize(parts.size());
                for (std::size_t i = 0; i < parts.size(); ++i) {
                    if (slots[i].empty() && count(i, k) > 0) forget(i, k, stream);
                    if (slots[i].empty()) continue;
                    if (slots[i].size() != parts[i].whole)
                        throw usage_error(
                            session_.rank(),
                            text("hvd: the optimizer's state of parameter ", i, " on rank ",
                                 session_.rank(), " has ", slots[i].size(), " elements, expected ",
                                 parts[i].whole));
                    steps[i] = 1;  // a momentum goes on
                    if (parts[i].count > 0) provide(i, k, parts[i].count);
                }
                copy(slots, parts, k++, stream, false);
            },
            [&](optimizers::step_counts& counts) {
                for (std::size_t i = 0; i < parts.size(); ++i)
                    steps[i] = std::uint64_t(counts.of(i));
            });
        session_.guarded([&] {
            const update_rule rule = device_rule(optimizer);
            std::vector<update_clock> clocks;
            for (std::size_t i = 0; i < parts.size(); ++i) {
                clocks.push_back(update_clock::after(rule, steps[i]));
                clocks[i].runs = !parts[i].frozen;
            }
            set_clocks(std::move(clocks), stream);
            progress_.set({}, stream, session_.rank());
        });
    }

private:
    using parameter_state = std::array<cuda_memory, max_slots>;

    static std::byte* bytes_of(const tensor_view<T, device>& t) {
        return reinterpret_cast<std::byte*>(t.data());
    }
    cudaStream_t stream() const { return session_.own_stream(); }

    // Calls `of_elements(slots)` for slots of as many numbers as their parameters have, and
    // `of_counts(counts)` for the counts of steps.
    template <class F, class G>
    static void for_each_kind_of_slot(O& optimizer, F of_elements, G of_counts) {
        optimizer.for_each_slot([&]<class S>(const char*, S& slots) {
            if constexpr (std::is_same_v<S, optimizers::step_counts>) of_counts(slots);
            else of_elements(slots);
        });
    }

    // Clocks of parameters that are new begin at 0. Frozen ones stand still.
    void take_clocks(const update_rule& rule, std::span<const stepped_part> parts,
                     cudaStream_t writer) {
        auto clocks = progress_.get_clocks(writer, session_.rank());
        clocks.resize(parts.size(), update_clock::after(rule, 0));
        for (std::size_t i = 0; i < parts.size(); ++i) clocks[i].runs = !parts[i].frozen;
        set_clocks(std::move(clocks), writer);
    }
    void set_clocks(std::vector<update_clock> clocks, cudaStream_t where) {
        if (progress_.clock_count() != clocks.size()) taken_ = false;
        if (!has_started()) progress_ = device_progress(std::move(clocks), where, session_.rank());
        else progress_.set_clocks(std::move(clocks), where, session_.rank());
    }

    std::size_t count(std::size_t i, int k) const {
        return state_[i][std::size_t(k)].size() / sizeof(R);
    }
    void provide(std::size_t i, int k, std::size_t count_) {
        cuda_memory& memory = state_[i][std::size_t(k)];
        if (memory.size() == count_ * sizeof(R)) return;
        taken_ = false;
        memory = cuda_memory(cuda_memory::kind::device, count_ * sizeof(R), session_.rank());
        clear(i, k, stream());
    }
    void clear(std::size_t i, int k, cudaStream_t where) {
        cuda_memory& memory = state_[i][std::size_t(k)];
        check_cuda(cudaMemsetAsync(memory.data(), 0, memory.size(), where), "cudaMemsetAsync",
                   session_.rank());
        session_.wait(session_.mark(where), "state of an optimizer", session_.limit_for({}));
    }

    void provide_master(std::size_t i, const tensor_view<T, device>& parameter,
                        cudaStream_t writer) {
        cuda_memory& memory = state_[i][0];
        if (memory.size() == parameter.size() * sizeof(float)) return;
        taken_ = false;
        memory = cuda_memory(cuda_memory::kind::device, parameter.size() * sizeof(float),
                             session_.rank());
        std::vector<tile> tiles;
        cut_into_tiles(tiles, bytes_of(parameter), memory.data(), parameter.size(),
                       copy_between(dtype_traits<T>::id, dtype::float32, false), 1);
        const copy_launch copies(session_, tiles);
        copies.launch(writer, session_.rank());
        session_.wait(session_.mark(writer), "masters of an optimizer", session_.limit_for({}));
    }

    // State begins at zero again, and masters with the parameters of the next step.
    void forget(std::size_t i, int k, cudaStream_t where) {
        if (k >= masters) return clear(i, k, where);
        state_[i][std::size_t(k)] = {};
        taken_ = false;
    }

    // Copies this rank's part of one slot of every parameter, through pinned memory.
    void copy(optimizers::slots<R>& slots, std::span<const stepped_part> parts, int k,
              cudaStream_t where, bool to_host) {
        std::vector<tensor_view<R, device>> on_device;
        for (std::size_t i = 0; i < state_.size(); ++i)
            on_device.push_back(
                device_view(reinterpret_cast<R*>(state_[i][std::size_t(k)].data()), count(i, k)));
        host_mirror<R> mirror(session_, on_device);
        if (to_host) mirror.fetch(where);
        for (std::size_t i = 0; i < state_.size(); ++i) {
            const auto on_host = elements(mirror.tensors()[i]);
            if (on_host.empty()) continue;
            if (slots[i].empty()) {
                std::fill(on_host.begin(), on_host.end(), R(0));
                continue;
            }
            R* const part = slots[i].data() + parts[i].begin;
            if (to_host) std::copy(on_host.begin(), on_host.end(), part);
            else std::copy(part, part + on_host.size(), on_host.begin());
        }
        if (!to_host) mirror.store(where);
    }

    device_session& session_;
    std::vector<parameter_state> state_;
    device_progress progress_;
    update_rows rows_;
    measured_rows measured_;
    bool taken_ = false;
};

// Stands for the state of an optimizer that is not hvd's.
struct no_device_update {
    explicit no_device_update(device_session&) {}
};

template <class O>
struct device_update_for {
    using type = no_device_update;
};
template <has_device_rule O>
struct device_update_for<O> {
    using type = device_update<O>;
};
template <class O>
using device_update_of = typename device_update_for<O>::type;

}  // namespace hvd::inline v0::detail
