// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/bucket_members.hpp"
#include "../gradients/reports.hpp"
#include "../gradients/residuals.hpp"
#include "../sparse/sparse_gradient.hpp"
#include "adasum_step.hpp"
#include "options_agreement.hpp"
#include "ordered_steps.hpp"

namespace hvd::inline v0::detail {

/// The part of a distributed_optimizer that depends neither on the optimizer inside nor on the type
/// of the elements: it has the parameters, reduces their gradients, and says when the optimizer
/// steps. typed_gradients.hpp has the functions that name a type.
///
/// `Steps` has the buckets, and knows how the ranks make a step together: `ordered_steps` on a
/// communicator, `named_steps` on an engine, `device_steps` on the streams of a device. Its `place`
/// is what a report comes behind: a stream of a device, and nothing on the host.
template <class Steps>
class gradient_reducer : public reported_parameters {
    using reports = reported_parameters;
    friend Steps;
    friend steps_in_order;

public:
    using place = typename Steps::place;

    gradient_reducer(const gradient_reducer&) = delete;
    gradient_reducer& operator=(const gradient_reducer&) = delete;

    /// The next steps belong to this epoch. Ranks compare it in the messages of each step: if they
    /// are in different epochs, since one has made more steps, the first such step throws
    /// `hvd::mismatch_error`, which names the epochs. Call it between steps, on all ranks alike.
    /// Without it, such ranks go on until the one with fewer steps ends. On devices it does nothing
    /// for reductions by `nccl`, which compares no calls, and for captured steps.
    void begin_epoch(std::uint64_t epoch);

    /// Sets all gradients to zero, also those of frozen parameters; on a device behind the work of
    /// a stream. After a report that was refused when the peers had all that they need, it drops
    /// this rank's step, unless the backend compares no reductions (NCCL): see docs/training.md.
    /// @throws hvd::usage_error while gradients are under way.
    void zero_gradients(place behind = {});

    /// Gives up the current step if this rank's backward pass has failed. The calls of the peers'
    /// step throw `hvd::peer_error` with `why`. On all ranks the next step begins with
    /// `zero_gradients()`. A report that is refused does this by itself. A backend that does not
    /// compare its reductions (NCCL) can't tell the peers while they wait for a reduction: the
    /// communicator is given up then.
    ///
    /// It waits until the peers have made their reports. After this rank's last report the peers
    /// step, unless the ranks agree on something later: on the optimizer's numbers in the first
    /// step and on `checked<>`, on sparse tables, with Adasum and with skip_nonfinite.
    /// @throws hvd::usage_error if the peers step. Nothing has changed then: call `step()`, too.
    [[gnu::cold]] void abandon(std::string_view why = "a rank abandoned its step");

    /// Reports that the backward pass has written gradient i, and leaves it alone until the step.
    /// On a device the work that a stream has been given writes it. A bucket whose gradients are
    /// all ready starts then, on a device behind that work.
    /// @throws hvd::usage_error after more than `backward_passes_per_step` reports in a step.
    void gradient_ready(std::size_t i, place behind = {});

    /// Reports that this rank has no further gradients in this step. It contributes zeros for those
    /// that no pass has reported.
    void nothing_ready() { reports::say_nothing_ready(); }

    /// Reports that this pass has not written gradient i. If no pass of the step has, the gradient
    /// becomes zeros; on a device behind the work of a stream.
    /// @throws hvd::usage_error as `gradient_ready`.
    void nothing_ready(std::size_t i, place behind = {});

    /// For hvd: what error feedback has not applied yet, for checkpoints. **Collective**.
    whole_residuals residuals() {
        steps_.fetch_residuals(parameters_);
        return gather_residuals(calls(), parameters_, options_);
    }
    /// For hvd: takes this rank's part of the root's. **Collective**.
    void take_residuals(whole_residuals&& all) {
        scatter_residuals(calls(), parameters_, options_, std::move(all));
        steps_.store_residuals(parameters_);
    }

    /// The number of buckets of the last step, and the number of those under way.
    std::size_t buckets() const noexcept { return steps_.buckets.size(); }
    std::size_t buckets_started() const noexcept { return steps_.buckets.started(); }

protected:
    // `calls` is a communicator, or what stands for it.
    template <class Calls>
    [[gnu::cold]] gradient_reducer(Calls&& calls, optimizer_options options,
                                   const backend_abilities& backend);
    ~gradient_reducer() = default;

