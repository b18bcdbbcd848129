// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "reducer.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <class Comm, class T>
void device_reducer<Comm, T>::begin_epoch(std::uint64_t epoch) {
    if (some_reported_ || buckets_.started() > 0)
        refuse("epoch ", epoch, " begins between steps; gradients are under way");
    require_closed();
    epoch_.begin(epoch);
    epoch_.tell(buckets_);
}

template <class Comm, class T>
void device_reducer<Comm, T>::zero_gradients(cudaStream_t stream) {
    if (reports::has_refused_step()) drop_step_of_peers(stream);
    if (buckets_.started() > 0)
        refuse(
            "zero_gradients() while gradients are under way: synchronize() or step() first, "
            "or abandon() a step that failed");
    last_stream_ = stream;
    for (const auto& p : parameters_) zero(p, stream);
    for (auto& s : sparse_) s.clear();
}

template <class Comm, class T>
void device_reducer<Comm, T>::gradient_ready(std::size_t i, cudaStream_t stream) {
    report("gradient_ready", i, stream, [&] {
        if (sparse_of(i) != nullptr)
            refuse("gradient_ready(", i, "): \"", parameters_[i].name,
                   "\" is sparse; say its rows too");
    });
    parameters_[i].written = true;
}

template <class Comm, class T>
void device_reducer<Comm, T>::gradient_ready(std::size_t i, const sparse_view<T, device>& rows,
                                             cudaStream_t stream) {
    report("gradient_ready", i, stream, [&] {
        auto* const sparse = sparse_of(i);
        if (sparse == nullptr)
            refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
        sparse->check(comm_.rank(), rows);
        refuse_capture(stream, "rows of a sparse gradient");
        sparse->add(rows, stream);
    });
    parameters_[i].written = true;
}

template <class Comm, class T>
void device_reducer<Comm, T>::nothing_ready(std::size_t i, cudaStream_t stream) {
    report("nothing_ready", i, stream, [&] {
        if (reports::becomes_zeros(i)) zero(parameters_[i], stream);
    });
}

template <class Comm, class T>
void device_reducer<Comm, T>::abandon(std::string_view why) {
    require_closed();
    if (peers_step_anyway()) reports::refuse_late_abandon(why);
    constexpr std::string_view hvd = "hvd: ";  // a refusal adds it again
    if (why.substr(0, hvd.size()) == hvd) why.remove_prefix(hvd.size());
    const bool agrees_first = reports::agrees_first(),
               reduces = !agrees_first && buckets_.started() < buckets_.size(),
               gathers = has_sparse();
    if (reduces) refuse_reduction(reduction(), why);
    else if (agrees_first || gathers || agrees_on_numbers_ || options_.op == gradient_op::adasum)
        refuse_agreement(why);
    else if (options_.skip_nonfinite) refuse_reduction(collective::allreduce, why);
    if (agrees_first || reduces || gathers || session_->broken()) return forget_step();
    writers_of_rest_.clear();
    buckets_.finish(last_stream_);
    reports::end_step();  // as on the peers
}

template <class Comm, class T>
void device_reducer<Comm, T>::check_passes() {
    try {
        reports::check_passes();
    } catch (const usage_error& e) {
        abandon(e.what());
        throw;
    }
}

// Peers that have reported alike drop it, too. The others are told in the next step.
template <class Comm, class T>
void device_reducer<Comm, T>::drop_step_of_peers(cudaStream_t stream) {
    require_closed();
    over_if_it_fails([&] { buckets_.finish(stream); });
    writers_of_rest_.clear();
    reports::drop_refused_step();
}

template <class Comm, class T>
bool device_reducer<Comm, T>::peers_step_anyway() const {
    const bool agrees_later = has_sparse() || agrees_on_numbers_ || options_.skip_nonfinite ||
                              options_.op == gradient_op::adasum;
    return comm_.size() > 1 && buckets_.size() > 0 && buckets_.started() == buckets_.size() &&
           !reports::agrees_first() && !agrees_later && !session_->broken();
}

