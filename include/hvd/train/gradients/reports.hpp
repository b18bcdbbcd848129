// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../agreement.hpp"
#include "options.hpp"
#include "registry.hpp"
#include "report_order.hpp"

namespace hvd::inline v0 {

namespace detail {

// The passes of a step under no_sync().
struct quiet_passes {
    int scopes = 0;        // under way
    bool reports = false;  // the scopes under way have reported gradients
    // A scope has ended without a report, so nobody knows which gradients it has written.
    bool unknown = false;
};

}  // namespace detail

/// While it exists, the reports of a backward pass do not count: see `no_sync()`.
class [[nodiscard("hvd: no_sync() ends with its object: keep it in a variable")]] no_sync_scope {
public:
    explicit no_sync_scope(detail::quiet_passes& passes) : passes_(passes) { ++passes_.scopes; }
    no_sync_scope(const no_sync_scope&) = delete;
    no_sync_scope& operator=(const no_sync_scope&) = delete;
    ~no_sync_scope() {
        if (--passes_.scopes > 0) return;
        passes_.unknown = passes_.unknown || !passes_.reports;
        passes_.reports = false;
    }

private:
    detail::quiet_passes& passes_;
};

namespace detail {

/// The parameters of a distributed optimizer on the host or on the device, and the reports of their
/// gradients in this step.
class reported_parameters {
public:
    /// From now on parameter i neither travels nor is stepped. Call it between steps, on all ranks
    /// alike. An optimizer that steps by itself (`self_contained_optimizer`) must leave it out too.
    void freeze(std::size_t i) { set_frozen(i, true); }
    /// Ends the freeze. The parameter continues with its old state.
    void unfreeze(std::size_t i) { set_frozen(i, false); }

    /// While the result exists, reports do not count and start nothing: `backward_passes_per_step`
    /// does not limit the passes. The gradients of these passes stay on this rank, and travel with
    /// those of the next pass or in `step()`. The ranks may make different numbers of such passes.
    /// `nothing_ready()` keeps them: if a scope has reported nothing, all gradients travel as they
    /// are in this step.
    /// @snippet tests/train/snippets.cpp no_sync
    [[nodiscard]] no_sync_scope no_sync() { return no_sync_scope(quiet_); }

    /// The parameters whose gradients this rank did not report in its last complete step with
    /// reports. Their buckets start in `synchronize()`: name them in
    /// `optimizer_options::may_be_unreported`. Local, frozen and sparse ones are not in the list.
    /// @snippet tests/train/snippets.cpp unreported
    std::vector<std::size_t> unreported() const {
        std::vector<std::size_t> all;
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (parameters_[i].travels() && reports_.missed(i)) all.push_back(i);
        return all;
    }

    /// The name of parameter i.
    const std::string& name(std::size_t i) const {
        check_index(i, "name");
        return parameters_[i].name;
    }

    /// True if parameter i exists and is local to this rank.
    bool is_local(std::size_t i) const {
        return i < parameters_.size() && parameters_[i].kind == parameter_kind::local;
    }

protected:
    reported_parameters(int rank, optimizer_options options)
        : options_(std::move(options)), reports_(options_), rank_(rank) {}
    ~reported_parameters() = default;

    const optimizer_options& options() const { return options_; }
    int rank() const { return rank_; }

    template <class... Parts>
    [[gnu::always_inline, noreturn]] void refuse(const Parts&... parts) const {
        detail::refuse(rank_, parts...);
    }

    void require_closed() const {
        if (open_)
            refuse("the gradients of this step are synchronized: apply() or drop them first");
    }

    [[gnu::cold, noreturn]] void refuse_late_abandon(std::string_view why) const {
        refuse("abandon(\"", why, "\") after the last report of this rank: ranks that do not ",
               "abandon step with its gradients. Call step(), too, or drop what synchronize() ",
               "returns on all ranks");
    }

    void check_index(std::size_t i, const char* call) const {
        if (i >= parameters_.size())
            refuse(call, "(", i, "): there are ", parameters_.size(), " parameters");
    }

    void check_report(std::size_t i, const char* call = "gradient_ready") {
        check_index(i, call);
        if (quiet()) quiet_.reports = true;
        const auto& p = parameters_[i];
        if (p.reports == options_.backward_passes_per_step)
            refuse("gradient \"", p.name, "\" was ready ", p.reports,
                   " times already: step() comes after backward_passes_per_step passes");
    }

    void check_table(std::string_view name, std::size_t elements, std::size_t columns) const {
        if (columns == 0 || elements % columns != 0)
            refuse("sparse parameter \"", name, "\": a table of ", elements,
                   " elements has no rows of ", columns);
        if (options_.op == hvd::adasum)
            refuse("sparse parameter \"", name,
                   "\": gradients in rows are averaged or summed, and ",
                   "this optimizer's op is Adasum");
    }

    // In no_sync() reports do not count.
    bool quiet() const { return quiet_.scopes > 0; }