    [[gnu::cold]] std::size_t add(registered_parameter p);
    void add(owner<sparse_table<Steps>> t) { tables_.push_back(std::move(t)); }
    const std::vector<owner<sparse_table<Steps>>>& tables() const { return tables_; }
    bool is_frozen(const sparse_table<Steps>& t) const { return parameters_[t.parameter()].frozen; }

    // Completes the reduction of all gradients. `by_rows` says that the step takes the rows of
    // tables. **Collective**.
    void reduce(place behind, bool by_rows);

    // On the host: calls `step` with the optimizer and a factor for the gradients, unless these are
    // not finite: `finite` says that those of this rank are.
    bool step_with(double factor, bool finite, void (*step)(void*, double), void* optimizer);

    // Null for a parameter that is no table.
    sparse_table<Steps>* table_of(std::size_t parameter) const;

    // `check` throws for a wrong report, and the peers that wait for it are told. `take` takes a
    // right one.
    template <class Check, class Take>
    void report(const char* call, std::size_t i, place behind, Check check, Take take) {
        require_closed();
        steps_.report(*this, i, behind, [&] {
            check();
            reports::check_report(i, call);
            take();
        });
        if (reports::quiet()) steps_.follow_uncounted(*this, i, behind);
    }

    // The lists of tensors are out of date.
    bool lists_are_old() const { return changed_; }
    bool take_change() { return std::exchange(changed_, false); }

    // The gradients travel by these, and the calls beside them.
    Steps& steps() noexcept { return steps_; }
    const Steps& steps() const noexcept { return steps_; }
    auto& calls() noexcept { return steps_.calls(); }

    // The name of calls that are no buckets'.
    std::string_view epoch_name() const { return epoch_.name(); }

    bool has_sparse() const;

private:
    // True if the ranks make calls after those of the buckets.
    bool agrees_on_more() const;

    // A step that is over on one rank is over on every rank, since a failed call fails on all.
    template <class F>
    void over_if_it_fails(F f) {
        try {
            f();
        } catch (...) {
            give_up();
            throw;
        }
    }

    // On an engine it is a part of what the ranks tell each other at the end of the step.
    void check_passes();

    // True if all reductions have begun and the ranks agree on nothing later.
    bool peers_step_anyway() const;

    // Makes the rest of the calls that the peers make for gradients which all ranks have reported.
    // It returns true if they succeeded.
    [[gnu::cold]] bool finish_for_peers();

    [[gnu::cold]] void give_up();

    // The next step begins with a new agreement, which is a single call. That repeats until all
    // ranks are in it.
    [[gnu::cold]] void forget_agreement();

    [[gnu::cold]] void reduce_sparse(place behind, bool by_rows);

    // Collective if something has changed since the last step.
    void seal();
    [[gnu::cold]] void make_buckets();
    // Makes the buckets without their plans, which may fail on this rank alone. Returns false if
    // they are as they were.
    [[gnu::cold]] bool list_buckets(bool anew);
    // Does something that the ranks do together. After a failure they agree again.
    template <class F>
    auto or_forget_agreement(F f) {
        try {
            return f();
        } catch (...) {
            forget_agreement();
            throw;
        }
    }
    reduce_options scales() const;

    // Starts buckets in order, while `complete` says that all members of the next are ready.
    template <class Complete>
    void start_while(Complete complete) {
        try {
            steps_.buckets.start_while(complete);
        } catch (...) {
            steps_.refuse_rest_after_failure();
            throw;
        }
    }
    void start_complete_buckets() {
        start_while([&](const auto& members) { return all_reported(members); });
    }
    void zero_unreported(place behind) {
        reports::for_each_zero([&](const auto& p) { steps_.zero(p.gradient, behind); });
    }
    void end_step() {
        clear_tables();
        steps_.end_step();
        reports::end_step();
    }
    void clear_tables() {
        for (const auto& t : tables_) t->clear();
    }

    void scale_what_stayed(place behind);
    [[gnu::cold]] bool finite_everywhere(double factor, bool mine);
    // The step was made: what the rounding of its gradients lost is added to the next ones.
    void keep_residuals();
    [[gnu::cold]] void step_by_adasum(void (*step)(void*, double), void* optimizer, double factor);

