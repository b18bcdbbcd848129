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

template <class Calls>
optimizer_options options_on(const Calls& comm, optimizer_options o) {
    if constexpr (Calls::by_name) return options_on_an_engine(comm.rank(), std::move(o));
    else return o;
}

template <class Calls>
gradient_reducer<Calls>::gradient_reducer(Calls comm, optimizer_options options,
                                          const backend_abilities& backend)
    : reports(comm.rank(), options_on(comm, std::move(options))), comm_(std::move(comm)) {
    if (!comm_)
        refuse(named ? "this engine is empty: it was moved from"
                     : "this communicator is empty: its rank is not a member, and has no optimizer "
                       "on it");
    if constexpr (!named)
        if (options_.bucket_bytes == 0)
            options_.bucket_bytes = access::session_of(comm_).options().tuning.bucket_bytes;
    check_options(comm_.rank(), options_, backend);
}

template <class Calls>
gradient_reducer<Calls>::~gradient_reducer() = default;

template <class Calls>
void gradient_reducer<Calls>::begin_epoch(std::uint64_t epoch) {
    if (some_reported_ || buckets_.started() > 0)
        refuse("epoch ", epoch, " begins between steps; gradients are under way");
    require_closed();
    epoch_.begin(epoch);
    if constexpr (named) step_.content.reset();
    else epoch_.tell(buckets_);
}

template <class Calls>
void gradient_reducer<Calls>::zero_gradients() {
    if constexpr (named)
        if (!step_.failure.empty()) abandon(step_.failure);
    if constexpr (!named)
        if (reports::has_refused_step()) drop_step_of_peers();
    if (buckets_.started() > 0)
        refuse("zero_gradients() while gradients are under way: synchronize() or step() first, ",
               "or abandon() a step that failed");
    for (auto& p : parameters_)
        if (p.kind != parameter_kind::sparse) p.gradient.zero();
    for (const auto& t : tables_) {
        t->zero();
        t->clear();
    }
}

// Peers that have reported alike drop it, too. The others are told in the next step.
template <class Calls>
[[gnu::cold]] void gradient_reducer<Calls>::drop_step_of_peers() {
    require_closed();
    if (finish_for_peers()) reports::drop_refused_step();
    else give_up();  // it has failed on all ranks
}

template <class Calls>
void gradient_reducer<Calls>::abandon(std::string_view why) {
    require_closed();
    if constexpr (named) abandon_by_name(why);
    else abandon_in_order(why);
}

template <class Calls>
void gradient_reducer<Calls>::abandon_by_name(std::string_view why)
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

