// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/bucket_members.hpp"
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
class device_reducer {
    using tensor = tensor_view<T, device>;
    using registered = registered_parameter<T, device>;

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

    /// From now on parameter i neither travels nor is stepped. Call it between steps, on all ranks
    /// alike. An optimizer that steps by itself must leave it out too.
    void freeze(std::size_t i) { set_frozen(i, true); }
    /// Ends the freeze. The parameter continues with its old state.
    void unfreeze(std::size_t i) { set_frozen(i, false); }

    /// The next steps belong to this epoch. Ranks compare it in the messages of each step: if they
    /// are in different epochs, since one has made more steps, the first such step throws
    /// `hvd::mismatch_error`, which names the epochs. Call it between steps, on all ranks alike. It
    /// does nothing for reductions by `nccl`, which compares no calls, and for captured steps.
    void begin_epoch(std::uint64_t epoch);

    /// Sets all gradients to zero, also those of frozen parameters, behind the work of `stream`.
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
    /// It waits until the peers have made their reports. A step whose gradients were all reported
    /// succeeds on the peers if they agree on nothing later: on the optimizer's numbers in the
    /// first step, on sparse tables, with Adasum and with skip_nonfinite.
    void abandon(std::string_view why = "a rank abandoned its step");

    /// Reports that this rank has no gradients in this step. It contributes zeros.
    void nothing_ready() {
        require_closed();
        some_reported_ = true;
    }

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
        for (const auto& p : parameters_) values.push_back(p.frozen ? tensor() : p.value);
        return values;
    }

    /// The parameters that are not local, including frozen ones.
    std::vector<tensor> shared_parameters() const {
        std::vector<tensor> shared;
        for_each_shared(
            [&](const std::string&, const tensor& value, const auto&) { shared.push_back(value); });
        return shared;
    }

    /// Calls `f(name, value, shape)` for each parameter that is not local. The value is flat.
    template <class F>
    void for_each_shared(F f) const {
        for (const auto& p : parameters_)
            if (p.kind != parameter_kind::local) f(p.name, p.value, p.shape);
    }

    /// Calls `f(name, value, shape)` for all parameters, including local ones.
    template <class F>
    void for_each_parameter(F f) const {
        for (const auto& p : parameters_) f(p.name, p.value, p.shape);
    }

    /// True if parameter i exists and is local to this rank.
    bool is_local(std::size_t i) const {
        return i < parameters_.size() && parameters_[i].kind == parameter_kind::local;
    }

    /// The number of buckets of the last step, and the number of those under way.
    std::size_t buckets() const noexcept { return buckets_.size(); }
    std::size_t buckets_started() const noexcept { return buckets_.started(); }

protected:
    device_reducer(Comm& comm, optimizer_options options)
        : comm_(comm),
          options_(std::move(options)),
          session_(device_access::session_of(comm)),
          calls_(comm),
          stop_((current_device(session_->device(), session_->rank()), session_->rank())),
          writers_of_rest_(*session_) {
        check_options<typename Comm::backend_type>(comm.rank(), options_);
        if (const char* const why = no_plan_codec<T>(options_.codec)) refuse(why);
        if (options_.shard_state && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("a sharded optimizer", comm.rank()));
        if (options_.error_feedback && !has_kernels())
            throw usage_error(comm.rank(), no_kernels("error feedback", comm.rank()));
        device_access::for_each_session(
            comm, [&](device_session& session) { session.stop_too(stop_.word()); });
    }
    ~device_reducer() = default;

    const optimizer_options& options() const { return options_; }
    device_session& session() const { return *session_; }

    // Takes the gradients of synchronize() for the step. Returns the largest norm they may have.
    double close(synchronized_gradients<T, device>&& synchronized) {
        const auto gradients = std::move(synchronized);
        if (gradients.open_ != &open_)
            refuse("apply() of gradients that are not this optimizer's, or applied already");
        return gradients.largest_norm_;
    }

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        detail::refuse(comm_.rank(), parts...);
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

    const parameter_list<T, device>& all() const { return parameters_; }

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

    std::vector<tensor> values_, gradients_;
    bool agrees_on_numbers_ = false;  // the next synchronize() ends with an agreement