    Steps steps_;
    said_epoch epoch_;
    // whose gradients are reported in rows
    std::vector<owner<sparse_table<Steps>>> tables_;
    bool changed_ = true;
};

template <class Steps>
template <class Calls>
gradient_reducer<Steps>::gradient_reducer(Calls&& calls, optimizer_options options,
                                          const backend_abilities& backend)
    : reports(calls.rank(), Steps::options_on(calls.rank(), std::move(options))),
      steps_(std::forward<Calls>(calls)) {
    if (!steps_) refuse(Steps::empty_text);
    if (options_.bucket_bytes == 0) options_.bucket_bytes = steps_.bucket_bytes();
    check_options(steps_.rank(), options_, backend);
}

template <class Steps>
void gradient_reducer<Steps>::begin_epoch(std::uint64_t epoch) {
    if (some_reported_ || buckets_started() > 0)
        refuse("epoch ", epoch, " begins between steps; gradients are under way");
    require_closed();
    epoch_.begin(epoch);
    steps_.tell(epoch_);
}

template <class Steps>
void gradient_reducer<Steps>::zero_gradients(place behind) {
    steps_.follow(behind);
    steps_.drop_refused_step(*this);
    if (buckets_started() > 0)
        refuse("zero_gradients() while gradients are under way: synchronize() or step() first, ",
               "or abandon() a step that failed");
    for (const auto& p : parameters_)
        if (p.kind != parameter_kind::sparse) steps_.zero(p.gradient, behind);
    for (const auto& t : tables_) t->zero(behind);
    clear_tables();
}

template <class Steps>
void gradient_reducer<Steps>::abandon(std::string_view why) {
    require_closed();
    steps_.abandon(*this, why);
}

template <class Steps>
void gradient_reducer<Steps>::gradient_ready(std::size_t i, place behind) {
    const auto check = [&] {
        if (table_of(i) != nullptr)
            refuse("gradient_ready(", i, "): \"", parameters_[i].name,
                   "\" is sparse; say its rows too");
    };
    report("gradient_ready", i, behind, check, [&] { parameters_[i].written = true; });
}

template <class Steps>
void gradient_reducer<Steps>::nothing_ready(std::size_t i, place behind) {
    const auto no_check = [] {};
    report("nothing_ready", i, behind, no_check, [&] {
        if (reports::becomes_zeros(i)) steps_.zero(parameters_[i].gradient, behind);
    });
}

template <class Steps>
void gradient_reducer<Steps>::check_passes() {
    try {
        reports::check_passes();
    } catch (const usage_error& e) {
        abandon(e.what());
        throw;
    }
}

template <class Steps>
void gradient_reducer<Steps>::reduce(place behind, bool by_rows) {
    require_closed();
    steps_.follow(behind);
    check_passes();
    steps_.begin_reduction(*this, behind);
    over_if_it_fails([&] {
        steps_.complete(*this, behind);
        steps_.buckets.finish(behind);
        reduce_sparse(behind, by_rows);
    });
    scale_what_stayed(behind);
    end_step();
}

template <class Steps>
std::size_t gradient_reducer<Steps>::add(registered_parameter p) {
    if (some_reported_ || buckets_started() > 0)
        refuse("parameter \"", p.name, "\" is registered while gradients are under way");
    require_closed();
    steps_.check(p);
    check_registration(steps_.rank(), parameters_, p);
    reports::add_parameter(std::move(p));
    return parameters_.size() - 1;
}

template <class Steps>
bool gradient_reducer<Steps>::has_sparse() const {
    for (const auto& t : tables_)
        if (!is_frozen(*t)) return true;
    return false;
}

template <class Steps>
bool gradient_reducer<Steps>::agrees_on_more() const {
    return has_sparse() || reports::agrees_on_numbers_ || options_.skip_nonfinite ||
           options_.op == hvd::adasum;
}

template <class Steps>
sparse_table<Steps>* gradient_reducer<Steps>::table_of(std::size_t parameter) const {
    for (const auto& t : tables_)
        if (t->parameter() == parameter) return t.get();
    return nullptr;
}

template <class Steps>
bool gradient_reducer<Steps>::peers_step_anyway() const {
    return steps_.size() > 1 && buckets() > 0 && buckets_started() == buckets() &&
           !reports::agrees_first() && !agrees_on_more() && !steps_.is_broken();
}

template <class Steps>
[[gnu::cold]] bool gradient_reducer<Steps>::finish_for_peers() {
    try {
        steps_.buckets.finish(steps_.last_place());
        return true;
    } catch (...) {  // the failure of the backward pass is the one to report
        return false;
    }
}

template <class Steps>
[[gnu::cold]] void gradient_reducer<Steps>::give_up() {
    try {
        steps_.buckets.drop();
    } catch (...) {  // an earlier failure is the one to report
    }
    clear_tables();
    steps_.end_step();
    reports::begin_next_step();
    if (steps_.agrees_anew(parameters_)) forget_agreement();
}

template <class Steps>
void gradient_reducer<Steps>::forget_agreement() {
    steps_.buckets.clear();
    agreed_.reset();
    sealed_ = false;
}

template <class Steps>
void gradient_reducer<Steps>::reduce_sparse(place behind, bool by_rows) {
    const reduce_options o = scales();
    for (const auto& t : tables_) {
        auto& p = parameters_[t->parameter()];
        if (p.frozen) continue;
        auto&& by = steps_.calls_for(p.name);
        t->reduce(by, options_, o.prescale, o.postscale, p.residual, epoch_.name(), behind,
                  by_rows);
    }
}

template <class Steps>
void gradient_reducer<Steps>::seal() {
    if (sealed_) return;
    changed_ = true;
    if (reports::agrees_first()) make_buckets();
    sealed_ = true;
}

template <class Steps>
void gradient_reducer<Steps>::make_buckets() {
    if (parameters_.empty()) steps_.refuse(reports::nothing_to_train);
    check_members(steps_.prepared([&] { return std::vector<char>(parameters_.size()); }), options_,
                  [this](const auto&... why) { steps_.refuse(why...); });
    const bool anew = steps_.agree(*this);
    const bool makes =
        or_forget_agreement([&] { return steps_.on_all([&] { return list_buckets(anew); }); });
    if (!makes) return;
    or_forget_agreement([&] { steps_.make_plans(parameters_, options_, scales()); });
    steps_.tell(epoch_);
    reports::keep_agreement();
}

template <class Steps>
bool gradient_reducer<Steps>::list_buckets(bool anew) {
    member_lists members = bucket_members(
        parameters_, options_, reports_.expected(parameters_.size(), options_.may_be_unreported));
    if (!anew && members == steps_.buckets.members()) return false;
    steps_.fetch_residuals(parameters_);
    forget_agreement();
    steps_.list_buckets(std::move(members), parameters_, options_, scales());
    return true;
}

template <class Steps>
reduce_options gradient_reducer<Steps>::scales() const {
    const double f = options_.gradient_predivide_factor;
    return {.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()};
}

template <class Steps>
void gradient_reducer<Steps>::scale_what_stayed(place behind) {
    for (const auto& p : parameters_) {
        if (p.frozen) continue;
        if (p.kind == parameter_kind::local)
            steps_.scale(p.gradient,
                         pass_scale() / (options_.scale_local_gradients ? steps_.size() : 1),
                         behind);
        else if (options_.op == hvd::adasum) steps_.scale(p.gradient, pass_scale(), behind);
    }
}

template <class Steps>
bool gradient_reducer<Steps>::finite_everywhere(double factor, bool mine) {
    std::array<double, 3> most = {mine ? 0.0 : 1.0, factor, -factor};
    reduce_maxima(calls(), std::span<double>(most), {.name = "gradients are finite"});
    if (most[1] != -most[2])
        refuse("the loss scales of the ranks are from ", 1 / most[1], " to ", -1 / most[2],
               ", and this rank's is ", 1 / factor, "; they are to be equal");
    return most[0] == 0;
}

template <class Steps>
bool gradient_reducer<Steps>::step_with(double factor, bool finite, void (*step)(void*, double),
                                        void* optimizer) {
    if (factor != 1 && !options_.skip_nonfinite)
        refuse("a loss_scale is for optimizers with .skip_nonfinite = true");
    bool makes = true;
    over_if_it_fails([&] {
        makes = !options_.skip_nonfinite || finite_everywhere(factor, finite);
        if (!makes) return;
        if (options_.op == hvd::adasum) step_by_adasum(step, optimizer, factor);
        else step(optimizer, factor);
        keep_residuals();
    });
    return makes;
}

template <class Steps>
void gradient_reducer<Steps>::keep_residuals() {
    steps_.buckets.commit();
    for (const auto& t : tables_)
        if (!is_frozen(*t)) t->commit(parameters_[t->parameter()].residual);
}

// Lets the optimizer step with this rank's gradients, then combines its changes.
template <class Steps>
void gradient_reducer<Steps>::step_by_adasum(void (*step)(void*, double), void* optimizer,
                                             double factor) {
    adasum_stepper(calls(), options_.op)(
        calls(), {parameters_, epoch_.name(), step, optimizer, factor, steps_.question().get()});
}

}  // namespace hvd::inline v0::detail
