// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/any_communicator.hpp"
#include "../gradients/bucket_queue.hpp"
#include "../gradients/named_step.hpp"
#include "../gradients/reports.hpp"
#include "../gradients/residuals.hpp"
#include "../sparse/sparse_gradient.hpp"
#include "options_agreement.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

/// The part of a distributed_optimizer that depends neither on the optimizer inside nor on the type
/// of the elements: it has the parameters, reduces their gradients, and says when the optimizer
/// steps. typed_gradients.hpp has the functions that name a type.
///
/// On a communicator the ranks agree before a step, and make its calls in one order. On an engine
/// (`named`) calls need no order: ranks agree at the end of a step, when each has submitted all of
/// its gradients.
template <class Calls>
class gradient_reducer : public reported_parameters {
    using reports = reported_parameters;
    static constexpr bool named = Calls::by_name;

public:
    gradient_reducer(const gradient_reducer&) = delete;
    gradient_reducer& operator=(const gradient_reducer&) = delete;

    /// The next steps belong to this epoch. Ranks compare it in the messages of each step: if they
    /// are in different epochs, since one has made more steps, the first such step throws
    /// `hvd::mismatch_error`, which names the epochs. Call it between steps, on all ranks alike.
    /// Without it, such ranks go on until the one with fewer steps ends.
    void begin_epoch(std::uint64_t epoch);

    /// Sets all gradients to zero, also those of frozen parameters. After a report that was refused
    /// when the peers had all that they need, it drops this rank's step: see docs/training.md.
    /// @throws hvd::usage_error while gradients are under way.
    void zero_gradients();

    /// Gives up the current step if this rank's backward pass has failed. The calls of the peers'
    /// step throw `hvd::peer_error` with `why`. On all ranks the next step begins with
    /// `zero_gradients()`. A report that is refused does this by itself.
    ///
    /// It waits until the peers have made their reports. After this rank's last report the peers
    /// step, unless the ranks agree on something later: on the optimizer's numbers in the first
    /// step and on `checked<>`, on sparse tables, with Adasum and with skip_nonfinite.
    /// @throws hvd::usage_error if the peers step. Nothing has changed then: call `step()`, too.
    void abandon(std::string_view why = "a rank abandoned its step");

    /// Reports that the backward pass has written gradient i, and leaves it alone until the step.
    /// @throws hvd::usage_error after more than `backward_passes_per_step` reports in a step.
    void gradient_ready(std::size_t i);

    /// Reports that this rank has no further gradients in this step. It contributes zeros for those
    /// that no pass has reported.
    void nothing_ready() { reports::say_nothing_ready(); }

    /// Reports that this pass has not written gradient i. If no pass of the step has, the gradient
    /// becomes zeros.
    /// @throws hvd::usage_error as `gradient_ready`.
    void nothing_ready(std::size_t i);

    /// For hvd: what error feedback has not applied yet, for checkpoints. **Collective**.
    whole_residuals residuals() { return gather_residuals(comm_, parameters_, options_); }
    /// For hvd: takes this rank's part of the root's. **Collective**.
    void take_residuals(whole_residuals&& all) {
        scatter_residuals(comm_, parameters_, options_, std::move(all));
    }

    /// The number of buckets of the last step, and the number of those under way.
    std::size_t buckets() const noexcept { return buckets_.size(); }
    std::size_t buckets_started() const noexcept { return buckets_.started(); }

protected:
    gradient_reducer(Calls comm, optimizer_options options, const backend_abilities& backend);
    ~gradient_reducer();

    std::size_t add(registered_parameter p);
    void add(std::unique_ptr<sparse_table<Calls>> t) { tables_.push_back(std::move(t)); }
    const std::vector<std::unique_ptr<sparse_table<Calls>>>& tables() const { return tables_; }
    bool is_frozen(const sparse_table<Calls>& t) const { return parameters_[t.parameter()].frozen; }

    // Completes the reduction of all gradients. `by_rows` says that the step takes the rows of
    // tables. **Collective**.
    void reduce(bool by_rows);

    // Calls `step` with the optimizer and a factor for the gradients, unless these are not finite:
    // `finite` says that those of this rank are.
    bool step_with(double factor, bool finite, void (*step)(void*, double), void* optimizer);

    // Null for a parameter that is no table.
    sparse_table<Calls>* table_of(std::size_t parameter) const;

