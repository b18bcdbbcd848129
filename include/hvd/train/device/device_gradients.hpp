// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "../optimizer/options_agreement.hpp"
#include "../optimizer/synchronized.hpp"
#include "../optimizer/typed_gradients.hpp"
#include "device_steps.hpp"
#include "update.hpp"

namespace hvd::inline v0::detail {

/// The gradients of a distributed_optimizer on a device, and the parts of them that this rank
/// steps.
template <class Comm, class T>
class device_gradients : public typed_gradients<device_steps<Comm, T>, T> {
    using typed = typed_gradients<device_steps<Comm, T>, T>;
    using tensor = tensor_view<T, device>;

public:
    /// Makes later work of `stream` come after the reduction of all gradients. Gradients that were
    /// not reported are those that the earlier work of `stream` writes. The host does not wait.
    /// **Collective**.
    /// @throws hvd::mismatch_error if the ranks have other options or parameters, hvd::peer_error.
    synchronized_gradients<T, device> synchronize(cudaStream_t stream = nullptr) {
        this->reduce(stream, true);
        if (this->lists_are_old()) {
            this->refresh_lists();
            if (options_.shard_state) take_slices();
        }
        return {this->rank(), gradients_, shared_gradients_, {}, this->open_};
    }

    /// The communicator of the gradients.
    Comm& comm() noexcept { return this->steps().comm(); }
    /// For hvd: the stream of the last call here, behind which state is read between steps.
    cudaStream_t last_stream() const noexcept { return this->steps().last_place(); }
    /// For hvd: its calls with tensors of the host.
    detail::host_calls<Comm>& host_calls() noexcept { return this->calls(); }

    /// The parameters, in the order of registration; empty for frozen ones.
    std::vector<tensor> parameters() const {
        std::vector<tensor> values;
        for (const auto& p : parameters_)
            values.push_back(p.frozen ? tensor() : p.value.template as<T, device>());
        return values;
    }

protected:
    device_gradients(Comm& comm, optimizer_options options)
        : typed(comm, std::move(options), abilities_of<typename Comm::backend_type>),
          stop_((current_device(session().device(), session().rank()), session().rank())) {
        if (const char* const why = no_plan_codec<T>(options_.codec)) this->refuse(why);
        if (options_.shard_state && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("a sharded optimizer", comm.rank()));
        if (options_.codec.keeps_residual() && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("error feedback", comm.rank()));
        device_access::for_each_session(comm, [&](device_session& s) { s.stop_too(stop_.word()); });
    }
    ~device_gradients() = default;

    device_session& session() const { return this->steps().session(); }

    // The changes of the gradients that the step makes, in this order.
    struct gradient_changes {
        double factor, max_norm;
        bool clips() const { return max_norm < std::numeric_limits<double>::infinity(); }
    };

    // Takes the gradients of synchronize() for the step.
    gradient_changes close(synchronized_gradients<T, device>&& synchronized) {
        const auto gradients = std::move(synchronized);
        if (gradients.open_ != &this->open_)
            this->refuse("apply() of gradients that are not this optimizer's, or applied already");
        if (gradients.factor_ != 1 && !options_.skip_nonfinite)
            this->refuse("a loss_scale is for optimizers with .skip_nonfinite = true");
        return {gradients.factor_, gradients.max_norm_};
    }

    static double factor_of(const synchronized_gradients<T, device>& gradients) {
        return gradients.factor_;
    }

    void refuse_capture_of_adasum(cudaStream_t stream) const {
        if (options_.op == hvd::adasum) this->steps().refuse_capture(stream, "Adasum");
    }

    // Later calls read state behind the work of this stream.
    void used(cudaStream_t stream) { this->steps().follow(stream); }

    // Ends the buckets under way: their memory is freed only after that.
    void end_buckets() noexcept { this->steps().buckets.clear(); }

    const parameter_list& all() const { return parameters_; }

    std::vector<stepped_part> parts() const {
        std::vector<stepped_part> all;
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const owned_slice s = slice(i);
            all.push_back({s.begin, s.count, parameters_[i].value.size(), parameters_[i].frozen});
        }
        return all;
    }

    // The parts of the gradients in their norm. Ranks that step slices of the others all have the
    // same sparse gradients, which one of them measures.
    std::vector<norm_part> norm_parts() const {
        std::vector<norm_part> all;
        for (const auto& p : parameters_)
            all.push_back(p.kind == parameter_kind::local ? norm_part::none
                          : options_.shard_state && p.kind == parameter_kind::sparse &&
                                  this->rank() != 0
                              ? norm_part::measured_elsewhere
                              : norm_part::measured);
        return all;
    }

    // Adds the slices of the other ranks to those of this rank. Elsewhere its slots are zeros.
    template <class Slots>
    void add_slices_of_others(Slots& slots) {
        if (!options_.shard_state) return;
        std::vector<std::uint8_t> exist;
        for (const auto& slot : slots) exist.push_back(!slot.empty());
        this->calls().allreduce(exist, max);
        for (std::size_t i = 0; i < slots.size(); ++i) {
            if (exist[i] == 0 || parameters_[i].kind != parameter_kind::shared) continue;
            slots[i].resize(parameters_[i].value.size());
            this->calls().allreduce(slots[i], sum);
        }
    }

    // Gives every rank the new values of all slices, behind the work of the stream.
    void spread_values(cudaStream_t stream) {
        if (!options_.shard_state) return;
        auto& buckets = this->steps().buckets;
        buckets.for_each([&](auto& bucket) { bucket.send_values(stream); });
        const std::uint32_t* const stop = stop_behind(stream);
        buckets.for_each([&](auto& bucket) { bucket.take_values(stream, stop); });
    }

    // The step is made, unless the word in device memory is not 0: what the rounding of its
    // gradients lost is added to the next ones. The host waits for the word if there are sparse
    // gradients.
    void keep_residuals(cudaStream_t stream, std::uint32_t* skip) {
        if (!options_.codec.keeps_residual()) return;
        this->steps().keep_residuals(stream, skip);
        if (!this->has_sparse()) return;
        if (skip != nullptr) {
            host_mirror<std::uint32_t> word(session(), std::vector{device_view(skip, 1)});
            word.fetch(stream);
            if (*word.tensors()[0].data() != 0) return;
        }
        for (const auto& t : this->tables())
            if (!this->is_frozen(*t)) t->commit(parameters_[t->parameter()].residual);
    }

    // Returns the flag for launches that change parameters. It is set if the communicator is given
    // up before the stream has done the work that it has so far.
    const std::uint32_t* stop_behind(cudaStream_t stream) const {
        return stop_.look(stream, this->rank());
    }

    using typed::gradients_, typed::shared_gradients_, typed::values_;

private:
    using typed::options_, typed::parameters_;

    // The part of a parameter that this rank steps.
    owned_slice slice(std::size_t i) const {
        const auto& p = parameters_[i];
        if (!options_.shard_state || p.kind != parameter_kind::shared) return {0, p.value.size()};
        return slice_of<T>(p.value.size(), this->rank(), this->steps().size());
    }

    // The optimizer sees this rank's slices only.
    void take_slices() {
        this->steps().buckets.for_each([&](auto& bucket) {
            for (std::size_t n = 0; n < bucket.members().size(); ++n) {
                const std::size_t i = bucket.members()[n];
                const owned_slice s = slice(i);
                values_[i] = device_view(
                    parameters_[i].value.template as<T, device>().data() + s.begin, s.count);
                gradients_[i] = shared_gradients_[i] = bucket.gradient_slice(n, s.count);
            }
        });
    }

    launch_stop stop_;
};

}  // namespace hvd::inline v0::detail