template <class Comm, class T>
synchronized_gradients<T, device> device_reducer<Comm, T>::synchronize(cudaStream_t stream) {
    require_closed();
    last_stream_ = stream;
    check_passes();
    keep_buckets_if_captured(stream);
    if (!sealed_ || !sparse_.empty()) refuse_capture(stream, "this step");
    over_if_it_fails([&] {
        seal();
        writers_of_rest_.make_wait(stream);
        reports::for_each_zero([&](const registered_parameter& p) { zero(p, stream); });
        buckets_.finish(stream);
        reduce_sparse(stream);
    });
    scale_what_stayed(stream);
    reports::end_step();
    return {comm_.rank(), gradients_, shared_gradients_, shared_gradients_, open_};
}

template <class Comm, class T>
std::vector<norm_part> device_reducer<Comm, T>::norm_parts() const {
    std::vector<norm_part> all;
    for (const auto& p : parameters_)
        all.push_back(p.kind == parameter_kind::local ? norm_part::none
                      : options_.shard_state && p.kind == parameter_kind::sparse &&
                              comm_.rank() != 0
                          ? norm_part::measured_elsewhere
                          : norm_part::measured);
    return all;
}

template <class Comm, class T>
void device_reducer<Comm, T>::reduce_sparse(cudaStream_t stream) {
    const double f = options_.gradient_predivide_factor;
    for (auto& s : sparse_) {
        if (!parameters_[s.parameter()].frozen)
            s.reduce(calls_, options_, 1 / f, f * pass_scale(), parameters_[s.parameter()].residual,
                     epoch_.name(), stream);
        s.clear();
    }
}

template <class Comm, class T>
void device_reducer<Comm, T>::keep_residuals(cudaStream_t stream, std::uint32_t* skip) {
    if (!options_.error_feedback) return;
    const current_device here(session_->device(), session_->rank());
    const cudaStream_t own = session_->own_stream();
    session_->guarded([&] {
        order_streams(stream, own, edge_, session_->rank());
        each_feedback([&](auto& feedback) { feedback.commit(own, skip); });
        order_streams(own, stream, edge_, session_->rank());
    });
    if (!has_sparse()) return;
    if (skip != nullptr) {
        host_mirror<std::uint32_t> word(*session_, std::vector{device_view(skip, 1)});
        word.fetch(stream);
        if (*word.tensors()[0].data() != 0) return;
    }
    for (auto& s : sparse_)
        if (!parameters_[s.parameter()].frozen) s.commit(parameters_[s.parameter()].residual);
}

template <class Comm, class T>
template <class Take>
void device_reducer<Comm, T>::report(const char* call, std::size_t i, cudaStream_t stream,
                                     Take take) {
    require_closed();
    last_stream_ = stream;
    if (!reports::quiet()) {
        if (!sealed_) keep_buckets_if_captured(stream);
        if (!sealed_) refuse_capture(stream, "this step");
        over_if_it_fails([&] { seal(); });
    }
    try {
        reports::check_report(i, call);
        take();
    } catch (const usage_error& e) {
        if (!peers_step_anyway()) abandon(e.what());
        else if (session_->compares(reduction())) reports::keep_refused_step();
        throw;
    }
    if (reports::quiet()) return follow_quiet(i, stream);
    reports::count_report(i);
    over_if_it_fails([&] { start_complete_buckets(i, stream); });
}

template <class Comm, class T>
void device_reducer<Comm, T>::follow_quiet(std::size_t i, cudaStream_t stream) {
    if (!parameters_[i].travels() || options_.op == gradient_op::adasum)
        return writers_of_rest_.add(stream);
    const current_device here(session_->device(), session_->rank());
    session_->guarded(
        [&] { order_streams(stream, session_->own_stream(), end_of_quiet_, session_->rank()); });
}