private:
    template <class P, class G>
    std::size_t add(registered p, std::string_view name, P& value, G& gradient) {
        if (some_reported_ || buckets_.started() > 0)
            refuse("parameter \"", name, "\" is registered while gradients are under way");
        require_closed();
        const auto shape = to_view(value).shape();
        p.name = name;
        p.value = flat_view<device>(value);
        p.gradient = flat_view<device>(gradient);
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

    void refuse_host_memory(std::string_view name, const char* what, const tensor& t) const {
        const message why =
            reason_to_refuse(what, t.data(), t.size(), session_->rank(), session_->device());
        if (!why.empty()) refuse("parameter \"", name, "\": ", why);
    }

    void set_frozen(std::size_t i, bool frozen);

    template <class P, class G>
    std::size_t add_sparse(std::string_view name, P& value, G& gradient, std::size_t columns,
                           sparse_policy policy) {
        const auto table = flat_view<device>(gradient);
        if (columns == 0 || table.size() % columns != 0)
            refuse("sparse parameter \"", name, "\": a table of ", table.size(),
                   " elements has no rows of ", columns);
        if (options_.op == gradient_op::adasum)
            refuse(
                "sparse parameter \"", name,
                "\": gradients in rows are averaged or summed, and this optimizer's op is Adasum");
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

    // `take` throws for a wrong report. The peers that wait for it are told.
    template <class Take>
    void report(std::size_t i, cudaStream_t stream, Take take);

    void check_report(std::size_t i) const;

    void require_closed() const {
        if (open_)
            refuse("the gradients of this step are synchronized: apply() or drop them first");
    }

    void zero(const registered& p, cudaStream_t stream) const {
        const current_device here(session_->device(), session_->rank());
        if (p.gradient.size() > 0)
            check_cuda(cudaMemsetAsync(p.gradient.data(), 0, p.gradient.size() * sizeof(T), stream),
                       "cudaMemsetAsync", session_->rank());
    }

    // Makes this rank contribute zeros for unreported gradients. Local ones are not sent.
    void zero_unreported(cudaStream_t stream) const {
        for (const auto& p : parameters_)
            if (p.reports == 0 && p.kind != parameter_kind::local && !p.frozen) zero(p, stream);
    }

    void start_complete_buckets(std::size_t i, cudaStream_t stream);

    void begin_next_step() {
        for (auto& p : parameters_) p.reports = 0;
        some_reported_ = false;
    }

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

    // Refuses the reduction that the peers make next. They make no further call after it.
    [[gnu::cold]] void refuse_reduction(collective kind, std::string_view why);

    double pass_scale() const {
        return options_.average_passes ? 1.0 / options_.backward_passes_per_step : 1;
    }

    void scale_what_stayed(cudaStream_t stream) const;

    // Collective if something has changed since the last step. The host waits then.
    void seal();

    // The optimizer sees this rank's slices only.
    void take_slices();

    void refresh_lists();

    Comm& comm_;
    optimizer_options options_;
    std::shared_ptr<device_session> session_;
    detail::host_calls<Comm> calls_;
    parameter_list<T, device> parameters_;
    std::vector<tensor> shared_gradients_;  // empty for local parameters
    launch_stop stop_;
    device_buckets<Comm, T> buckets_;
    said_epoch epoch_;
    std::vector<device_sparse_gradient<T>> sparse_;
    later_streams writers_of_rest_;       // of gradients that are in no bucket
    cuda_event edge_;                     // between a step's stream and the communicator's own
    cudaStream_t last_stream_ = nullptr;  // for what reads the state between steps
    std::optional<std::string> agreed_;   // the parameters of the buckets
    bool sealed_ = false, changed_ = false, some_reported_ = false;
    bool open_ = false;  // true while a synchronized_gradients exists
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd

#include "reducer_bodies.hpp"
