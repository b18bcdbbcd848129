// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../platform/thread.hpp"
#include "../gradients/bucket.hpp"
#include "../gradients/bucket_queue.hpp"
#include "../optimizer/options_agreement.hpp"
#include "../sparse/sparse_gradient.hpp"
#include "calls.hpp"

namespace hvd::inline v0::detail {

// The steps of a reducer on an engine, which matches calls by name: each gradient is a bucket, and
// several threads may report them in any order. The ranks agree at the end of a step, when each has
// submitted all of its gradients. `Reducer` is a gradient_reducer with such steps.
class named_steps {
public:
    struct place {};
    using space = host;
    using calls_type = engine_calls;
    template <class T>
    using table = sparse_table_of<named_steps, T>;

    static constexpr const char* empty_text = "this engine is empty: it was moved from";

    // Nobody learns an order.
    static optimizer_options options_on(int rank, optimizer_options o) {
        if (o.bucket_bytes != 0)
            detail::refuse(rank, "bucket_bytes is ", o.bucket_bytes,
                           ", and buckets are for communicators: an engine lets gradients travel "
                           "together up to the .fusion_threshold of its options");
        if (o.order != bucket_order::adaptive)
            detail::refuse(rank, "order is ", name_of(o.order),
                           ", and an engine knows none: gradients start as they are reported");
        o.bucket_bytes = 1;
        o.order = bucket_order::reverse;
        return o;
    }

    template <class Backend>
    explicit named_steps(engine<Backend>& on) : calls_(on) {}

    explicit operator bool() const noexcept { return bool(calls_); }
    int rank() const noexcept { return calls_.rank(); }
    int size() const noexcept { return calls_.size(); }
    engine_calls& calls() { return calls_; }
    engine_calls calls_for(std::string_view tensor) const { return calls_.for_tensor(tensor); }
    static std::size_t bucket_bytes() { return 1; }

    // The question that steps take along, if there is one.
    const shared<step_question>& question() { return calls_.question(); }

    static place last_place() { return {}; }
    static void zero(const flat_tensor& t, place) { t.zero(); }
    static void scale(const flat_tensor& t, double factor, place) { t.scale(factor); }

    template <class... Parts>
    [[gnu::always_inline, noreturn]] void refuse(const Parts&... parts) {
        detail::refuse(rank(), parts...);
    }

    // From any thread: a gradient is on its way once it is complete. The peers are told of a
    // failure, also of `take`, at the end of the step.
    template <class Reducer, class Take>
    void report(Reducer& all, std::size_t i, place, Take take) {
        gradient_bucket<engine_calls>* complete = nullptr;
        or_fail([&] {
            const lock_guard lock(reporting_);
            if (!all.quiet()) all.seal();
            take();
            if (all.quiet()) return;
            all.count_report(i);
            complete =
                buckets.take(i, [&](const auto& members) { return all.all_reported(members); });
        });
        if (complete != nullptr) or_fail([&] { complete->start(); });
    }

    template <class Reducer>
    void abandon(Reducer& all, std::string_view why) {
        fail(why);
        try {
            agree_on_step(all);
        } catch (...) {  // the reason, which is known, or that of an engine which has ended
        }
        all.give_up();
    }

    template <class Reducer>
    void drop_refused_step(Reducer& all) {
        if (!failure_.empty()) all.abandon(failure_);
    }

    template <class Reducer>
    void complete(Reducer& all, place behind) {
        if (failure_.empty()) submit_rest(all, behind);
        agree_on_step(all);
    }

    // A rank makes its buckets by itself. The others learn at the end of the step if it can't.
    template <class F>
    static auto prepared(F make) {
        return make();
    }
    template <class F>
    static auto on_all(F make) {
        return make();
    }
    template <class Reducer>
    static bool agree(const Reducer&) {
        return true;
    }
    static void refuse_rest_after_failure() {}

    void list_buckets(member_lists&& members, parameter_list& parameters,
                      const optimizer_options& options, const reduce_options& scales) {
        for (auto& of : members)
            buckets.add({calls_, std::move(of), parameters, options, scales, {}});
    }
    void make_plans(const parameter_list& parameters, const optimizer_options&,
                    const reduce_options&) {
        buckets.for_each([&](auto& bucket) {
            const auto& members = bucket.members();
            calls_.begin_plans_of(name_of_bucket(parameters, members), members.front());
            bucket.make_plan(calls_);
        });
    }

    // The ranks compare the epoch at the end of a step.
    void tell(const said_epoch&) { content_.reset(); }

    void end_step() { failure_.clear(); }
    static bool agrees_anew(const parameter_list&) { return false; }