    // `check` throws for a wrong report. The peers that wait for it are told.
    template <class Check>
    void report(std::size_t i, Check check) {
        if constexpr (named) report_by_name(i, check);
        else report_in_order(i, check);
    }

    template <class Check>
    void report_in_order(std::size_t i, Check check) {
        require_closed();
        if (!reports::quiet()) over_if_it_fails([&] { seal(); });
        try {
            check();
            reports::check_report(i);
        } catch (const usage_error& e) {
            if (!peers_step_anyway()) abandon(e.what());
            else if (tells_peers()) reports::keep_refused_step();
            throw;
        }
        if (reports::quiet()) return;
        reports::count_report(i);
        over_if_it_fails([&] { start_complete_buckets(); });
    }

    // The same on an engine, from any thread: a gradient is on its way once it is complete. The
    // peers are told of a failure at the end of the step.
    template <class Check>
    void report_by_name(std::size_t i, Check check) {
        require_closed();
        gradient_bucket<Calls>* complete = nullptr;
        or_fail_step([&] {
            const lock_guard lock(step_.reporting);
            if (!reports::quiet()) seal();
            check();
            reports::check_report(i);
            if (reports::quiet()) return;
            reports::count_report(i);
            complete = buckets_.take(i, [this](const std::vector<std::size_t>& members) {
                return reports::all_reported(members);
            });
        });
        if (complete != nullptr) or_fail_step([&] { complete->start(); });
    }

    // For engines: an exception makes this rank's step one that all ranks leave out.
    template <class F>
    void or_fail_step(F f) {
        try {
            f();
        } catch (...) {
            const message why = what_of(std::current_exception());
            const lock_guard lock(step_.reporting);
            step_.fail(std::string_view(why));
            throw;
        }
    }

    // The lists of tensors are out of date.
    bool take_change() { return std::exchange(changed_, false); }

    // The gradients travel by these.
    Calls& calls() noexcept { return comm_; }

private:
    bool has_sparse() const;

    bool tells_peers() const {
        if constexpr (named) return true;
        else return comm_.tells_peers();
    }

    // True if the ranks make calls after those of the buckets.
    bool agrees_on_more() const;

    void check_passes();
    [[gnu::cold]] void drop_step_of_peers();
    void abandon_in_order(std::string_view why);
    [[gnu::cold]] void abandon_by_name(std::string_view why)
        requires named;

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

    // True if all reductions have begun and the ranks agree on nothing later.
    bool peers_step_anyway() const;

    // Makes the rest of the calls that the peers make for gradients which all ranks have reported.
    // It returns true if they succeeded.
    [[gnu::cold]] bool finish_for_peers();

    [[gnu::cold]] void give_up();

    // The next step begins with a new agreement, which is a single call. That repeats until all
    // ranks are in it.
    void forget_agreement();

    // For engines. **Collective**: the ranks compare what they must have alike in this step. If
    // they don't, or if one of them has failed, the step ends on all of them.
    void agree_on_step()
        requires named;
    [[gnu::cold]] void end_step_together()
        requires named;
    [[gnu::cold]] void refuse_what_peers_have()
        requires named;
    template <class Say>
    void say_step(Say say) const;
    // The name of a bucket's tensor.
    std::string bucket_name(const std::vector<std::size_t>& members) const;
    void submit_rest()
        requires named;

    static void zero(const registered_parameter& p) { p.gradient.zero(); }
    void reduce_sparse(bool by_rows);

    // Collective if something has changed since the last step.
    void seal();
    void agree_on(const std::string& described);
    void make_buckets(std::string described);
    void add_buckets(member_lists members);
    void add_bucket(std::vector<std::size_t> members, shared<step_question> question);

    void start_complete_buckets();
    void scale_what_stayed();
    bool finite_everywhere(double factor, bool mine);
    // The step was made: what the rounding of its gradients lost is added to the next ones.
    void keep_residuals();
    void step_by_adasum(void (*step)(void*, double), void* optimizer, double factor);

    struct nothing {};
    Calls comm_;
    bucket_queue<Calls> buckets_;
    [[no_unique_address]] std::conditional_t<named, named_step, nothing> step_;
    said_epoch epoch_;
    std::vector<std::unique_ptr<sparse_table<Calls>>>
        tables_;  // whose gradients are reported in rows
    bool changed_ = true;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd

#include "gradient_reducer_bodies.hpp"
