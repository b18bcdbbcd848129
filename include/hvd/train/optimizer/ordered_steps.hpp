// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "../gradients/any_communicator.hpp"
#include "../gradients/bucket.hpp"
#include "../gradients/bucket_members.hpp"
#include "../gradients/bucket_queue.hpp"
#include "../sparse/sparse_gradient.hpp"
#include "options_agreement.hpp"

namespace hvd::inline v0::detail {

// The steps of a reducer whose calls the ranks match by their order. The ranks agree before a step
// if something has changed. `Reducer` is a gradient_reducer with such steps.
class steps_in_order {
public:
    static constexpr const char* empty_text =
        "this communicator is empty: its rank is not a member, and has no optimizer on it";

    static optimizer_options options_on(int, optimizer_options o) { return o; }

    // `take` throws for a wrong report.
    template <class Reducer, class Take>
    static void report(Reducer& all, std::size_t i, typename Reducer::place behind, Take take) {
        auto& steps = all.steps_;
        steps.follow(behind);
        if (!all.quiet()) {
            steps.begin_reports(all, behind);
            all.over_if_it_fails([&] { all.seal(); });
        }
        try {
            take();
        } catch (...) {
            tell_refused_report(all);
            throw;
        }
        if (all.quiet()) return;
        all.count_report(i);
        all.over_if_it_fails([&] {
            steps.begin_behind(i, behind);
            all.start_complete_buckets();
            steps.progress();
        });
    }

    template <class Reducer>
    [[gnu::cold]] static void abandon(Reducer& all, std::string_view why) {
        if (all.peers_step_anyway()) all.refuse_late_abandon(why);
        auto& steps = all.steps_;
        const bool agrees_first = all.agrees_first(), sparse = all.has_sparse();
        const std::size_t left = agrees_first ? 0 : all.buckets() - all.buckets_started();
        const bool reduced = !agrees_first && left == 0 && all.finish_for_peers();
        why = without_prefix(why);
        if (left > 0) steps.refuse_reductions(left, why);
        else if (agrees_first || (reduced && all.agrees_on_more())) steps.refuse_next(all, why);
        if (reduced && !sparse && !steps.is_broken()) return all.end_step();  // as on the peers
        all.give_up();
        if (left > 1) all.forget_agreement();  // as the peers do: several of their calls fail
    }

    // Peers that have reported alike drop it, too. The others are told in the next step.
    template <class Reducer>
    static void drop_refused_step(Reducer& all) {
        if (all.has_refused_step()) drop_step(all);
    }
    template <class Reducer>
    [[gnu::cold]] static void drop_step(Reducer& all) {
        all.require_closed();
        if (all.finish_for_peers()) {
            all.steps_.end_step();
            all.reported_parameters::drop_refused_step();
        } else {
            all.give_up();  // it has failed on all ranks
        }
    }

    template <class Reducer>
    static void complete(Reducer& all, typename Reducer::place behind) {
        all.seal();
        all.steps_.join_writers(behind);
        all.zero_unreported(behind);
        all.steps_.buckets.follow(behind);
        all.start_while([](const auto&) { return true; });
    }

    // The rest of this class is what only devices do.
    template <class Place>
    static void follow(Place) {}
    template <class Reducer, class Place>
    static void follow_uncounted(Reducer&, std::size_t, Place) {}
    template <class Reducer, class Place>
    static void begin_reports(Reducer&, Place) {}
    template <class Reducer, class Place>
    static void begin_reduction(Reducer&, Place) {}
    template <class Place>
    static void begin_behind(std::size_t, Place) {}
    template <class Place>
    static void join_writers(Place) {}
    static void end_step() {}
    static bool is_broken() { return false; }
    static void check(const registered_parameter&) {}
    static void fetch_residuals(const parameter_list&) {}
    static void store_residuals(const parameter_list&) {}
    static void refuse_rest_after_failure() {}
    static void progress() {}

protected:
    // Called in a handler: a report is wrong, or this rank has no memory for it.
    template <class Reducer>
    [[gnu::cold]] static void tell_refused_report(Reducer& all) {
        call_header told;
        attempt(told, [] { throw; });
        if (!all.peers_step_anyway()) all.abandon(told.text);
        else if (all.steps_.tells_peers()) all.keep_refused_step();
    }

    // Returns the reason without what a refusal adds again.
    static std::string_view without_prefix(std::string_view why) {
        constexpr std::string_view hvd = "hvd: ";
        return why.substr(0, hvd.size()) == hvd ? why.substr(hvd.size()) : why;
    }
};

// The steps of a reducer on a communicator of the host, whatever its backend.
class ordered_steps : public steps_in_order {
public:
    struct place {};
    using space = host;
    using calls_type = any_communicator;
    template <class T>
    using table = sparse_table_of<ordered_steps, T>;

