// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/bucket_members.hpp"
#include "../gradients/reports.hpp"
#include "../gradients/residuals.hpp"
#include "../optimizer/options_agreement.hpp"
#include "../optimizer/synchronized.hpp"
#include "bucket.hpp"
#include "sparse.hpp"
#include "update.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

/// The part of a distributed_optimizer of device tensors that does not depend on the optimizer
/// inside: it has the parameters and reduces their gradients.
template <class Comm, class T>
class device_reducer : public parameter_tensors<T, device> {
    using reports = parameter_tensors<T, device>;
    using tensor = tensor_view<T, device>;

public:
    device_reducer(const device_reducer&) = delete;
    device_reducer& operator=(const device_reducer&) = delete;

    /// Registers a parameter that all ranks have, and returns its index. Names are unique.
    /// @throws hvd::usage_error for a name that is already registered, sizes that differ, and
    /// memory that overlaps another parameter or gradient.
    template <class P, class G>
    std::size_t register_parameter(std::string_view name, P&& value, G&& gradient) {
        if constexpr (check_parameter<T, P, G>())
            return add({.kind = parameter_kind::shared}, name, value, gradient);
        return 0;
    }

    /// Registers a parameter that belongs to this rank. Its gradient never travels, and is divided
    /// by the number of ranks unless `scale_local` is false.
    template <class P, class G>
    std::size_t register_local(std::string_view name, P&& value, G&& gradient) {
        if constexpr (check_parameter<T, P, G>())
            return add({.kind = parameter_kind::local}, name, value, gradient);
        return 0;
    }

    /// Registers a table (rows × `columns`, row-major) that all ranks have, and whose gradient is
    /// reported in rows by `gradient_ready(i, rows, stream)`. `gradient` is a table too.
    /// `synchronize()` fills it with zeros and the rows that any rank has. The host merges the rows
    /// and waits for them.
    /// @throws hvd::usage_error also for columns that do not divide the table, and with Adasum.
    /// @snippet tests/train/device_snippets.cpp register_sparse
    template <class P, class G>
    std::size_t register_sparse(std::string_view name, P&& value, G&& gradient, std::size_t columns,
                                sparse_policy policy = sparse_policy::automatic) {
        if constexpr (check_parameter<T, P, G>())
            return add_sparse(name, value, gradient, columns, policy);
        return 0;
    }

    /// The next steps belong to this epoch. Ranks compare it in the messages of each step: if they
    /// are in different epochs, since one has made more steps, the first such step throws
    /// `hvd::mismatch_error`, which names the epochs. Call it between steps, on all ranks alike. It
    /// does nothing for reductions by `nccl`, which compares no calls, and for captured steps.
    void begin_epoch(std::uint64_t epoch);

    /// Sets all gradients to zero, also those of frozen parameters, behind the work of `stream`.
    /// After a report that was refused when the peers had all that they need, it drops this rank's
    /// step, unless the backend compares no reductions (NCCL): see docs/training.md.
    /// @throws hvd::usage_error while gradients are under way.
    void zero_gradients(cudaStream_t stream = nullptr);

    /// Reports that the work which `stream` has been given writes gradient i, and that the rest of
    /// the pass leaves it alone. A bucket whose gradients are all ready starts behind that work.
    /// @throws hvd::usage_error after more than `backward_passes_per_step` reports in a step.
    void gradient_ready(std::size_t i, cudaStream_t stream = nullptr);

    /// Reports rows of a sparse parameter, which the work of `stream` writes. Rows of one index are
    /// added, also to those of the step's earlier passes. They are copied behind that work.
    /// @throws hvd::usage_error also for sizes that do not fit. An index that is out of range is
    /// refused in `synchronize()`.
    void gradient_ready(std::size_t i, const sparse_view<T, device>& rows,
                        cudaStream_t stream = nullptr);
    /// Gives up the current step if this rank's backward pass has failed. The calls of the peers'
    /// step throw `hvd::peer_error` with `why`. On all ranks the next step begins with
    /// `zero_gradients()`. A report that is refused does this by itself. A backend that does not
    /// compare its reductions (NCCL) can't tell the peers while they wait for a reduction: the
    /// communicator is given up then.
    ///
    /// It waits until the peers have made their reports. After this rank's last report the peers
    /// step, unless the ranks agree on something later: on the optimizer's numbers in the first
    /// step, on sparse tables, with Adasum and with skip_nonfinite.
    /// @throws hvd::usage_error if the peers step. Nothing has changed then: call `step()`, too.
    void abandon(std::string_view why = "a rank abandoned its step");