template <class Comm, class T>
void device_reducer<Comm, T>::keep_buckets_if_captured(cudaStream_t stream) {
    if (!reports_.looks()) return;
    const current_device here(session_->device(), session_->rank());
    if (!is_capturing(stream, session_->rank())) return;
    reports_.keep();
    if (detail::described(parameters_) == agreed_) sealed_ = true;
}

template <class Comm, class T>
void device_reducer<Comm, T>::start_complete_buckets(std::size_t i, cudaStream_t stream) {
    if (!buckets_.follow(i, stream)) writers_of_rest_.add(stream);
    buckets_.start_while(
        [&](const std::vector<std::size_t>& members) { return reports::all_reported(members); });
}

template <class Comm, class T>
void device_reducer<Comm, T>::scale_what_stayed(cudaStream_t stream) const {
    for (const auto& p : parameters_) {
        if (p.frozen) continue;
        if (p.kind == parameter_kind::local)
            scale_on_device(*session_, p.gradient.template as<T, device>(),
                            pass_scale() / (options_.scale_local ? comm_.size() : 1), stream);
        else if (options_.op == gradient_op::adasum)
            scale_on_device(*session_, p.gradient.template as<T, device>(), pass_scale(), stream);
    }
}

template <class Comm, class T>
void device_reducer<Comm, T>::seal() {
    if (sealed_) return;
    refresh_lists();
    changed_ = true;
    std::string described = detail::described(parameters_);
    if (reports::agrees_on(described)) make_buckets(std::move(described));
    if (options_.shard_state) take_slices();
    sealed_ = true;
}

template <class Comm, class T>
void device_reducer<Comm, T>::make_buckets(std::string described) {
    if (parameters_.empty()) refuse_call(calls_, reports::nothing_to_train);
    check_members(parameters_.size(), options_,
                  [this](const auto&... why) { refuse_call(calls_, why...); });
    agree_on_options(calls_, reports::take_agreement_name(), options_, described);
    const bool anew = reports_.agree(calls_, parameters_.size(), described != agreed_);
    member_lists members = bucket_members(parameters_, options_,
                                          reports_.expected(parameters_.size(), options_.unused));
    if (!anew && members == buckets_.members()) return;
    fetch_residuals();
    buckets_.clear();
    agreed_.reset();
    const double f = options_.gradient_predivide_factor;
    for (auto& bucket : members)
        buckets_.add(comm_, std::move(bucket), parameters_, options_,
                     {.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()});
    epoch_.tell(buckets_);
    agreed_ = std::move(described);
}

template <class Comm, class T>
void device_reducer<Comm, T>::take_slices() {
    buckets_.for_each([&](auto& bucket) {
        for (std::size_t n = 0; n < bucket.members().size(); ++n) {
            const std::size_t i = bucket.members()[n];
            const owned_slice s = slice(i);
            values_[i] = device_view(parameters_[i].value.template as<T, device>().data() + s.begin,
                                     s.count);
            gradients_[i] = shared_gradients_[i] = bucket.gradient_slice(n, s.count);
        }
    });
}

template <class Comm, class T>
void device_reducer<Comm, T>::forget_step() {
    try {
        if (!session_->broken()) fetch_residuals();
    } catch (...) {  // the failure of the step is the one to report
    }
    buckets_.clear();
    writers_of_rest_.clear();
    for (auto& s : sparse_) s.clear();
    agreed_.reset();
    sealed_ = false;
    reports::begin_next_step();
}

template <class Comm, class T>
void device_reducer<Comm, T>::refuse_reduction(collective kind, std::string_view why) {
    if (comm_.size() == 1) return;
    if (!session_->compares(kind)) return session_->give_up(why);
    call_header mine;
    mine.kind = kind;
    mine.refuse(text("hvd: ", why));
    try {
        session_->post_refusal(mine, session_->limit_for({}));
    } catch (...) {
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