    template <class Backend>
    explicit ordered_steps(communicator<Backend>& on) : calls_(on) {}

    explicit operator bool() const noexcept { return bool(calls_); }
    int rank() const noexcept { return calls_.rank(); }
    int size() const noexcept { return calls_.size(); }
    any_communicator& calls() { return calls_; }
    any_communicator& calls_for(std::string_view) { return calls_; }
    std::size_t bucket_bytes() { return access::session_of(calls_).options().tuning.bucket_bytes; }

    // The question that steps take along, if there is one.
    const shared<step_question>& question() { return access::session_of(calls_).question; }

    static place last_place() { return {}; }
    static void zero(const flat_tensor& t, place) { t.zero(); }
    static void scale(const flat_tensor& t, double factor, place) { t.scale(factor); }

    template <class... Parts>
    [[gnu::always_inline, noreturn]] void refuse(const Parts&... parts) {
        refuse_call(calls_, parts...);
    }

    // False if the backend tells the peers nothing of a call that this rank refuses.
    bool tells_peers() const { return calls_.tells_peers(); }

    // Refuses calls that the peers make.
    void refuse_reductions(std::size_t number, std::string_view why) {
        for (; number > 0; --number) refuse_one(why);
    }
    template <class Reducer>
    void refuse_next(const Reducer&, std::string_view why) {
        refuse_one(why);
    }

    // The call of the next bucket has failed on this rank as it began, and was refused. The peers
    // make those of the rest, too.
    [[gnu::cold]] void refuse_rest_after_failure() {
        const std::size_t next = buckets.started() + 1;
        if (next < buckets.size()) buckets.come_apart();
        for (std::size_t b = next; b < buckets.size(); ++b)
            refuse_one("an earlier call of this step has failed");
    }

    // Makes what the next agreement needs, or refuses it.
    template <class F>
    auto prepared(F make) {
        return prepare_call(calls_, collective::agree, hvd::options{}, make);
    }
    // **Collective**: the same on all ranks or on none.
    template <class F>
    auto on_all(F make) {
        return run_on_all(channel_of(calls_), "buckets", never, make);
    }

    // **Collective**: returns true if a rank makes its buckets anew.
    template <class Reducer>
    [[gnu::cold]] bool agree(Reducer& all) {
        try {
            agree_on_options(calls_, all.take_agreement_name(), all.options_, all.parameters_);
        } catch (const mismatch_error& e) {
            if (runs_a_plan(e)) stand_in();
            throw;
        }
        return all.reports_.agree(calls_, all.parameters_.size(), all.has_changed());
    }

    // Makes the buckets, and later their plans.
    [[gnu::cold]] void list_buckets(member_lists&& members, parameter_list& parameters,
                                    const optimizer_options& options,
                                    const reduce_options& scales) {
        const std::size_t asks = bucket_with_question(members, parameters, options);
        for (std::size_t b = 0; b < members.size(); ++b)
            buckets.add({calls_, std::move(members[b]), parameters, options, scales,
                         b == asks ? question() : shared<step_question>()});
    }
    void make_plans(const parameter_list&, const optimizer_options&, const reduce_options&) {
        buckets.for_each([&](auto& bucket) { bucket.make_plan(calls_); });
    }

    void tell(const said_epoch& epoch) { epoch.tell(buckets); }

    // A report drives the buckets under way, where no thread does.
    void progress() { calls_.make_progress(); }

    // Ranks that were in other calls have made fewer: they agree again before the next step.
    bool agrees_anew(const parameter_list&) const { return !buckets.together(); }

    bucket_queue<gradient_bucket<any_communicator>> buckets;

private:
    [[gnu::cold]] void refuse_one(std::string_view why) {
        try {
            refuse_call(calls_, why);
        } catch (...) {  // the first failure is the one to throw
        }
    }

    // A rank runs a plan while this rank made another call.
    static bool runs_a_plan(const mismatch_error& e) {
        if (e.field() != "collective") return false;
        for (const auto& [rank, value] : e.table())
            if (value.find(" of plan ") != std::string_view::npos) return true;
        return false;
    }

    // Refuses all buckets but the first, whose call failed. Peers that did not see that this step
    // differs run them.
    [[gnu::cold]] void stand_in() {
        if (buckets.size() > 1) buckets.come_apart();
        for (std::size_t b = 1; b < buckets.size(); ++b)
            refuse_one("this rank's parameters have changed");
    }

    any_communicator calls_;
};

}  // namespace hvd::inline v0::detail