    void count_report(std::size_t i) {
        if (++parameters_[i].reports == options_.backward_passes_per_step) reports_.complete(i);
        some_reported_ = true;
    }

    bool all_reported(const std::vector<std::size_t>& members) const {
        for (const std::size_t i : members)
            if (parameters_[i].reports < options_.backward_passes_per_step) return false;
        return true;
    }

    // Calls f with each parameter for which this rank contributes zeros: nobody reported it, and
    // nothing_ready() said that there is no more. Local ones stay; tables are their rows. After a
    // pass under no_sync() that reported nothing, all gradients travel as they are.
    template <class F>
    void for_each_zero(F f) {
        if (!nothing_more_ || quiet_.unknown) return;
        for (auto& p : parameters_)
            if (p.reports == 0 && !p.written && p.travels()) f(p);
    }

    // True if gradient i is zeros after nothing_ready(i). A table is the rows that are reported.
    bool becomes_zeros(std::size_t i) const {
        const auto& p = parameters_[i];
        return !quiet() && !p.written && !quiet_.unknown && p.kind != parameter_kind::sparse;
    }

    void say_nothing_ready() {
        require_closed();
        if (quiet()) return;
        some_reported_ = nothing_more_ = true;
    }

    // Refuses a step with fewer passes than average_passes divides by. A step without any reports
    // does not tell its passes, and has all of them.
    void check_passes() const {
        if (!options_.average_passes) return;
        int passes = 0;
        for (const auto& p : parameters_) passes = passes < p.reports ? p.reports : passes;
        if (passes == 0 || passes == options_.backward_passes_per_step) return;
        refuse("this step has ", passes, " backward passes, and average_passes divides by ",
               options_.backward_passes_per_step, ", the backward_passes_per_step: make and ",
               "report all passes (nothing_ready(i) reports a gradient that a pass has not ",
               "written), or leave average_passes out and divide the loss by the number of passes");
    }

    // A report was refused after the last one that counts, so that the peers make the step.
    void keep_refused_step() { refused_ = true; }
    bool has_refused_step() const { return refused_; }

    // The gradients of a step that the peers may make are dropped. The next step begins with an
    // agreement, whose name tells that to peers that have made it.
    void drop_refused_step() {
        end_step();
        dropped_ = true;
        sealed_ = false;
    }

    // The name of the agreement that a step begins with.
    const char* take_agreement_name() {
        return std::exchange(dropped_, false) ? "optimizer that dropped its last step"
                                              : "distributed_optimizer";
    }

    static constexpr const char* nothing_to_train =
        "there is no parameter: register_parameter() comes before the first report and step()";

    // The calls of a step have succeeded, on all ranks.
    void end_step() {
        reports_.end_step();
        if (reports_.due()) sealed_ = false;
        begin_next_step();
    }

    void begin_next_step() {
        for (auto& p : parameters_) {
            p.reports = 0;
            p.written = false;
        }
        reports_.drop_step();
        some_reported_ = nothing_more_ = quiet_.unknown = refused_ = false;
    }

    // True if the step begins with an agreement of the ranks.
    bool agrees_first() const { return !sealed_ && (has_changed() || dropped_ || reports_.due()); }

    // True if the parameters are not those that the ranks agreed on. A registered one changes in
    // nothing but this.
    bool has_changed() const {
        if (agreed_ != parameters_.size()) return true;
        for (const auto& p : parameters_)
            if (p.frozen != p.agreed_frozen) return true;
        return false;
    }
    void keep_agreement() {
        agreed_ = parameters_.size();
        for (auto& p : parameters_) p.agreed_frozen = p.frozen;
    }

    // Registers a parameter, with the memory that reports of it need.
    void add_parameter(registered_parameter p) {
        reports_.make_room(parameters_.size() + 1);
        parameters_.push_back(std::move(p));
        sealed_ = false;
    }

    double pass_scale() const {
        return options_.average_passes ? 1.0 / options_.backward_passes_per_step : 1;
    }

    optimizer_options options_;
    parameter_list parameters_;
    report_order reports_;
    // The number of the parameters of the buckets, if all ranks have them alike.
    std::optional<std::size_t> agreed_;
    bool sealed_ = false;
    bool some_reported_ = false;
    bool open_ = false;               // true while a synchronized_gradients exists
    bool agrees_on_numbers_ = false;  // the next synchronize() ends with an agreement

private:
    void set_frozen(std::size_t i, bool frozen) {
        if (i >= parameters_.size())
            refuse("parameter ", i, " is to be frozen or not; there are ", parameters_.size());
        if (some_reported_)
            refuse("freeze and unfreeze are for between steps; gradients are under way");
        require_closed();
        if (parameters_[i].frozen != frozen) sealed_ = false;
        parameters_[i].frozen = frozen;
    }

    int rank_;
    quiet_passes quiet_;
    bool nothing_more_ = false;  // nothing_ready() was called in this step
    bool refused_ = false;       // see keep_refused_step()
    bool dropped_ = false;       // see drop_refused_step()
};

}  // namespace detail
}  // namespace hvd::inline v0
