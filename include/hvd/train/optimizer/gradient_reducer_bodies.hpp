// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <set>
#include <span>

#include "adasum_step.hpp"
#include "gradient_reducer.hpp"
#include "options_agreement.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// On an engine each gradient is a bucket, and nobody learns an order.
inline optimizer_options options_on_an_engine(int rank, optimizer_options o) {
    if (o.bucket_bytes != 0)
        refuse(rank, "bucket_bytes is ", o.bucket_bytes,
               ", and buckets are for communicators: an engine lets gradients travel together up "
               "to the .fusion_threshold of its options");
    if (o.order != bucket_order::adaptive)
        refuse(rank, "order is ", name_of(o.order),
               ", and an engine knows none: gradients start as they are reported");
    o.bucket_bytes = 1;
    o.order = bucket_order::reverse;
    return o;
}

template <class Comm>
optimizer_options options_on(Comm& comm, optimizer_options o) {
    if constexpr (is_engine<Comm>) return options_on_an_engine(comm.rank(), std::move(o));
    else return o;
}

template <class Comm, class T>
gradient_reducer<Comm, T>::gradient_reducer(Comm& comm, optimizer_options options)
    : reports(comm.rank(), options_on(comm, std::move(options))), comm_(comm) {
    if (!comm_)
        refuse(named ? "this engine is empty: it was moved from"
                     : "this communicator is empty: its rank is not a member, and has no optimizer "
                       "on it");
    if constexpr (!named)
        if (options_.bucket_bytes == 0)
            options_.bucket_bytes = access::session_of(comm_).options().tuning.bucket_bytes;
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
    if constexpr (named) step_.content.reset();
    else epoch_.tell(buckets_);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::zero_gradients() {
    if constexpr (named)
        if (!step_.failure.empty()) abandon(step_.failure);
    if constexpr (!named)
        if (reports::has_refused_step()) drop_step_of_peers();
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

// Peers that have reported alike drop it, too. The others are told in the next step.
template <class Comm, class T>
[[gnu::cold]] void gradient_reducer<Comm, T>::drop_step_of_peers() {
    require_closed();
    if (finish_for_peers()) reports::drop_refused_step();
    else give_up();  // it has failed on all ranks
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::abandon(std::string_view why) {
    require_closed();
    if constexpr (named) abandon_by_name(why);
    else abandon_in_order(why);
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::abandon_by_name(std::string_view why)
    requires named
{
    {
        const lock_guard lock(step_.reporting);
        step_.fail(why);
    }
    try {
        agree_on_step();
    } catch (...) {  // the reason, which is known, or that of an engine which has ended
    }
    give_up();
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::abandon_in_order(std::string_view why) {
    if (peers_step_anyway()) reports::refuse_late_abandon(why);
    const std::size_t left = buckets_.size() - buckets_.started();
    const bool agrees_first = reports::agrees_first();
    const bool reduced = left == 0 && finish_for_peers();
    if (agrees_first || (left == 0 && agrees_on_more())) buckets_.refuse_one(comm_, why);
    else if (left > 0) buckets_.refuse_rest(comm_, why);
    give_up();
    if (reduced && !agrees_first && !has_sparse()) reports::end_step();  // as on the peers
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
    parameters_[i].written = true;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::gradient_ready(std::size_t i, const sparse_view<T>& rows) {
    auto* const sparse = sparse_of(i);
    report(i, [&] {
        if (sparse == nullptr)
            refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
        sparse->check(comm_.rank(), parameters_[i].name, rows);
    });
    sparse->add(rows);
    parameters_[i].written = true;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::nothing_ready(std::size_t i) {
    report(i, [&] {
        reports::check_report(i, "nothing_ready");
        if (reports::becomes_zeros(i)) zero(parameters_[i]);
    });
}

// On an engine it is a part of what the ranks tell each other at the end of the step.
template <class Comm, class T>
void gradient_reducer<Comm, T>::check_passes() {
    try {
        reports::check_passes();
    } catch (const usage_error& e) {
        abandon(e.what());
        throw;
    }
}

template <class Comm, class T>
synchronized_gradients<T> gradient_reducer<Comm, T>::synchronize(bool by_rows) {
    require_closed();
    check_passes();
    over_if_it_fails([&] {
        if constexpr (named) {
            submit_rest();
            agree_on_step();
        } else {
            seal();
            reports::for_each_zero(zero);
            buckets_.start_while([](const auto&) { return true; });
        }
        buckets_.finish();
        reduce_sparse(by_rows);
    });
    scale_what_stayed();
    reports::end_step();
    list_parts();
    return {comm_.rank(), gradients_, shared_gradients_, shared_parts_, open_};
}

template <class Comm, class T>
std::span<const tensor_view<T>> gradient_reducer<Comm, T>::parameters() {
    refresh_lists();
    return values_;
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
bool gradient_reducer<Comm, T>::has_sparse() const {
    for (const auto& s : sparse_)
        if (!parameters_[s.parameter()].frozen) return true;
    return false;
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::agrees_on_more() const {
    return has_sparse() || reports::agrees_on_numbers_ || options_.skip_nonfinite ||
           options_.op == gradient_op::adasum;
}

template <class Comm, class T>
sparse_gradient<T>* gradient_reducer<Comm, T>::sparse_of(std::size_t parameter) {
    for (auto& s : sparse_)
        if (s.parameter() == parameter) return &s;
    return nullptr;
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::peers_step_anyway() const {
    return comm_.size() > 1 && buckets_.size() > 0 && buckets_.started() == buckets_.size() &&
           !reports::agrees_first() && !agrees_on_more();
}

template <class Comm, class T>
[[gnu::cold]] bool gradient_reducer<Comm, T>::finish_for_peers() {
    try {
        buckets_.finish();
        return true;
    } catch (...) {  // the failure of the backward pass is the one to report
        return false;
    }
}

template <class Comm, class T>
[[gnu::cold]] void gradient_reducer<Comm, T>::give_up() {
    try {
        buckets_.drop();
    } catch (...) {  // an earlier failure is the one to report
    }
    for (auto& s : sparse_) s.clear();
    reports::begin_next_step();
    if constexpr (named) step_.failure.clear();
    else if (!buckets_.together()) forget_agreement();
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
        const auto reduce = [&](auto&& by) {
            s.reduce(by, options_, 1 / f, f * pass_scale(), p.residual, epoch_.name(), by_rows);
        };
        if constexpr (named) {
            if (!p.frozen) reduce(comm_.for_tensor(p.name));
        } else if (!p.frozen) {
            reduce(comm_);
        }
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
void gradient_reducer<Comm, T>::seal() {
    if (sealed_) return;
    refresh_lists();
    std::string described = detail::described(parameters_);
    if (reports::agrees_on(described)) make_buckets(std::move(described));
    sealed_ = true;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::make_buckets(std::string described) {
    if (parameters_.empty()) {
        if constexpr (named) refuse(reports::nothing_to_train);
        else refuse_call(comm_, reports::nothing_to_train);
    }
    check_members(parameters_.size(), options_, [this](const auto&... why) {
        if constexpr (named) this->refuse(why...);
        else refuse_call(this->comm_, why...);
    });
    bool anew = named;
    if constexpr (!named) {
        agree_on(described);
        anew = reports_.agree(comm_, parameters_.size(), described != agreed_);
    }
    member_lists members = bucket_members(parameters_, options_,
                                          reports_.expected(parameters_.size(), options_.unused));
    if (!anew && members == buckets_.members()) return;
    forget_agreement();
    add_buckets(std::move(members));
    epoch_.tell(buckets_);
    agreed_ = std::move(described);
    if constexpr (named) step_.content.reset();
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::agree_on(const std::string& described) {
    try {
        agree_on_options(comm_, reports::take_agreement_name(), options_, described);
    } catch (const mismatch_error& e) {
        if (runs_a_plan(e)) buckets_.stand_in(comm_);
        throw;
    }
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::add_buckets(member_lists members) {
    shared<step_question> question;
    if constexpr (!named) question = access::session_of(comm_).question;
    const std::size_t with_question = bucket_with_question(members, parameters_, options_);
    for (std::size_t b = 0; b < members.size(); ++b)
        add_bucket(std::move(members[b]), b == with_question ? question : shared<step_question>());
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::add_bucket(std::vector<std::size_t> members,
                                           shared<step_question> question) {
    const double f = options_.gradient_predivide_factor;
    if constexpr (named) comm_.begin_plans_of(bucket_name(members), members.front());
    buckets_.add(
        comm_, std::move(members), parameters_, options_,
        reduce_options{.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()},
        std::move(question));
}

template <class Comm, class T>
std::string gradient_reducer<Comm, T>::bucket_name(const std::vector<std::size_t>& members) const {
    const std::string& first = parameters_[members.front()].name;
    return members.size() == 1 ? first
                               : std::string(text(first, " and ", members.size() - 1, " more"));
}

template <class Comm, class T>
template <class Say>
void gradient_reducer<Comm, T>::say_step(Say say) const {
    say_options(options_, say);
    say("parameters", agreed_ ? std::string_view(*agreed_) : std::string_view());
    say("epoch", epoch_.name());
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::submit_rest()
    requires named
{
    if (!step_.failure.empty()) return;
    try {
        or_fail_step([&] {
            seal();
            reports::for_each_zero(zero);
            buckets_.start_while([](const auto&) { return true; });
        });
    } catch (...) {  // all ranks throw it at the end of the step
    }
}

// The word of a rank has the hash of its step twice, so that a maximum tells whether all are equal.
template <class Comm, class T>
void gradient_reducer<Comm, T>::agree_on_step()
    requires named
{
    if (!step_.content)
        step_.content = content_of_values([this](auto say) { this->say_step(say); });
    const std::int64_t content = std::int64_t(*step_.content >> 1);
    std::array<std::int64_t, 4> most = {content, -content, !step_.failure.empty(),
                                        reports::agrees_on_numbers_};
    comm_.allreduce(most, max, {.name = "step"});
    if (most[0] != -most[1] || most[2] > 0) end_step_together();
    reports::agrees_on_numbers_ = most[3] > 0;
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::end_step_together()
    requires named
{
    refuse_what_peers_have();
    try {
        buckets_.drop();
    } catch (...) {  // it follows from what the ranks disagree on
    }
    const auto values = [this](auto say) { this->say_step(say); };
    call_header mine = agreement_header("distributed_optimizer");
    mine.content = content_of_values(values);
    if (!step_.failure.empty()) mine.refuse(text("hvd: ", step_.failure));
    detail::agree_on(comm_.channel(), mine, never, values);
}

// Tensors of the step that only some ranks have would wait forever.
template <class Comm, class T>
void gradient_reducer<Comm, T>::refuse_what_peers_have()
    requires named
{
    std::string mine;
    buckets_.for_each_under_way(
        [&](const auto& members) { (mine += bucket_name(members)) += '\0'; });
    std::set<std::string, std::less<>> rest;
    const auto all = comm_.allgather(std::as_bytes(std::span(mine)), {.name = "tensors of a step"});
    for_each_name({reinterpret_cast<const char*>(all.values.data()), all.values.size()},
                  [&](std::string_view name) { rest.emplace(name); });
    for_each_name(mine, [&](std::string_view name) { rest.erase(rest.find(name)); });
    for (const std::string& name : rest)
        comm_.refuse(name, "this rank's step has no such gradient");
}

template <class Comm, class T>
void gradient_reducer<Comm, T>::start_complete_buckets() {
    buckets_.start_while(
        [&](const std::vector<std::size_t>& members) { return reports::all_reported(members); });
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
bool gradient_reducer<Comm, T>::finite_everywhere(double factor) {
    bool all = all_finite<T>(shared_parts_);
    for (const auto& p : parameters_)
        if (p.kind == parameter_kind::local && !p.frozen) all &= all_finite<T>({{p.gradient}});
    std::array<double, 3> least = {all ? 1.0 : 0.0, factor, -factor};
    comm_.allreduce(least, min, {.name = "gradients are finite"});
    if (least[1] != -least[2])
        refuse("the loss scales of the ranks are from ", -1 / least[2], " to ", 1 / least[1],
               ", and this rank's is ", 1 / factor, "; they are to be equal");
    return least[0] == 1;
}

template <class Comm, class T>
bool gradient_reducer<Comm, T>::apply_by(synchronized_gradients<T>&& synchronized,
                                         void (*step)(void*, double), void* optimizer) {
    const auto gradients = std::move(synchronized);
    if (gradients.open_ != &open_)
        refuse("apply() of gradients that are not this optimizer's, or applied already");
    if (gradients.factor_ != 1 && !options_.skip_nonfinite)
        refuse("a loss_scale is for optimizers with .skip_nonfinite = true");
    bool steps = true;
    over_if_it_fails([&] {
        steps = !options_.skip_nonfinite || finite_everywhere(gradients.factor_);
        if (!steps) return;
        if (options_.op == gradient_op::adasum) step_by_adasum(step, optimizer, gradients.factor_);
        else step(optimizer, gradients.factor_);
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

template <class Comm, class T>
void gradient_reducer<Comm, T>::scale_gradients(double factor) const {
    if (is_one(factor)) return;
    if constexpr (dtype_traits<T>::id == dtype::float16)
        refuse("gradients of float16 and a scaled loss are for optimizers::float_masters: divided ",
               "in 16 bits, small ones would vanish");
    for (const auto& part : shared_parts_) scale(part, factor);
    for (const auto& p : parameters_)
        if (p.kind == parameter_kind::local && !p.frozen) scale(p.gradient, factor);
}

// Lets the optimizer step with this rank's gradients, then combines its changes.
template <class Comm, class T>
void gradient_reducer<Comm, T>::step_by_adasum(void (*step)(void*, double), void* optimizer,
                                               double factor) {
    if constexpr (is_float_element<T>) {
        withheld_step<T> own(parameters_);
        step(optimizer, factor);
        own.take_back();
        own.combine(comm_, epoch_.name());
        own.take();
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