    /// Reports that this rank has no further gradients in this step. It contributes zeros for those
    /// that no pass has reported.
    void nothing_ready() { reports::say_nothing_ready(); }

    /// Reports that this pass does not write gradient i. If no pass of the step has, the gradient
    /// becomes zeros, behind the work of `stream`.
    /// @throws hvd::usage_error as `gradient_ready`.
    void nothing_ready(std::size_t i, cudaStream_t stream = nullptr);

    /// Makes later work of `stream` come after the reduction of all gradients. Gradients that were
    /// not reported are those that the earlier work of `stream` writes. The host does not wait.
    /// **Collective**.
    /// @throws hvd::mismatch_error if the ranks have other options or parameters, hvd::peer_error.
    synchronized_gradients<T, device> synchronize(cudaStream_t stream = nullptr);

    /// The communicator of the gradients.
    Comm& comm() noexcept { return comm_; }
    /// For hvd: the stream of the last call here, behind which state is read between steps.
    cudaStream_t last_stream() const noexcept { return last_stream_; }
    /// For hvd: what error feedback has not applied yet, for checkpoints. **Collective**.
    whole_residuals residuals() {
        fetch_residuals();
        return gather_residuals(calls_, parameters_, options_);
    }
    /// For hvd: takes this rank's part of the root's. **Collective**.
    void take_residuals(whole_residuals&& all) {
        scatter_residuals(calls_, parameters_, options_, std::move(all));
        each_feedback([&](auto& feedback) { feedback.store(parameters_); });
    }
    /// For hvd: its calls with tensors of the host.
    detail::host_calls<Comm>& host_calls() noexcept { return calls_; }

    /// The parameters, in the order of registration; empty for frozen ones.
    std::vector<tensor> parameters() const {
        std::vector<tensor> values;
        for (const auto& p : parameters_)
            values.push_back(p.frozen ? tensor() : p.value.template as<T, device>());
        return values;
    }

    /// The number of buckets of the last step, and the number of those under way.
    std::size_t buckets() const noexcept { return buckets_.size(); }
    std::size_t buckets_started() const noexcept { return buckets_.started(); }

protected:
    device_reducer(Comm& comm, optimizer_options options)
        : reports(comm.rank(), std::move(options)),
          comm_(comm),
          session_(device_access::session_of(comm)),
          calls_(comm),
          stop_((current_device(session_->device(), session_->rank()), session_->rank())),
          writers_of_rest_(*session_) {
        if (options_.bucket_bytes == 0)
            options_.bucket_bytes = session_->options().tuning.bucket_bytes;
        check_options(comm.rank(), options_, abilities_of<typename Comm::backend_type>);
        if (const char* const why = no_plan_codec<T>(options_.codec)) refuse(why);
        if (options_.shard_state && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("a sharded optimizer", comm.rank()));
        if (options_.error_feedback && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("error feedback", comm.rank()));
        device_access::for_each_session(
            comm, [&](device_session& session) { session.stop_too(stop_.word()); });
    }
    ~device_reducer() = default;

    device_session& session() const { return *session_; }

    // The changes of the gradients that the step makes, in this order.
    struct gradient_changes {
        double factor, largest_norm;
        bool clips() const { return largest_norm < std::numeric_limits<double>::infinity(); }
    };

    // Takes the gradients of synchronize() for the step.
    gradient_changes close(synchronized_gradients<T, device>&& synchronized) {
        const auto gradients = std::move(synchronized);
        if (gradients.open_ != &open_)
            refuse("apply() of gradients that are not this optimizer's, or applied already");
        if (gradients.factor_ != 1 && !options_.skip_nonfinite)
            refuse("a loss_scale is for optimizers with .skip_nonfinite = true");
        return {gradients.factor_, gradients.largest_norm_};
    }

    static double factor_of(const synchronized_gradients<T, device>& gradients) {
        return gradients.factor_;
    }

