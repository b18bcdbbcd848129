// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../gradients/bucket_queue.hpp"
#include "../optimizer/ordered_steps.hpp"
#include "bucket.hpp"
#include "host_calls.hpp"
#include "mirror.hpp"
#include "sparse.hpp"
#include "streams.hpp"

namespace hvd::inline v0::detail {

// The steps of a reducer on a device: everything comes behind the work of a stream. Buckets run on
// the communicator's own stream, in one order, and the ranks compare the rest on the host.
template <class Comm, class T>
class device_steps : public steps_in_order {
public:
    using place = cudaStream_t;
    using space = device;
    using calls_type = host_calls<Comm>;
    template <class>
    using table = device_table<device_steps, T>;

    explicit device_steps(Comm& comm)
        : comm_(comm),
          session_(device_access::session_of(comm)),
          calls_(comm),
          writers_of_rest_(*session_) {}

    explicit operator bool() const noexcept { return true; }
    int rank() const noexcept { return session_->rank(); }
    int size() const noexcept { return comm_.size(); }
    host_calls<Comm>& calls() { return calls_; }
    host_calls<Comm>& calls_for(std::string_view) { return calls_; }
    device_session& session() const { return *session_; }
    Comm& comm() const { return comm_; }
    std::size_t bucket_bytes() const { return session_->options().tuning.bucket_bytes; }

    // The stream of the last call, behind which state is read between steps.
    cudaStream_t last_place() const { return last_stream_; }
    void follow(cudaStream_t stream) { last_stream_ = stream; }

    void zero(const flat_tensor& t, cudaStream_t stream) const {
        const current_device here(session_->device(), rank());
        if (t.size() > 0)
            check_cuda(cudaMemsetAsync(t.data(), 0, t.bytes(), stream), "cudaMemsetAsync", rank());
    }
    void scale(const flat_tensor& t, double factor, cudaStream_t stream) const {
        scale_on_device(*session_, t.as<T, device>(), factor, stream);
    }

    void check(const registered_parameter& p) const {
        for (const auto& t : {p.value, p.gradient})
            if (t.size() > 0 && t.data() == nullptr)
                detail::refuse(rank(), "parameter \"", p.name, "\": null pointer with ", t.size(),
                               " elements");
        refuse_host_memory(p.name, "its value", p.value);
        refuse_host_memory(p.name, "its gradient", p.gradient);
    }

    // ---- reports --------------------------------------------------------------------------------

    template <class Reducer>
    void begin_reports(Reducer& all, cudaStream_t stream) {
        if (!all.sealed_) keep_buckets_if_captured(all, stream);
        if (!all.sealed_) refuse_capture(stream, "this step");
    }
    template <class Reducer>
    void begin_reduction(Reducer& all, cudaStream_t stream) {
        keep_buckets_if_captured(all, stream);
        if (!all.sealed_ || !all.tables_.empty()) refuse_capture(stream, "this step");
    }

    // Orders the buckets behind a pass whose reports do not count.
    template <class Reducer>
    void follow_uncounted(Reducer& all, std::size_t i, cudaStream_t stream) {
        if (!all.parameters_[i].travels() || all.options_.op == hvd::adasum)
            return writers_of_rest_.add(stream);
        const current_device here(session_->device(), rank());
        session_->guarded(
            [&] { order_streams(stream, session_->own_stream(), end_of_uncounted_, rank()); });
    }
    void begin_behind(std::size_t i, cudaStream_t stream) {
        auto* const bucket = buckets.find(i);
        if (bucket != nullptr) bucket->follow(stream);
        else writers_of_rest_.add(stream);
    }
    // The stream comes behind the gradients that are in no bucket.
    void join_writers(cudaStream_t stream) { writers_of_rest_.make_wait(stream); }
    void end_step() { writers_of_rest_.clear(); }

    void refuse_capture(cudaStream_t stream, const char* what) const {
        detail::refuse_capture(*session_, stream, what,
                               ": make a step before the capture; sparse gradients and Adasum are "
                               "not captured");
    }

    // ---- what the ranks tell each other ---------------------------------------------------------

    bool is_broken() const { return session_->broken(); }
    bool tells_peers() const { return session_->compares(reduction_); }

    template <class... Parts>
    [[gnu::always_inline, noreturn]] void refuse(const Parts&... parts) {
        refuse_call(calls_, parts...);
    }