template <class Calls>
void gradient_reducer<Calls>::abandon_in_order(std::string_view why) {
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

template <class Calls>
void gradient_reducer<Calls>::gradient_ready(std::size_t i) {
    report(i, [&] {
        if (table_of(i) != nullptr)
            refuse("gradient_ready(", i, "): \"", parameters_[i].name,
                   "\" is sparse; say its rows too");
    });
    parameters_[i].written = true;
}

template <class Calls>
void gradient_reducer<Calls>::nothing_ready(std::size_t i) {
    report(i, [&] {
        reports::check_report(i, "nothing_ready");
        if (reports::becomes_zeros(i)) parameters_[i].gradient.zero();
    });
}

// On an engine it is a part of what the ranks tell each other at the end of the step.
template <class Calls>
void gradient_reducer<Calls>::check_passes() {
    try {
        reports::check_passes();
    } catch (const usage_error& e) {
        abandon(e.what());
        throw;
    }
}

template <class Calls>
void gradient_reducer<Calls>::reduce(bool by_rows) {
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
}

template <class Calls>
std::size_t gradient_reducer<Calls>::add(registered_parameter p) {
    if (buckets_.started() > 0)
        refuse("parameter \"", p.name, "\" is registered while gradients are under way");
    require_closed();
    check_registration(comm_.rank(), parameters_, p);
    parameters_.push_back(std::move(p));
    sealed_ = false;
    return parameters_.size() - 1;
}

template <class Calls>
bool gradient_reducer<Calls>::has_sparse() const {
    for (const auto& t : tables_)
        if (!is_frozen(*t)) return true;
    return false;
}

template <class Calls>
bool gradient_reducer<Calls>::agrees_on_more() const {
    return has_sparse() || reports::agrees_on_numbers_ || options_.skip_nonfinite ||
           options_.op == gradient_op::adasum;
}

template <class Calls>
sparse_table<Calls>* gradient_reducer<Calls>::table_of(std::size_t parameter) const {
    for (const auto& t : tables_)
        if (t->parameter() == parameter) return t.get();
    return nullptr;
}

template <class Calls>
bool gradient_reducer<Calls>::peers_step_anyway() const {
    return comm_.size() > 1 && buckets_.size() > 0 && buckets_.started() == buckets_.size() &&
           !reports::agrees_first() && !agrees_on_more();
}

template <class Calls>
[[gnu::cold]] bool gradient_reducer<Calls>::finish_for_peers() {
    try {
        buckets_.finish();
        return true;
    } catch (...) {  // the failure of the backward pass is the one to report
        return false;
    }
}

template <class Calls>
[[gnu::cold]] void gradient_reducer<Calls>::give_up() {
    try {
        buckets_.drop();
    } catch (...) {  // an earlier failure is the one to report
    }
    for (const auto& t : tables_) t->clear();
    reports::begin_next_step();
    if constexpr (named) step_.failure.clear();
    else if (!buckets_.together()) forget_agreement();
}

template <class Calls>
void gradient_reducer<Calls>::forget_agreement() {
    buckets_.clear();
    agreed_.reset();
    sealed_ = false;
}

template <class Calls>
void gradient_reducer<Calls>::reduce_sparse(bool by_rows) {
    const double f = options_.gradient_predivide_factor;
    for (const auto& t : tables_) {
        const auto& p = parameters_[t->parameter()];
        const auto reduce = [&](auto&& by) {
            t->reduce(by, options_, 1 / f, f * pass_scale(), p.residual, epoch_.name(), by_rows);
        };
        if constexpr (named) {
            if (!p.frozen) reduce(comm_.for_tensor(p.name));
        } else if (!p.frozen) {
            reduce(comm_);
        }
        t->clear();
    }
}

template <class Calls>
void gradient_reducer<Calls>::seal() {
    if (sealed_) return;
    changed_ = true;
    std::string described = detail::described(parameters_);
    if (reports::agrees_on(described)) make_buckets(std::move(described));
    sealed_ = true;
}

template <class Calls>
void gradient_reducer<Calls>::make_buckets(std::string described) {
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

template <class Calls>
void gradient_reducer<Calls>::agree_on(const std::string& described) {
    try {
        agree_on_options(comm_, reports::take_agreement_name(), options_, described);
    } catch (const mismatch_error& e) {
        if (runs_a_plan(e)) buckets_.stand_in(comm_);
        throw;
    }
}

template <class Calls>
void gradient_reducer<Calls>::add_buckets(member_lists members) {
    shared<step_question> question;
    if constexpr (!named) question = access::session_of(comm_).question;
    const std::size_t with_question = bucket_with_question(members, parameters_, options_);
    for (std::size_t b = 0; b < members.size(); ++b)
        add_bucket(std::move(members[b]), b == with_question ? question : shared<step_question>());
}

template <class Calls>
void gradient_reducer<Calls>::add_bucket(std::vector<std::size_t> members,
                                         shared<step_question> question) {
    const double f = options_.gradient_predivide_factor;
    if constexpr (named) comm_.begin_plans_of(bucket_name(members), members.front());
    buckets_.add(
        comm_, std::move(members), parameters_, options_,
        reduce_options{.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()},
        std::move(question));
}

template <class Calls>
std::string gradient_reducer<Calls>::bucket_name(const std::vector<std::size_t>& members) const {
    const std::string& first = parameters_[members.front()].name;
    return members.size() == 1 ? first
                               : std::string(text(first, " and ", members.size() - 1, " more"));
}

template <class Calls>
template <class Say>
void gradient_reducer<Calls>::say_step(Say say) const {
    say_options(options_, say);
    say("parameters", agreed_ ? std::string_view(*agreed_) : std::string_view());
    say("epoch", epoch_.name());
}

template <class Calls>
void gradient_reducer<Calls>::submit_rest()
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
template <class Calls>
void gradient_reducer<Calls>::agree_on_step()
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

template <class Calls>
void gradient_reducer<Calls>::end_step_together()
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
template <class Calls>
void gradient_reducer<Calls>::refuse_what_peers_have()
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

template <class Calls>
void gradient_reducer<Calls>::start_complete_buckets() {
    buckets_.start_while(
        [&](const std::vector<std::size_t>& members) { return reports::all_reported(members); });
}

template <class Calls>
void gradient_reducer<Calls>::scale_what_stayed() {
    for (auto& p : parameters_) {
        if (p.frozen) continue;
        if (p.kind == parameter_kind::local)
            p.gradient.scale(pass_scale() / (options_.scale_local ? comm_.size() : 1));
        else if (options_.op == gradient_op::adasum) p.gradient.scale(pass_scale());
    }
}

template <class Calls>
bool gradient_reducer<Calls>::finite_everywhere(double factor, bool mine) {
    std::array<double, 3> most = {mine ? 0.0 : 1.0, factor, -factor};
    comm_.allreduce(most, max, {.name = "gradients are finite"});
    if (most[1] != -most[2])
        refuse("the loss scales of the ranks are from ", 1 / most[1], " to ", -1 / most[2],
               ", and this rank's is ", 1 / factor, "; they are to be equal");
    return most[0] == 0;
}

template <class Calls>
bool gradient_reducer<Calls>::step_with(double factor, bool finite, void (*step)(void*, double),
                                        void* optimizer) {
    if (factor != 1 && !options_.skip_nonfinite)
        refuse("a loss_scale is for optimizers with .skip_nonfinite = true");
    bool steps = true;
    over_if_it_fails([&] {
        steps = !options_.skip_nonfinite || finite_everywhere(factor, finite);
        if (!steps) return;
        if (options_.op == gradient_op::adasum) step_by_adasum(step, optimizer, factor);
        else step(optimizer, factor);
        keep_residuals();
    });
    return steps;
}

template <class Calls>
void gradient_reducer<Calls>::keep_residuals() {
    buckets_.commit();
    for (const auto& t : tables_)
        if (!is_frozen(*t)) t->commit(parameters_[t->parameter()].residual);
}

// Lets the optimizer step with this rank's gradients, then combines its changes.
template <class Calls>
void gradient_reducer<Calls>::step_by_adasum(void (*step)(void*, double), void* optimizer,
                                             double factor) {
    withheld_step own(parameters_);
    step(optimizer, factor);
    own.take_back();
    own.combine(comm_, epoch_.name());
    own.take();
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