    void refuse_capture_of_adasum(cudaStream_t stream) const {
        if (options_.op == gradient_op::adasum) refuse_capture(stream, "Adasum");
    }

    // Later calls read state behind the work of this stream.
    void used(cudaStream_t stream) { last_stream_ = stream; }

    // Ends the buckets under way: their memory is freed only after that.
    void end_buckets() noexcept { buckets_.clear(); }

    // The tensors that are stepped have changed since the last call.
    bool take_change() { return std::exchange(changed_, false); }

    const parameter_list& all() const { return parameters_; }

    // The name of calls that are no buckets'.
    message epoch_name() const { return epoch_.name(); }

    // The part of a parameter that this rank steps.
    owned_slice slice(std::size_t i) const {
        const auto& p = parameters_[i];
        if (!options_.shard_state || p.kind != parameter_kind::shared) return {0, p.value.size()};
        return slice_of<T>(p.value.size(), comm_.rank(), comm_.size());
    }

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
    std::vector<norm_part> norm_parts() const;

    // Adds the slices of the other ranks to those of this rank. Elsewhere its slots are zeros.
    template <class Slots>
    void add_slices_of_others(Slots& slots) {
        if (!options_.shard_state) return;
        std::vector<std::uint8_t> exist;
        for (const auto& slot : slots) exist.push_back(!slot.empty());
        calls_.allreduce(exist, max);
        for (std::size_t i = 0; i < slots.size(); ++i) {
            if (exist[i] == 0 || parameters_[i].kind != parameter_kind::shared) continue;
            slots[i].resize(parameters_[i].value.size());
            calls_.allreduce(slots[i], sum);
        }
    }

    // Gives every rank the new values of all slices, behind the work of the stream.
    void spread_values(cudaStream_t stream) {
        if (!options_.shard_state) return;
        buckets_.for_each([&](auto& bucket) { bucket.send_values(stream); });
        const std::uint32_t* const stop = stop_behind(stream);
        buckets_.for_each([&](auto& bucket) { bucket.take_values(stream, stop); });
    }

    // The step is made, unless the word in device memory is not 0: what the rounding of its
    // gradients lost is added to the next ones. The copies are on the communicator's own stream,
    // where the next step rounds. The host waits for the word if there are sparse gradients.
    void keep_residuals(cudaStream_t stream, std::uint32_t* skip);

    // Returns the flag for launches that change parameters. It is set if the communicator is given
    // up before the stream has done the work that it has so far.
    const std::uint32_t* stop_behind(cudaStream_t stream) const {
        return stop_.look(stream, comm_.rank());
    }

    using reports::agrees_on_numbers_;
    using reports::gradients_, reports::refuse, reports::values_;

private:
    using reports::agreed_, reports::open_, reports::options_, reports::parameters_;
    using reports::pass_scale, reports::refresh_lists, reports::reports_, reports::require_closed;
    using reports::sealed_, reports::shared_gradients_, reports::some_reported_;

    template <class P, class G>
    std::size_t add(registered_parameter p, std::string_view name, P& value, G& gradient) {
        if (some_reported_ || buckets_.started() > 0)
            refuse("parameter \"", name, "\" is registered while gradients are under way");
        require_closed();
        const auto shape = to_view(value).shape();
        p.name = name;
        p.value = flat_tensor(flat_view<device>(value));
        p.gradient = flat_tensor(flat_view<device>(gradient));
        for (const auto& t : {p.value, p.gradient})
            if (t.size() > 0 && t.data() == nullptr)
                refuse("parameter \"", name, "\": null pointer with ", t.size(), " elements");
        refuse_host_memory(name, "its value", p.value);
        refuse_host_memory(name, "its gradient", p.gradient);
        p.shape.assign(shape.begin(), shape.end());
        check_registration(comm_.rank(), parameters_, p);
        parameters_.push_back(std::move(p));
        sealed_ = false;
        return parameters_.size() - 1;
    }

    void refuse_host_memory(std::string_view name, const char* what, const flat_tensor& t) const {
        const message why =
            reason_to_refuse(what, t.data(), t.size(), session_->rank(), session_->device());
        if (!why.empty()) refuse("parameter \"", name, "\": ", why);
    }