    // Nothing is ordered here.
    static void follow(place) {}
    template <class Reducer>
    static void follow_uncounted(const Reducer&, std::size_t, place) {}
    template <class Reducer>
    static void begin_reduction(const Reducer&, place) {}
    static bool is_broken() { return false; }
    static void check(const registered_parameter&) {}
    static void fetch_residuals(const parameter_list&) {}
    static void store_residuals(const parameter_list&) {}

    bucket_queue<gradient_bucket<engine_calls>> buckets;

private:
    // The first failure counts.
    void fail(std::string_view why) {
        constexpr std::string_view hvd = "hvd: ";  // the error of the step adds it again
        if (why.substr(0, hvd.size()) == hvd) why.remove_prefix(hvd.size());
        const lock_guard lock(reporting_);
        if (failure_.empty()) failure_ = why.empty() ? "unknown reason" : why;
    }

    // An exception makes this rank's step one that all ranks leave out.
    template <class F>
    void or_fail(F f) {
        try {
            f();
        } catch (...) {
            fail(std::string_view(what_of(std::current_exception())));
            throw;
        }
    }

    template <class Reducer>
    void submit_rest(Reducer& all, place behind) {
        try {
            or_fail([&] {
                all.seal();
                all.zero_unreported(behind);
                buckets.start_while([](const auto&) { return true; });
            });
        } catch (...) {  // all ranks throw it at the end of the step
        }
    }

    static std::string name_of_bucket(const parameter_list& parameters,
                                      const std::vector<std::size_t>& members) {
        const std::string& first = parameters[members.front()].name;
        return members.size() == 1 ? first
                                   : std::string(text(first, " and ", members.size() - 1, " more"));
    }

    template <class Reducer, class Say>
    static void say_step(const Reducer& all, Say say) {
        say_options(all.options_, say);
        say("parameters", all.agreed_ ? described(all.parameters_) : std::string());
        say("epoch", all.epoch_.name());
    }

    // **Collective**: the ranks compare what they must have alike in this step. If they don't, or
    // if one of them has failed, the step ends on all of them.
    //
    // The word of a rank has the hash of its step twice, so that a maximum tells whether all are
    // equal.
    template <class Reducer>
    void agree_on_step(Reducer& all) {
        if (!content_) content_ = content_of_values([&](auto say) { say_step(all, say); });
        const std::int64_t content = std::int64_t(*content_ >> 1);
        const bool yes = question() && question()->ask();
        std::array<std::int64_t, 5> most = {content, -content, !failure_.empty(),
                                            all.agrees_on_numbers_, yes};
        calls_.allreduce(most, max, {.name = "step"});
        if (most[0] != -most[1] || most[2] > 0) end_step_together(all);
        all.agrees_on_numbers_ = most[3] > 0;
        if (question()) question()->settle(most[4] > 0);
    }

    template <class Reducer>
    [[gnu::cold]] void end_step_together(Reducer& all) {
        refuse_what_peers_have(all.parameters_);
        try {
            buckets.drop();
        } catch (...) {  // it follows from what the ranks disagree on
        }
        const auto values = [&](auto say) { say_step(all, say); };
        call_header mine = agreement_header("distributed_optimizer");
        mine.content = content_of_values(values);
        if (!failure_.empty()) mine.refuse(text("hvd: ", failure_));
        agree_on(calls_.channel(), mine, never, values);
    }

    // Tensors of the step that only some ranks have would wait forever.
    [[gnu::cold]] void refuse_what_peers_have(const parameter_list& parameters) {
        std::string mine;
        buckets.for_each_under_way(
            [&](const auto& members) { (mine += name_of_bucket(parameters, members)) += '\0'; });
        std::set<std::string, std::less<>> rest;
        const auto all =
            calls_.allgather(std::as_bytes(std::span(mine)), {.name = "tensors of a step"});
        for_each_name({reinterpret_cast<const char*>(all.values.data()), all.values.size()},
                      [&](std::string_view name) { rest.emplace(name); });
        for_each_name(mine, [&](std::string_view name) { rest.erase(rest.find(name)); });
        for (const std::string& name : rest)
            calls_.refuse(name, "this rank's step has no such gradient");
    }

    // Lists of names travel as one text, in which a NUL ends each name.
    template <class F>
    static void for_each_name(std::string_view list, F f) {
        for (std::size_t end; (end = list.find('\0')) != list.npos; list.remove_prefix(end + 1))
            f(list.substr(0, end));
    }

    engine_calls calls_;
    mutex reporting_;      // for the reports, which several threads make
    std::string failure_;  // why this rank can't take the step; the others learn it at its end
    // a hash of everything that the ranks must have alike in the step
    std::optional<std::uint64_t> content_;
};

}  // namespace hvd::inline v0::detail
