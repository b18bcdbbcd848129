// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gradients/bucket_queue.hpp"
#include "../gradients/registry.hpp"
#include "../sparse/sparse_gradient.hpp"
#include "adasum_step.hpp"
#include "optimizers.hpp"
#include "options_agreement.hpp"
#include "synchronized.hpp"

namespace hvd {
inline namespace v0 {
/// Makes an optimizer for one rank an optimizer for all ranks: it averages the gradients, then lets
/// the optimizer step.
///
/// Register every parameter with the memory of its gradient, run backward passes that *add* to the
/// gradients, and call `step()`. With `gradient_ready(i)` it reduces gradients while the backward
/// pass still runs. Buckets are filled in reverse order of registration. A bucket starts when its
/// last gradient is ready and the buckets before it have started.
///
/// A rank that has reported none of its gradients takes them all as they are. A rank that has
/// reported some, or called `nothing_ready()`, contributes zeros for the others. So no rank waits
/// for it.
/// **Collective**: the first report or `synchronize()` after a registration, `freeze` or `unfreeze`
/// (the ranks compare options and parameters), each `synchronize()`, and `apply` with Adasum or
/// `skip_nonfinite`. Between the first report and `synchronize()`, other calls on the communicator
/// must come in the same order relative to the reports on all ranks; use another communicator
/// there.
/// **Errors**: a step whose collectives fail is over on every rank. The gradients hold the results
/// that were complete by then, and the next step begins with `zero_gradients()`.
/// **Buffers**: parameters and gradients (on the host, without gaps) and the communicator outlive
/// it.
/// **Threads**: the communicator's rule. Features G1, G2, G4 to G8.
/// @tparam Optimizer models `optimizer_of<T>` or `self_contained_optimizer`
/// @snippet tests/train/snippets.cpp distributed_optimizer
template <class Comm, class Optimizer,
          class T = typename detail::optimizer_element<Optimizer>::type>
class distributed_optimizer {
    static_assert(
        optimizer_of<Optimizer, T> || self_contained_optimizer<Optimizer>,
        "hvd: an optimizer has step(parameters, gradients), or step(): see hvd::optimizer_of");

public:
    /// @throws hvd::usage_error for options that contradict each other or an empty communicator.
    distributed_optimizer(Comm& comm, Optimizer optimizer, optimizer_options options = {})
        : comm_(comm), optimizer_(std::move(optimizer)), options_(std::move(options)) {
        if (!comm_)
            refuse(
                "this communicator is empty: its rank is not a member, and has no optimizer on it");
        detail::check_options<typename Comm::backend_type>(comm_.rank(), options_);
    }
    distributed_optimizer(const distributed_optimizer&) = delete;
    distributed_optimizer& operator=(const distributed_optimizer&) = delete;

    /// Registers a parameter that all ranks have, and returns its index. Names are unique.
    /// @throws hvd::usage_error for a name that is already registered, sizes that differ, and
    /// memory that overlaps another parameter or gradient.
    template <class P, class G>
    std::size_t register_parameter(std::string_view name, P&& value, G&& gradient) {
        if constexpr (detail::check_parameter<P, G>())
            return add({.kind = detail::parameter_kind::shared}, name, value, gradient);
        return 0;
    }

    /// Registers a parameter that belongs to this rank. Its gradient never travels, and is divided
    /// by the number of ranks unless `scale_local` is false. Feature G4.
    template <class P, class G>
    std::size_t register_local(std::string_view name, P&& value, G&& gradient) {
        if constexpr (detail::check_parameter<P, G>())
            return add({.kind = detail::parameter_kind::local}, name, value, gradient);
        return 0;
    }

    /// Registers a table (rows × `columns`, row-major) that all ranks have, and whose gradient is
    /// reported in rows by `gradient_ready(i, rows)`. `gradient` is a table too. `synchronize()`
    /// fills it with zeros and the rows that any rank has. Features B14, F7.
    /// @throws hvd::usage_error also for columns that do not divide the table, and with Adasum.
    /// @snippet tests/train/snippets.cpp register_sparse
    template <class P, class G>
    std::size_t register_sparse(std::string_view name, P&& value, G&& gradient, std::size_t columns,
                                sparse_policy policy = sparse_policy::automatic) {
        if constexpr (detail::check_parameter<P, G>())
            return add_sparse(name, value, gradient, columns, policy);
        return 0;
    }

    /// From now on parameter i neither travels nor is stepped. Call it between steps, on all ranks
    /// alike. An optimizer that steps by itself (`self_contained_optimizer`) must leave it out too.
    void freeze(std::size_t i) { set_frozen(i, true); }
    /// Ends the freeze. The parameter continues with its old slots.
    void unfreeze(std::size_t i) { set_frozen(i, false); }

    /// Sets all gradients to zero, also those of frozen parameters.
    /// @throws hvd::usage_error while gradients are under way.
    void zero_gradients() {
        if (buckets_.started() > 0)
            refuse(
                "zero_gradients() while gradients are under way: synchronize() or step() first, ",
                "or abandon() a step that failed");
        for (auto& p : parameters_) zero(p);
        for (auto& s : sparse_) s.clear();
    }

    /// Gives up the current step if this rank's backward pass has failed. The calls of the peers'
    /// step throw `hvd::peer_error` with `why`. On all ranks the next step begins with
    /// `zero_gradients()`. A report that is refused does this by itself.
    ///
    /// It waits until the peers have made their reports. A step without later agreements (sparse
    /// tables, Adasum, skip_nonfinite) whose gradients were all reported succeeds on the peers.
    void abandon(std::string_view why = "a rank abandoned its step") {
        require_closed();
        const std::size_t left = buckets_.size() - buckets_.started();
        const bool agrees_first = !sealed_ && detail::described(parameters_) != agreed_;
        if (agrees_first || (left == 0 && agrees_on_more())) buckets_.refuse_one(comm_, why);
        else buckets_.refuse_rest(comm_, why);
        give_up();
        if (!agrees_first && left > 1)
            forget_agreement();  // as the peers do, since several of their calls fail
    }

    /// Reports that the backward pass has written gradient i, and leaves it alone until the step.
    /// @throws hvd::usage_error after more than `backward_passes_per_step` reports in a step.
    void gradient_ready(std::size_t i) {
        report(i, [&] {
            if (sparse_of(i) != nullptr)
                refuse("gradient_ready(", i, "): \"", parameters_[i].name,
                       "\" is sparse; say its rows too");
        });
    }

    /// Reports rows of a sparse parameter. An index may occur several times; its rows are added,
    /// also to those of the step's earlier passes. They are copied, and travel in `synchronize()`.
    /// @throws hvd::usage_error also for an index that is out of range and sizes that do not fit.
    void gradient_ready(std::size_t i, const sparse_view<T>& rows) {
        auto* const sparse = sparse_of(i);
        report(i, [&] {
            if (sparse == nullptr)
                refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
            sparse->check(comm_.rank(), rows);
        });
        sparse->add(rows);
    }

    /// Reports that this rank has no gradients in this step. It contributes zeros.
    void nothing_ready() {
        require_closed();
        some_reported_ = true;
    }

    /// Completes the reduction of all gradients. **Collective**.
    /// @throws hvd::mismatch_error if the ranks have other options or parameters, hvd::peer_error.
    synchronized_gradients<T> synchronize() {
        require_closed();
        over_if_it_fails([&] {
            seal();
            if (some_reported_) zero_unreported();
            buckets_.start_while([](const auto&) { return true; });
            buckets_.finish();
            reduce_sparse();
        });
        scale_what_stayed();
        begin_next_step();
        return {comm_.rank(), gradients_, shared_gradients_, open_};
    }

    /// Steps with the gradients of `synchronize()`. It returns false if `skip_nonfinite` left the
    /// step out.
    /// @throws with Adasum as a collective does. The parameters are then as before, though the
    /// optimizer has seen the step.
    bool apply(synchronized_gradients<T>&& synchronized) {
        const auto gradients = std::move(synchronized);
        if (gradients.open_ != &open_)
            refuse("apply() of gradients that are not this optimizer's, or applied already");
        bool steps = true;
        over_if_it_fails([&] {
            steps = !options_.skip_nonfinite || finite_everywhere();
            if (!steps) return;
            if (options_.op == gradient_op::adasum) step_by_adasum();
            else step_alone();
        });
        return steps;
    }

    /// Calls `apply(synchronize())`.
    bool step() { return apply(synchronize()); }

    /// The optimizer inside.
    Optimizer& optimizer() noexcept { return optimizer_; }
    /// The communicator of the gradients.
    Comm& comm() noexcept { return comm_; }

    /// The parameters, in the order of registration; empty for frozen ones.
    std::span<const tensor_view<T>> parameters() {
        refresh_lists();
        return values_;
    }

    /// The parameters that are not local, including frozen ones.
    std::vector<tensor_view<T>> shared_parameters() const {
        std::vector<tensor_view<T>> shared;
        for_each_shared([&](const std::string&, const tensor_view<T>& value,
                            const std::vector<std::size_t>&) { shared.push_back(value); });
        return shared;
    }

    /// Calls `f(name, value, shape)` for each parameter that is not local. The value is flat.
    template <class F>
    void for_each_shared(F f) const {
        for (const auto& p : parameters_)
            if (p.kind != detail::parameter_kind::local) f(p.name, p.value, p.shape);
    }

    /// Calls `f(name, value)` for all parameters, including local ones.
    template <class F>
    void for_each_parameter(F f) const {
        for (const auto& p : parameters_) f(p.name, p.value);
    }

    /// True if parameter i exists and is local to this rank.
    bool is_local(std::size_t i) const {
        return i < parameters_.size() && parameters_[i].kind == detail::parameter_kind::local;
    }

    /// The number of buckets of the last step, and the number of those under way.
    std::size_t buckets() const noexcept { return buckets_.size(); }
    std::size_t buckets_started() const noexcept { return buckets_.started(); }

private:
    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        detail::refuse(comm_.rank(), parts...);
    }

    template <class P, class G>
    std::size_t add_sparse(std::string_view name, P& value, G& gradient, std::size_t columns,
                           sparse_policy policy) {
        const auto table = detail::flat_view(gradient);
        if (columns == 0 || table.size() % columns != 0)
            refuse("sparse parameter \"", name, "\": a table of ", table.size(),
                   " elements has no rows of ", columns);
        if (options_.op == gradient_op::adasum)
            refuse("sparse parameter \"", name,
                   "\": gradients in rows are averaged or summed, and ",
                   "this optimizer's op is Adasum");
        const std::size_t i =
            add({.kind = detail::parameter_kind::sparse, .columns = columns, .policy = policy},
                name, value, gradient);
        sparse_.emplace_back(i, table, columns, policy);
        return i;
    }

    template <class P, class G>
    std::size_t add(detail::registered_parameter<T> p, std::string_view name, P& value,
                    G& gradient) {
        const auto shape = detail::to_view(value).shape();
        p.name = name;
        p.value = detail::flat_view(value);
        p.gradient = detail::flat_view(gradient);
        p.shape.assign(shape.begin(), shape.end());
        if (buckets_.started() > 0)
            refuse("parameter \"", name, "\" is registered while gradients are under way");
        require_closed();
        detail::check_registration(comm_.rank(), parameters_, p);
        parameters_.push_back(std::move(p));
        sealed_ = false;
        return parameters_.size() - 1;
    }

    void set_frozen(std::size_t i, bool frozen) {
        if (i >= parameters_.size())
            refuse("parameter ", i, " is to be frozen or not; there are ", parameters_.size());
        if (some_reported_ || buckets_.started() > 0)
            refuse("freeze and unfreeze are for between steps; gradients are under way");
        require_closed();
        if (parameters_[i].frozen != frozen) sealed_ = false;
        parameters_[i].frozen = frozen;
    }

    // `check` throws for a wrong report. The peers that wait for it are told.
    template <class Check>
    void report(std::size_t i, Check check) {
        require_closed();
        over_if_it_fails([&] { seal(); });
        try {
            check();
            check_report(i);
        } catch (const usage_error& e) {
            abandon(e.what());
            throw;
        }
        ++parameters_[i].reports;
        some_reported_ = true;
        over_if_it_fails([&] { start_complete_buckets(); });
    }

    void check_report(std::size_t i) const {
        if (i >= parameters_.size())
            refuse("gradient_ready(", i, "): there are ", parameters_.size(), " parameters");
        const auto& p = parameters_[i];
        if (p.reports == options_.backward_passes_per_step)
            refuse("gradient \"", p.name, "\" was ready ", p.reports,
                   " times already: step() comes after backward_passes_per_step passes");
    }

    // True if the ranks make calls after those of the buckets.
    bool agrees_on_more() const {
        bool sparse = false;
        for (const auto& s : sparse_) sparse |= !parameters_[s.parameter()].frozen;
        return sparse || options_.skip_nonfinite || options_.op == gradient_op::adasum;
    }

    detail::sparse_gradient<T>* sparse_of(std::size_t parameter) {
        for (auto& s : sparse_)
            if (s.parameter() == parameter) return &s;
        return nullptr;
    }

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

    [[gnu::cold]] void give_up() {
        try {
            buckets_.finish();
        } catch (...) {  // an earlier failure is the one to report
        }
        for (auto& s : sparse_) s.clear();
        begin_next_step();
        if (!buckets_.together()) forget_agreement();
    }

    // The next step begins with a new agreement, which is a single call. That repeats until all
    // ranks are in it.
    void forget_agreement() {
        buckets_.clear();
        agreed_.reset();
        sealed_ = false;
    }

    void reduce_sparse() {
        const double f = options_.gradient_predivide_factor;
        for (auto& s : sparse_) {
            auto& p = parameters_[s.parameter()];
            if (!p.frozen) s.reduce(comm_, options_, 1 / f, f * pass_scale(), p.residual);
            s.clear();
        }
    }

    void require_closed() const {
        if (open_)
            refuse("the gradients of this step are synchronized: apply() or drop them first");
    }

    static void zero(detail::registered_parameter<T>& p) {
        for (T& x : detail::elements(p.gradient)) x = T(0);
    }

    // Makes this rank contribute zeros for unreported gradients. Local ones are not sent.
    void zero_unreported() {
        for (auto& p : parameters_)
            if (p.reports == 0 && p.kind != detail::parameter_kind::local && !p.frozen) zero(p);
    }

    // Collective if something has changed since the last step.
    void seal() {
        if (sealed_) return;
        refresh_lists();
        std::string described = detail::described(parameters_);
        if (described != agreed_) {
            detail::member_lists members;
            if (options_.op != gradient_op::adasum)
                members = detail::bucket_members(comm_, parameters_, options_);
            agree_on(described);
            forget_agreement();
            for (auto& bucket : members) add_bucket(std::move(bucket));
            agreed_ = std::move(described);
        }
        sealed_ = true;
    }

    void agree_on(const std::string& described) {
        try {
            detail::agree_on_options(comm_, options_, described);
        } catch (const mismatch_error& e) {
            if (detail::runs_a_plan(e)) buckets_.stand_in(comm_);
            throw;
        }
    }

    void refresh_lists() {
        values_.clear();
        gradients_.clear();
        shared_gradients_.clear();
        for (const auto& p : parameters_) {
            const bool local = p.kind == detail::parameter_kind::local;
            values_.push_back(p.frozen ? tensor_view<T>() : p.value);
            gradients_.push_back(p.frozen ? tensor_view<T>() : p.gradient);
            shared_gradients_.push_back(p.frozen || local ? tensor_view<T>() : p.gradient);
        }
    }

    void add_bucket(std::vector<std::size_t> members) {
        if (options_.error_feedback)
            for (const std::size_t i : members)
                parameters_[i].residual.resize(parameters_[i].gradient.size());
        const double f = options_.gradient_predivide_factor;
        buckets_.add(
            comm_, std::move(members), parameters_, options_,
            reduce_options{.name = "gradients", .prescale = 1 / f, .postscale = f * pass_scale()});
    }

    double pass_scale() const {
        return options_.average_passes ? 1.0 / options_.backward_passes_per_step : 1;
    }

    void start_complete_buckets() {
        buckets_.start_while([&](const std::vector<std::size_t>& members) {
            for (const std::size_t i : members)
                if (parameters_[i].reports < options_.backward_passes_per_step) return false;
            return true;
        });
    }

    void scale_what_stayed() {
        for (auto& p : parameters_) {
            if (p.frozen) continue;
            if (p.kind == detail::parameter_kind::local)
                detail::scale(p.gradient, pass_scale() / (options_.scale_local ? comm_.size() : 1));
            else if (options_.op == gradient_op::adasum) detail::scale(p.gradient, pass_scale());
        }
    }

    void begin_next_step() {
        for (auto& p : parameters_) p.reports = 0;
        some_reported_ = false;
    }

    bool finite_everywhere() {
        int finite = detail::all_finite<T>(gradients_) ? 1 : 0;
        comm_.allreduce(finite, min, {.name = "gradients are finite"});
        return finite == 1;
    }

    void step_alone() {
        if constexpr (optimizer_of<Optimizer, T>)
            optimizer_.step(optimizers::tensors<T>(values_), optimizers::tensors<T>(gradients_));
        else optimizer_.step();
    }

    // Lets the optimizer step with this rank's gradients, then combines its changes.
    void step_by_adasum() {
        if constexpr (detail::is_float_element<T>) {
            detail::withheld_step<T> own(parameters_);
            step_alone();
            own.take_back();
            own.combine(comm_);
            own.take();
        }
    }

    Comm& comm_;
    Optimizer optimizer_;
    optimizer_options options_;
    detail::parameter_list<T> parameters_;
    std::vector<tensor_view<T>> values_;
    std::vector<tensor_view<T>> gradients_;
    std::vector<tensor_view<T>> shared_gradients_;  // empty for local parameters
    detail::bucket_queue<Comm, T> buckets_;
    std::vector<detail::sparse_gradient<T>> sparse_;
    // the parameters of the buckets, as all ranks agreed on them
    std::optional<std::string> agreed_;
    bool sealed_ = false;
    bool some_reported_ = false;
    bool open_ = false;  // true while a synchronized_gradients exists
};

}  // namespace v0
}  // namespace hvd