    template <class P, class G>
    std::size_t add_sparse(std::string_view name, P& value, G& gradient, std::size_t columns,
                           sparse_policy policy) {
        const auto table = flat_view<device>(gradient);
        reports::check_table(name, table.size(), columns);
        const std::size_t i =
            add({.kind = parameter_kind::sparse, .columns = columns, .policy = policy}, name, value,
                gradient);
        sparse_.emplace_back(*session_, i, table, columns, policy);
        return i;
    }

    device_sparse_gradient<T>* sparse_of(std::size_t parameter) {
        for (auto& s : sparse_)
            if (s.parameter() == parameter) return &s;
        return nullptr;
    }

    void reduce_sparse(cudaStream_t stream);

    template <class F>
    void each_feedback(F f) {
        if constexpr (std::is_same_v<T, float>)
            buckets_.for_each([&](auto& bucket) { bucket.with_feedback(f); });
    }
    // Buckets are made anew when other parameters are frozen; the parameters keep the residuals.
    void fetch_residuals() {
        each_feedback([&](auto& feedback) { feedback.fetch(parameters_); });
    }

    void refuse_capture(cudaStream_t stream, const char* what) const {
        detail::refuse_capture(*session_, stream, what,
                               ": make a step before the capture; sparse gradients and Adasum are "
                               "not captured");
    }

    // True if all reductions have begun and the ranks agree on nothing later.
    bool peers_step_anyway() const;

    // `take` throws for a wrong report. The peers that wait for it are told.
    template <class Take>
    void report(const char* call, std::size_t i, cudaStream_t stream, Take take);

    void zero(const registered_parameter& p, cudaStream_t stream) const {
        const current_device here(session_->device(), session_->rank());
        if (p.gradient.size() > 0)
            check_cuda(cudaMemsetAsync(p.gradient.data(), 0, p.gradient.bytes(), stream),
                       "cudaMemsetAsync", session_->rank());
    }

    // Orders the buckets behind a pass whose reports do not count.
    void follow_quiet(std::size_t i, cudaStream_t stream);

    void start_complete_buckets(std::size_t i, cudaStream_t stream);

    template <class F>
    void over_if_it_fails(F f) {
        try {
            f();
        } catch (...) {
            forget_step();
            throw;
        }
    }

    // After a failure the ranks agree on the next step anew.
    [[gnu::cold]] void forget_step();

    bool has_sparse() const {
        for (const auto& s : sparse_)
            if (!parameters_[s.parameter()].frozen) return true;
        return false;
    }

    // Refuses the agreement that the peers make next.
    [[gnu::cold]] void refuse_agreement(std::string_view why) {
        try {
            refuse_call(calls_, why);
        } catch (...) {  // the failure of the backward pass is the one to report
        }
    }

    // The calls of the buckets.
    collective reduction() const {
        return options_.shard_state || options_.error_feedback ? collective::reduce_scatter
                                                               : collective::allreduce;
    }

    void check_passes();
    // Ends a step of which the last report was refused, where the peers may make it.
    [[gnu::cold]] void drop_step_of_peers(cudaStream_t stream);

    // Refuses the reduction that the peers make next. They make no further call after it.
    [[gnu::cold]] void refuse_reduction(collective kind, std::string_view why);

    void scale_what_stayed(cudaStream_t stream) const;

    // Collective if something has changed since the last step. The host waits then.
    void seal();
    void make_buckets(std::string described);

    // A captured step needs its buckets for as long as its graph exists.
    void keep_buckets_if_captured(cudaStream_t stream);

    // The optimizer sees this rank's slices only.
    void take_slices();

    Comm& comm_;
    std::shared_ptr<device_session> session_;
    detail::host_calls<Comm> calls_;
    launch_stop stop_;
    device_buckets<Comm, T> buckets_;
    said_epoch epoch_;
    std::vector<device_sparse_gradient<T>> sparse_;
    later_streams writers_of_rest_;       // of gradients that are in no bucket
    cuda_event edge_;                     // between a step's stream and the communicator's own
    cuda_event end_of_quiet_;             // of the reports that do not count
    cudaStream_t last_stream_ = nullptr;  // for what reads the state between steps
    bool changed_ = false;                // see take_change()
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd

#include "reducer_bodies.hpp"
