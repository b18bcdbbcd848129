// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "adasum_step.hpp"
#include "gradient_reducer.hpp"
#include "options_agreement.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

template <class Comm, class T>
gradient_reducer<Comm, T>::gradient_reducer(Comm& comm, optimizer_options options)
    : comm_(comm), options_(std::move(options)) {
    if (!comm_)
        refuse("this communicator is empty: its rank is not a member, and has no optimizer on it");
    check_options<typename Comm::backend_type>(comm_.rank(), options_);
}

template <class Comm, class T>
gradient_reducer<Comm, T>::~gradient_reducer() = default;

template <class Comm, class T>
void gradient_reducer<Comm, T>::begin_epoch(std::uint64_t epoch) {
    if (some_reported_ || buckets_.started() > 0)
        refuse("epoch ", epoch, " begins between steps; gradients are under way");
    require_closed();
    epoch_.begin(epoch);
    epoch_.tell(buckets_);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::zero_gradients() {
    if (buckets_.started() > 0)
        refuse("zero_gradients() while gradients are under way: synchronize() or step() first, ",
               "or abandon() a step that failed");
    for (auto& p : parameters_)
        if (p.kind != parameter_kind::sparse) zero(p);
    for (auto& s : sparse_) {
        s.zero();
        s.clear();
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::abandon(std::string_view why) {
    require_closed();
    const std::size_t left = buckets_.size() - buckets_.started();
    const bool agrees_first = !sealed_ && detail::described(parameters_) != agreed_;
    if (left == 0) finish_for_peers();
    if (agrees_first || (left == 0 && agrees_on_more())) buckets_.refuse_one(comm_, why);
    else buckets_.refuse_rest(comm_, why);
    give_up();
    if (!agrees_first && left > 1)
        forget_agreement();  // as the peers do, since several of their calls fail
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::gradient_ready(std::size_t i) {
    report(i, [&] {
        if (sparse_of(i) != nullptr)
            refuse("gradient_ready(", i, "): \"", parameters_[i].name,
                   "\" is sparse; say its rows too");
    });
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::gradient_ready(std::size_t i, const sparse_view<T>& rows) {
    auto* const sparse = sparse_of(i);
    report(i, [&] {
        if (sparse == nullptr)
            refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
        sparse->check(comm_.rank(), rows);
    });
    sparse->add(rows);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::nothing_ready() {
    require_closed();
    some_reported_ = true;
}

template <class Comm, class T>
synchronized_gradients<T> gradient_reducer<Comm, T>::synchronize(bool by_rows) {
    require_closed();
    over_if_it_fails([&] {
        seal();
        if (some_reported_) zero_unreported();
        buckets_.start_while([](const auto&) { return true; });
        buckets_.finish();
        reduce_sparse(by_rows);
    });
    scale_what_stayed();
    begin_next_step();
    list_parts();
    return {comm_.rank(), gradients_, shared_gradients_, shared_parts_, open_};
}

template <class Comm, class T>
std::span<const tensor_view<T>> gradient_reducer<Comm, T>::parameters() {
    refresh_lists();
    return values_;
}

template <class Comm, class T>
std::vector<tensor_view<T>> gradient_reducer<Comm, T>::shared_parameters() const {
    std::vector<tensor_view<T>> shared;
    for_each_shared([&](const std::string&, const tensor_view<T>& value,
                        const std::vector<std::size_t>&) { shared.push_back(value); });
    return shared;
}

template <class Comm, class T>
std::size_t gradient_reducer<Comm, T>::add(registered_parameter<T> p) {
    if (buckets_.started() > 0)
        refuse("parameter \"", p.name, "\" is registered while gradients are under way");
    require_closed();
    check_registration(comm_.rank(), parameters_, p);
    parameters_.push_back(std::move(p));
    sealed_ = false;
    return parameters_.size() - 1;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::set_frozen(std::size_t i, bool frozen) {
    if (i >= parameters_.size())
        refuse("parameter ", i, " is to be frozen or not; there are ", parameters_.size());
    if (some_reported_ || buckets_.started() > 0)
        refuse("freeze and unfreeze are for between steps; gradients are under way");
    require_closed();
    if (parameters_[i].frozen != frozen) sealed_ = false;
    parameters_[i].frozen = frozen;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::check_report(std::size_t i) const {
    if (i >= parameters_.size())
        refuse("gradient_ready(", i, "): there are ", parameters_.size(), " parameters");
    const auto& p = parameters_[i];
    if (p.reports == options_.backward_passes_per_step)
        refuse("gradient \"", p.name, "\" was ready ", p.reports,
               " times already: step() comes after backward_passes_per_step passes");
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::agrees_on_more() const {
    bool sparse = false;
    for (const auto& s : sparse_) sparse |= !parameters_[s.parameter()].frozen;
    return sparse || agrees_on_numbers_ || options_.skip_nonfinite ||
           options_.op == gradient_op::adasum;
}

template <class Comm, class T>
sparse_gradient<T>* gradient_reducer<Comm, T>::sparse_of(std::size_t parameter) {
    for (auto& s : sparse_)
        if (s.parameter() == parameter) return &s;
    return nullptr;
}

template <class Comm, class T>
[[gnu::cold]] void gradient_reducer<Comm, T>::finish_for_peers() {
    try {
        buckets_.finish();
    } catch (...) {  // the failure of the backward pass is the one to report
    }
}

template <class Comm, class T>
[[gnu::cold]] void gradient_reducer<Comm, T>::give_up() {
    try {
        buckets_.drop();
    } catch (...) {  // an earlier failure is the one to report
    }
    for (auto& s : sparse_) s.clear();
    begin_next_step();
    if (!buckets_.together()) forget_agreement();
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::forget_agreement() {
    buckets_.clear();
    agreed_.reset();
    sealed_ = false;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::reduce_sparse(bool by_rows) {
    const double f = options_.gradient_predivide_factor;
    for (auto& s : sparse_) {
        auto& p = parameters_[s.parameter()];
        if (!p.frozen)
            s.reduce(comm_, options_, 1 / f, f * pass_scale(), p.residual, epoch_.name(), by_rows);
        s.clear();
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::list_parts() {
    shared_parts_.clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
        if (parameters_[i].kind == parameter_kind::shared)
            shared_parts_.push_back(shared_gradients_[i]);
        else if (auto* const s = sparse_of(i); s != nullptr && !parameters_[i].frozen)
            s->append_parts(shared_parts_);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::require_closed() const {
    if (open_) refuse("the gradients of this step are synchronized: apply() or drop them first");
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::zero_unreported() {
    for (auto& p : parameters_)
        if (p.reports == 0 && p.travels()) zero(p);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::seal() {
    if (sealed_) return;
    refresh_lists();
    std::string described = detail::described(parameters_);
    if (described != agreed_) {
        member_lists members;
        if (options_.op != gradient_op::adasum)
            members = bucket_members(comm_, parameters_, options_);
        agree_on(described);
        forget_agreement();
        for (auto& bucket : members) add_bucket(std::move(bucket));
        epoch_.tell(buckets_);
        agreed_ = std::move(described);
    }
    sealed_ = true;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::agree_on(const std::string& described) {
    try {
        agree_on_options(comm_, options_, described);
    } catch (const mismatch_error& e) {
        if (runs_a_plan(e)) buckets_.stand_in(comm_);
        throw;
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::refresh_lists() {
    values_.clear();
    gradients_.clear();
    shared_gradients_.clear();
    for (const auto& p : parameters_) {
        const bool local = p.kind == parameter_kind::local;
        values_.push_back(p.frozen ? tensor_view<T>() : p.value);
        gradients_.push_back(p.frozen ? tensor_view<T>() : p.gradient);
        shared_gradients_.push_back(p.frozen || local ? tensor_view<T>() : p.gradient);
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::add_bucket(std::vector<std::size_t> members) {
    const double f = options_.gradient_predivide_factor;
    buckets_.add(
        comm_, std::move(members), parameters_, options_,
        reduce_options{.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()});
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::start_complete_buckets() {
    buckets_.start_while([&](const std::vector<std::size_t>& members) {
        for (const std::size_t i : members)
            if (parameters_[i].reports < options_.backward_passes_per_step) return false;
        return true;
    });
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::scale_what_stayed() {
    for (auto& p : parameters_) {
        if (p.frozen) continue;
        if (p.kind == parameter_kind::local)
            scale(p.gradient, pass_scale() / (options_.scale_local ? comm_.size() : 1));
        else if (options_.op == gradient_op::adasum) scale(p.gradient, pass_scale());
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::begin_next_step() {
    for (auto& p : parameters_) p.reports = 0;
    some_reported_ = false;
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::finite_everywhere() {
    bool all = all_finite<T>(shared_parts_);
    for (const auto& p : parameters_)
        if (p.kind == parameter_kind::local && !p.frozen) all &= all_finite<T>({{p.gradient}});
    int finite = all ? 1 : 0;
    comm_.allreduce(finite, min, {.name = "gradients are finite"});
    return finite == 1;
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::apply_by(synchronized_gradients<T>&& synchronized,
                                         void (*step)(void*), void* optimizer) {
    const auto gradients = std::move(synchronized);
    if (gradients.open_ != &open_)
        refuse("apply() of gradients that are not this optimizer's, or applied already");
    bool steps = true;
    over_if_it_fails([&] {
        steps = !options_.skip_nonfinite || finite_everywhere();
        if (!steps) return;
        if (options_.op == gradient_op::adasum) step_by_adasum(step, optimizer);
        else step(optimizer);
        keep_residuals();
    });
    return steps;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::keep_residuals() {
    buckets_.commit();
    for (auto& s : sparse_)
        if (!parameters_[s.parameter()].frozen) s.commit(parameters_[s.parameter()].residual);
}

// Lets the optimizer step with this rank's gradients, then combines its changes.
template <class Comm, class T>
void gradient_reducer<Comm, T>::step_by_adasum(void (*step)(void*), void* optimizer) {
    if constexpr (is_float_element<T>) {
        withheld_step<T> own(parameters_);
        step(optimizer);
        own.take_back();
        own.combine(comm_, epoch_.name());
        own.take();
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