    // Refuses the reduction that the peers make next. They make no further call after it.
    [[gnu::cold]] void refuse_reductions(std::size_t, std::string_view why) {
        refuse_reduction(reduction_, why);
    }
    // Refuses the call that the peers make after those of their buckets, or before them.
    template <class Reducer>
    [[gnu::cold]] void refuse_next(const Reducer& all, std::string_view why) {
        if (!all.agrees_first() && !all.has_sparse() && !all.agrees_on_numbers_ &&
            all.options_.op != hvd::adasum)
            return refuse_reduction(collective::allreduce, why);  // that of skip_nonfinite
        try {
            refuse_call(calls_, why);
        } catch (...) {  // the failure of the backward pass is the one to report
        }
    }

    template <class F>
    static auto prepared(F make) {
        return make();
    }
    template <class F>
    static auto on_all(F make) {
        return make();
    }

    // **Collective**: returns true if a rank makes its buckets anew.
    template <class Reducer>
    bool agree(Reducer& all) {
        agree_on_options(calls_, all.take_agreement_name(), all.options_, all.parameters_);
        return all.reports_.agree(calls_, all.parameters_.size(), all.has_changed());
    }

    void list_buckets(member_lists&& members, const parameter_list&, const optimizer_options&,
                      const reduce_options&) {
        listed_ = std::move(members);
    }
    void make_plans(const parameter_list& parameters, const optimizer_options& options,
                    const reduce_options& scales) {
        reduction_ = options.shard_state || options.codec.keeps_residual()
                         ? collective::reduce_scatter
                         : collective::allreduce;
        for (auto& of : std::exchange(listed_, {}))
            buckets.add({comm_, std::move(of), parameters, options,
                         device_plan_options{.name = scales.name,
                                             .prescale = scales.prescale,
                                             .postscale = scales.postscale}});
    }

    void tell(const said_epoch& epoch) { epoch.tell(buckets); }

    // After a failure the ranks always agree on the next step anew.
    bool agrees_anew(parameter_list& parameters) {
        try {
            if (!is_broken()) fetch_residuals(parameters);
        } catch (...) {  // the failure of the step is the one to report
        }
        return true;
    }

    // ---- residuals: buckets are made anew, and the parameters keep them -------------------------

    void fetch_residuals(parameter_list& parameters) {
        each_feedback([&](auto& feedback) { feedback.fetch(parameters); });
    }
    void store_residuals(const parameter_list& parameters) {
        each_feedback([&](auto& feedback) { feedback.store(parameters); });
    }
    // The step is made, unless the word in device memory is not 0. The copies are on the
    // communicator's own stream, where the next step rounds.
    void keep_residuals(cudaStream_t stream, const std::uint32_t* skip) {
        const current_device here(session_->device(), rank());
        const cudaStream_t own = session_->own_stream();
        session_->guarded([&] {
            order_streams(stream, own, edge_, rank());
            each_feedback([&](auto& feedback) { feedback.commit(own, skip); });
            order_streams(own, stream, edge_, rank());
        });
    }

private:
    Comm& comm_;
    std::shared_ptr<device_session> session_;
    detail::host_calls<Comm> calls_;

public:
    bucket_queue<device_bucket<Comm, T>> buckets;

private:
    void refuse_host_memory(std::string_view name, const char* what, const flat_tensor& t) const {
        const message why = reason_to_refuse(what, t.data(), t.size(), rank(), session_->device());
        if (!why.empty()) detail::refuse(rank(), "parameter \"", name, "\": ", why);
    }

    // A captured step needs its buckets for as long as its graph exists.
    template <class Reducer>
    void keep_buckets_if_captured(Reducer& all, cudaStream_t stream) {
        if (!all.reports_.looks()) return;
        const current_device here(session_->device(), rank());
        if (!is_capturing(stream, rank())) return;
        all.reports_.keep();
        if (!all.has_changed()) all.sealed_ = true;
    }

    void refuse_reduction(collective kind, std::string_view why) {
        if (size() == 1) return;
        if (!session_->compares(kind)) return session_->give_up(why);
        call_header mine;
        mine.kind = kind;
        mine.refuse(text("hvd: ", why));
        try {
            session_->post_refusal(mine, session_->limit_for({}));
        } catch (...) {
        }
    }

    template <class F>
    void each_feedback(F f) {
        if constexpr (std::is_same_v<T, float>)
            buckets.for_each([&](auto& bucket) { bucket.with_feedback(f); });
    }

    member_lists listed_;            // the members of the buckets that are made next
    later_streams writers_of_rest_;  // of gradients that are in no bucket
    cuda_event edge_;                // between a step's stream and the communicator's own
    cuda_event end_of_uncounted_;    // of the reports that do not count
    cudaStream_t last_stream_ = nullptr;
    collective reduction_ = collective::allreduce;  // the calls of the buckets
};

}  // namespace hvd::inline v0::detail
