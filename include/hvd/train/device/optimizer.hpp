// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <limits>

#include "../optimizer/optimizer.hpp"
#include "../optimizer/state.hpp"
#include "adasum_step.hpp"
#include "device_gradients.hpp"
#include "on_host.hpp"
#include "update.hpp"

namespace hvd::inline v0 {

/// O can step a model on the device by `step(parameters, gradients, stream)`, which only enqueues.
/// The arguments are spans of device views, as for `optimizer_of`.
template <class O, class T>
concept device_optimizer_of = requires(O& o, std::span<const tensor_view<T, device>> list,
                                       cudaStream_t stream) { o.step(list, list, stream); };

/// A distributed optimizer of parameters on the device, for a communicator of devices. Everything
/// means what it means on the host, with a stream: `gradient_ready(i, stream)`, `step(stream)`.
///
/// `Optimizer` is `optimizers::sgd`, `adam` or `adamw`, also in `float_masters`, whose
/// state is then on the device and which steps all parameters by one launch; or a
/// `device_optimizer_of<T>`, or a `self_contained_optimizer`. Buckets run on the communicator's own
/// stream behind the streams that wrote their gradients. The numbers of the optimizer (the rate)
/// are those on the host at the call of `step`. The optimizer is a copy of what was given, since
/// its state is on the device: change numbers by `set_rate` and `optimizer()`.
/// **Completion**: nothing waits on the host, but for the first step after a registration, `freeze`
/// or `unfreeze`, for the steps in which the ranks learn the order of their reports, for backends
/// that move tensors through the host, and for Adasum. A stream of 0 is the default stream. A step
/// on a stream that is being captured becomes a part of the graph, if the backend's plans can be
/// captured and such a step was made before.
/// **Errors**: a communicator that was given up refuses further steps. A step of hvd's optimizers
/// that was enqueued before leaves the parameters as they are if its gradients did not come. With
/// `shard_state`, a rank may have stepped its own slice. Other optimizers step nevertheless,
/// unless the host waits for the stream between `synchronize` and `apply`.
/// @snippet tests/train/device_snippets.cpp distributed_optimizer
template <detail::device_communicator Comm, class Optimizer, class T>
class distributed_optimizer<Comm, Optimizer, T> : public detail::device_gradients<Comm, T>,
                                                  public detail::registered_buffers<device> {
    static constexpr bool is_hvds = detail::has_device_rule<Optimizer>;
    static_assert(is_hvds || device_optimizer_of<Optimizer, T> ||
                      self_contained_optimizer<Optimizer>,
                  "hvd: an optimizer of device tensors is hvd::optimizers::sgd, adam or adamw, has "
                  "step(parameters, gradients, stream), or step()");
    static_assert(detail::is_float_element<T>,
                  "hvd: parameters on the device are float, double, float16 or bfloat16");

public:
    /// @throws hvd::usage_error for options that contradict each other or that are for tensors on
    /// the host, and an empty communicator.
    distributed_optimizer(Comm& comm, Optimizer optimizer, optimizer_options options = {})
        : detail::device_gradients<Comm, T>(comm, std::move(options)),
          detail::registered_buffers<device>(comm.rank()),
          optimizer_(std::move(optimizer)),
          update_(this->session()) {
        detail::check_masters<Optimizer>(comm.rank(), this->options());
        if (!is_hvds && this->options().skip_nonfinite)
            this->refuse("skip_nonfinite on the device is for hvd's own optimizers");
        if (!is_hvds && !device_optimizer_of<Optimizer, T> && this->options().shard_state)
            this->refuse("shard_state is for optimizers that are given their tensors");
        this->agrees_on_numbers_ = optimizer_with_state<Optimizer>;
    }

    ~distributed_optimizer() { this->end_buckets(); }

    /// Makes later work of `stream` come after the reduction of all gradients. The ranks also
    /// compare the numbers of the optimizer in the first step. **Collective**.
    synchronized_gradients<T, device> synchronize(cudaStream_t stream = nullptr) {
        auto synchronized = detail::device_gradients<Comm, T>::synchronize(stream);
        agree_on_numbers();
        return synchronized;
    }

    /// Enqueues the step with the gradients of `synchronize()`. With `skip_nonfinite` the device
    /// leaves it out if a gradient of any rank is not finite: see `skipped_steps`. After
    /// `clip_by_norm` it clips them.
    /// @throws hvd::peer_error if the communicator was given up and the optimizer is not hvd's. If
    /// the host waits for `stream` before the call, no such optimizer steps with gradients that did
    /// not come.
    void apply(synchronized_gradients<T, device>&& synchronized, cudaStream_t stream = nullptr) {
        const auto changes = this->close(std::move(synchronized));
        this->used(stream);
        this->refuse_capture_of_adasum(stream);
        const detail::current_device here(this->session().device(), this->session().rank());
        prepare();
        if (this->options().skip_nonfinite) look(stream);
        if (changes.clips()) measure(stream, changes.factor);
        this->keep_residuals(stream, skip_flag());
        if (this->options().op == hvd::adasum)
            detail::step_by_adasum<T>(this->host_calls(), this->all(), this->epoch_name(), stream,
                                      [&] { step_alone(changes, stream); });
        else step_alone(changes, stream);
        this->spread_values(stream);
    }

    /// Calls `apply(synchronize(stream), stream)`.
    void step(cudaStream_t stream = nullptr) { apply(synchronize(stream), stream); }

    /// The optimizer inside. The state of hvd's own is on the device from the first step on, and
    /// their slots here are empty.
    Optimizer& optimizer() noexcept { return optimizer_; }

    /// Gives the optimizer another rate for the steps that come: the same on all ranks.
    template <class R>
    void set_rate(const R& rate) {
        constexpr bool is_rate = detail::check_rate<Optimizer, R>();
        if constexpr (is_rate) optimizer_.rate = static_cast<decltype(optimizer_.rate)>(rate);
    }

    /// Bytes of optimizer state on this rank. The first step makes it.
    std::size_t state_bytes() const noexcept
        requires is_hvds
    {
        return update_.state_bytes();
    }

    /// For hvd: calls f with a copy of parameters and state on the host, for checkpoints and
    /// broadcasts. It waits for the stream of the last call here. **Collective**.
    template <class F>
    void with_state_on_host(detail::state_use use, F f) {
        const cudaStream_t stream = this->last_stream();
        const empty_slots_again<Optimizer> afterwards{optimizer_};
        const bool reads = use != detail::state_use::read_by_root || this->comm().rank() == 0;
        const detail::parameter_list nothing;
        const detail::registered_buffers<device> no_buffers(this->comm().rank());
        const detail::registered_buffers<device>& buffers = *this;
        detail::optimizer_on_host<Optimizer, T> copy(this->session(), reads ? this->all() : nothing,
                                                     reads ? buffers : no_buffers, optimizer_);
        copy.fetch(stream);
        const auto parts = this->parts();
        if constexpr (is_hvds)
            if (reads || this->options().shard_state)
                update_.to_host(optimizer_, parts, stream,
                                [&](auto& slots) { this->add_slices_of_others(slots); });
        f(copy);
        if (use != detail::state_use::write) return;
        copy.store(stream);
        if constexpr (is_hvds) update_.to_device(optimizer_, parts, stream);
        skipped_before_ = 0;  // it counts from 0 again
    }

    /// The number of steps that `skip_nonfinite` has left out. It waits for the stream.
    std::uint64_t skipped_steps(cudaStream_t stream = nullptr) const
        requires is_hvds
    {
        return update_.progress(stream).skipped;
    }

    /// False if a step was left out since the last call. It waits for the stream.
    bool has_stepped(cudaStream_t stream = nullptr)
        requires is_hvds
    {
        detail::refuse_capture(this->session(), stream, "has_stepped");
        const std::uint64_t skipped = skipped_steps(stream);
        return std::exchange(skipped_before_, skipped) == skipped;
    }

    /// The norm of all gradients before the last step that `clip_by_norm` was called for. It waits
    /// for the stream.
    double gradient_norm(cudaStream_t stream = nullptr) const
        requires is_hvds
    {
        return std::sqrt(update_.progress(stream).squares) * norm_factor_;
    }

    /// The norm of all shared gradients together as they are now, so that the host can decide
    /// before `apply`. It waits for the stream. **Collective**.
    /// @snippet tests/train/device_snippets.cpp gradient_norm
    double gradient_norm(const synchronized_gradients<T, device>& gradients,
                         cudaStream_t stream = nullptr)
        requires is_hvds
    {
        this->used(stream);
        const detail::current_device here(this->session().device(), this->session().rank());
        prepare();
        measure(stream, this->factor_of(gradients));
        return gradient_norm(stream);
    }

private:
    // The slots of hvd's own optimizers are on the host only while their state is copied.
    template <class O>
    struct empty_slots_again {
        O& optimizer;
        ~empty_slots_again() {
            if constexpr (is_hvds)
                optimizer.for_each_slot([](const char*, auto& slots) { slots.clear(); });
        }
    };

    // Takes the tensors of the step. The host waits if they are others than before.
    void prepare() {
        const bool changed = this->take_change();
        if constexpr (is_hvds) {
            if (!changed && update_.has_taken_for(optimizer_)) return;
            if (!update_.has_started()) {  // the optimizer may bring state of earlier steps
                const empty_slots_again<Optimizer> afterwards{optimizer_};
                update_.to_device(optimizer_, this->parts(), this->last_stream());
            }
            update_.take(this->values_, this->gradients_, this->norm_parts(), this->parts(),
                         optimizer_, this->last_stream());
            if (this->options().skip_nonfinite && !agree_)
                agree_ = detail::ordered_plan(
                    detail::device_access::session_of(this->comm()),
                    this->comm().plan_allreduce(device_view(update_.skip(), 1), max,
                                                {.name = "gradients are finite"}));
            if (this->options().shard_state && !add_squares_)
                add_squares_ = detail::ordered_plan(
                    detail::device_access::session_of(this->comm()),
                    this->comm().plan_allreduce(device_view(update_.squares(), 1), sum,
                                                {.name = "norm of gradients"}));
        }
    }

    // A step that is left out on one rank is left out on all.
    void look(cudaStream_t stream) {
        if constexpr (is_hvds) {
            update_.look(stream);
            agree_.start({&stream, 1});
            agree_.finish(stream);
        }
    }

    // A word in device memory that is not 0 if the step is left out.
    std::uint32_t* skip_flag() const {
        if constexpr (is_hvds)
            if (this->options().skip_nonfinite) return update_.skip();
        return nullptr;
    }

    // Ranks that step slices add up their squares. All others have the same.
    void measure(cudaStream_t stream, double factor) {
        if constexpr (is_hvds) {
            norm_factor_ = factor;
            update_.measure(stream);
            if (!this->options().shard_state) return;
            add_squares_.start({&stream, 1});
            add_squares_.finish(stream);
        } else {
            this->refuse("clip_by_norm on the device is for hvd's own optimizers");
        }
    }

    // An optimizer that is not hvd's knows nothing of the stop, so it must not be given gradients
    // that are known not to come.
    template <class Changes>
    void step_alone([[maybe_unused]] const Changes& changes, cudaStream_t stream) {
        if constexpr (!is_hvds) this->session().refuse_if_broken("apply()");
        if constexpr (is_hvds)
            update_.step(optimizer_, changes.factor, changes.max_norm, stream,
                         this->stop_behind(stream));
        else if constexpr (device_optimizer_of<Optimizer, T>)
            optimizer_.step(std::span<const tensor_view<T, device>>(this->values_),
                            std::span<const tensor_view<T, device>>(this->gradients_), stream);
        else optimizer_.step();
    }

    void agree_on_numbers() {
        if constexpr (optimizer_with_state<Optimizer>) {
            if (!this->agrees_on_numbers_) return;
            detail::agree_on_numbers(this->host_calls(), optimizer_,
                                     [this](std::size_t i) { return this->is_local(i); });
            this->agrees_on_numbers_ = false;
        }
    }

    Optimizer optimizer_;
    detail::device_update_of<Optimizer> update_;
    detail::ordered_plan agree_;        // on the flag of skipped steps
    detail::ordered_plan add_squares_;  // of the slices of all ranks
    std::uint64_t skipped_before_ = 0;  // at the last call of has_stepped()
    double norm_factor_ = 1;            // of the gradients that were measured last
};

}  // namespace hvd::inline v0
