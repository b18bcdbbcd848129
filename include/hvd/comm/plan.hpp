// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../collective/allgather.hpp"
#include "../collective/allreduce.hpp"
#include "../collective/broadcast.hpp"
#include "../collective/coded_allreduce.hpp"
#include "../collective/reduce_scatter.hpp"
#include "../core/tuning.hpp"
#include "../transport/list_segment.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class Comm, class B>
class plan_calls;

// Gives a plan's operation an update for one run.
class update_of_plan {
public:
    update_of_plan(operation& op, const fused_update& update) : op_(op), entry_(op.entry) {
        op.update = &update;
        op.updated = false;
        op.entry.content =
            hash().add(op.entry.content).add("run_and_apply").add(update.content).value();
        store(op.entry.text, update.said);
        if (!matches()) refuse();
    }
    update_of_plan(const update_of_plan&) = delete;
    update_of_plan& operator=(const update_of_plan&) = delete;
    ~update_of_plan() {
        op_.entry = entry_;
        op_.update = nullptr;
    }

    // Does the step for all parameters if the transport left it to every rank.
    void finish() const {
        if (op_.updated) return;
        alignas(tuning::cache_line) std::byte values[tuning::cached_block];
        std::size_t done = 0;
        const reduction_group& g = op_.groups[0];
        for (list_segment s(op_, g.offset, g.bytes()); s.next();)
            for (std::size_t at = 0; at < s.bytes; at += sizeof values) {
                const std::size_t n = s.bytes - at < sizeof values ? s.bytes - at : sizeof values;
                copy_bytes(values, s.in + at, n);
                op_.update->apply(op_.update->self, done, s.place() + at, n, values, s.out + at);
                copy_bytes(s.out + at, values, n);
                done += n;
            }
    }

private:
    bool averages() const {
        return op_.entry.kind == collective::allreduce &&
               (op_.entry.op == op::sum::id || op_.entry.op == op::average::id);
    }

    bool matches() const {
        const slice<const tensor_ref> targets = op_.update->targets;
        if (!averages() || op_.group_count != 1 || op_.groups[0].id != op_.update->id) return false;
        if (op_.tensor_count == 0)
            return op_.pack == nullptr && targets.size() == 1 &&
                   targets[0].count == op_.groups[0].count;
        if (targets.size() != op_.tensor_count) return false;
        for (std::size_t i = 0; i < targets.size(); ++i)
            if (targets[i].count != op_.tensors[i].count) return false;
        return true;
    }

    [[gnu::cold]] void refuse() {
        const bool reduces = op_.entry.kind == collective::allreduce;
        op_.entry.refuse(text("hvd: run_and_apply: the plan is ", name_of(op_.entry.kind),
                              reduces ? " by " : "", reduces ? op_names[op_.entry.op] : "", " of ",
                              op_.tensor_count == 0 ? 1 : op_.tensor_count,
                              " tensors and the step has ", op_.update->targets.size(),
                              " parameters: it takes a sum or mean of gradients that match "
                              "the parameters in number, size and element type, "
                              "float or double, without gaps"));
    }

    operation& op_;
    call_header entry_;
};

// It stands for the slices in which a plan's ranks reduce. A step that has it knows that plan from
// all others, also from later ones at the same address.
struct plan_layout final : counted {};

// A fused step gets this from the plan that runs it: the layout, and calls between the plan's ranks
// to bring its state together.
class ranks_of_plan {
public:
    ranks_of_plan(session& own, shared<plan_layout>& layout, time_limit timeout)
        : own_(own), layout_(layout), timeout_(timeout) {}

    bool has(const shared<plan_layout>& known) const {
        return layout_ && known.get() == layout_.get();
    }
    shared<plan_layout> layout() {
        if (!layout_) layout_ = shared<plan_layout>::make();
        return layout_;
    }

    session& channel() { return own_; }
    time_point limit() const { return limit_of(timeout_); }
    // **Collective**. The bytes of all ranks.
    gathered<std::byte> gather(slice<const std::byte> mine) {
        gathered<std::byte> all;
        const options o{.name = "state of a step", .timeout = timeout_};
        gather_call<tensor_view<const std::byte>, gathered<std::byte>*> call(
            collective::allgather, view(mine.data(), mine.size()), &all, root{}, true, own_.size(),
            o);
        own_.run(own_, call.op, timeout_);
        return all;
    }

private:
    session& own_;
    shared<plan_layout>& layout_;
    time_limit timeout_;
};

// A call of any type that a plan keeps.
struct kept_call : counted {
    operation* op = nullptr;
    std::vector<std::byte> buffer;
    message name;  // without an epoch
    shared<plan_layout> layout;
};

template <class Call>
struct kept : kept_call {
    Call call;
    template <class Make>
    explicit kept(Make& make) : call(make()) {
        op = &call.op;
    }
};

}  // namespace detail

/// A collective whose layout, buffers and agreement are made once, and that runs at every step.
///
/// A run allocates nothing. The tensors (and lists of views) outlive the plan, at the same places.
/// The communicator may be moved; after its end the plan throws `hvd::peer_error`. The plan is
/// movable, and empty after a move. **Threads**: the communicator's rule.
template <class Backend>
class [[nodiscard("hvd: a plan does nothing until it is run")]] plan {
public:
    plan() = default;
    plan(plan&&) noexcept = default;
    plan& operator=(plan&&) noexcept = default;

    /// True if there is something to run.
    explicit operator bool() const noexcept { return bool(call_); }

    /// Runs the collective. **Collective**: all ranks run the plans of a communicator in one order.
    /// @throws hvd::mismatch_error, hvd::peer_error as the collective does, hvd::usage_error if
    /// empty.
    void run() {
        require();
        session_->run(*session_, *call_->op, timeout_);
    }

    /// The next runs belong to this epoch of a training. Ranks compare it in each run, without a
    /// further message. If they differ, all get mismatch_error, which names the epochs. Call it
    /// between runs, on all ranks.
    /// @throws hvd::usage_error if empty.
    void begin_epoch(std::uint64_t epoch) {
        require();
        detail::enter_epoch(call_->op->entry, epoch, call_->name);
    }

    /// Reduces gradients and takes an optimizer's step in one pass. The plan is that of an
    /// sum or mean of the gradients. The `fused_step` has as many parameters
    /// (train/fused/fused_step.hpp). If it was run by another plan before, the ranks bring its
    /// state together first.
    ///
    /// Inside a node each rank reduces its slice and updates that slice of the parameters while it
    /// is in the cache; then all ranks have the new parameters. The optimizer's state exists once
    /// per node, a slice on each rank. Between nodes, and on other backends, the allreduce is
    /// followed by the whole step on every rank. The result equals that up to rounding, with the
    /// same bits on all ranks.
    /// **Collective**: all ranks, instead of `run()`.
    /// **Buffers**: parameters are read and written. Gradients are read, and may be overwritten.
    /// @throws as `run`; hvd::mismatch_error, which names the number of the optimizer that differs;
    /// hvd::usage_error if parameters and gradients do not match or are strided, for a plan that is
    /// no sum or mean, and if these ranks have not all of the step's state.
    /// @snippet tests/train/snippets.cpp run_and_apply
    template <class Step>
        requires requires(Step& step, detail::ranks_of_plan& ranks) {
            { step.begin(ranks) } -> std::same_as<const detail::fused_update&>;
            step.end();
        }
    void run_and_apply(Step& step) {
        require();
        detail::ranks_of_plan ranks(*session_, call_->layout, timeout_);
        const detail::update_of_plan run(*call_->op, step.begin(ranks));
        session_->run(*session_, *call_->op, timeout_);
        run.finish();
        step.end();
    }

    /// Begins a run, which is complete when the request is. It is not begun again before that.
    request run_async() {
        require();
        struct run_of_plan : detail::queued {
            detail::shared<detail::kept_call> call;
        };
        const detail::call_header& entry = call_->op->entry;
        const detail::session_scope held(session_->user(), detail::name_of(entry.kind));
        const auto queued = detail::prepare(*session_, entry.kind,
                                            options{.name = entry.name, .timeout = timeout_}, [&] {
                                                detail::progress::of(*session_);
                                                return detail::shared<run_of_plan>::make();
                                            });
        queued->call = call_;
        queued->op = call_->op;
        detail::progress::submit(*session_, queued, timeout_);
        return request(queued);
    }

private:
    template <class, class>
    friend class detail::plan_calls;

    plan(detail::shared<detail::session> session, detail::shared<detail::kept_call> call,
         time_limit timeout)
        : session_(std::move(session)), call_(std::move(call)), timeout_(timeout) {
        detail::operation& op = *call_->op;
        op.buffer = &call_->buffer;
        op.entry.making_plan = op.only_agree = true;
        session_->run(*session_, op, timeout);
        op.entry.making_plan = op.only_agree = false;
        op.entry.plan = session_->next_plan();
        call_->name = std::string_view(op.entry.name);
    }

    void require() const {
        if (!call_) throw usage_error(-1, "hvd: this plan is empty");
    }

    detail::shared<detail::session> session_;
    detail::shared<detail::kept_call> call_;
    time_limit timeout_{};
};

namespace detail {

/// The members of a communicator that make plans.
template <class Comm, class B>
class plan_calls {
public:
    /// Plans `allreduce(tensors, op)` of a `fuse(…)` or a single tensor.
    ///
    /// **Collective**: ranks agree on layout, element types, operation and scales here, once.
    /// @throws as `allreduce`.
    /// @snippet tests/docs/snippets.cpp plan
    template <class X, class Op = reduce_options>
    plan<B> plan_allreduce(X&& tensors, const Op& op = {}, const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            return make(collective::allreduce, o, [&] {
                return kept_fused_allreduce<list_of<X>, operation_of<Op>>(as_list(tensors),
                                                                          as_operation(op), o);
            });
        return {};
    }

    /// Plans an allreduce with a codec, which sets the type in which floats travel.
    /// `hvd::codec::cast<hvd::bfloat16>` halves the bytes.
    /// `hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)` also adds its rounding errors
    /// in the next run, for which the plan keeps a float per element. Each rank's elements are
    /// multiplied by `.prescale` before they are rounded, and the results by `.postscale` after
    /// they have been widened. Elements of other types travel as they are. On one rank nothing
    /// travels, and nothing is rounded. `hvd::codec::none_t{}` is the plan without a codec.
    /// @throws as above; hvd::usage_error for a float tensor with gaps, hvd::mismatch_error if
    /// codecs differ.
    /// @snippet tests/docs/snippets.cpp plan_with_codec
    template <class X, class Op, class Codec>
    plan<B> plan_allreduce(X&& tensors, const Op& op, const reduce_options& o, Codec) {
        if constexpr (changes_floats<Codec>)
            return plan_coded<X, Op, Codec>(std::forward<X>(tensors), op, o);
        else return plan_allreduce(std::forward<X>(tensors), op, o);
    }

    /// Plans `broadcast(tensors, root)`.
    template <class X>
    plan<B> plan_broadcast(X&& tensors, root r = root{0}, const options& o = {}) {
        if constexpr (check_tensor<B, X, tensor_use::written>())
            return make(collective::broadcast, o, [&] {
                return kept_fused_broadcast<list_of<X>>(as_list(tensors), r, own().rank(),
                                                        own().size(), o);
            });
        return {};
    }

    /// Plans `allgather(tensors, into(out))`. The first extents may not change.
    template <class X, class View>
    plan<B> plan_allgather(X&& tensors, const into_view<View>& out, const options& o = {}) {
        if constexpr (check_tensor<B, X>())
            return make(collective::allgather, o, [&] {
                return with_memory<fused_gather_into_call>(
                    memory_for(as_list(tensors), as_list(out.view)), own().rank(), o);
            });
        return {};
    }

    /// Plans `reduce_scatter(tensors, op, into(out))`.
    template <class X, class Op, class View>
    plan<B> plan_reduce_scatter(X&& tensors, const Op& op, const into_view<View>& out,
                                const reduce_options& o = {}) {
        if constexpr (check_tensor<B, X>() && check_reduced<B, X, Op>())
            return make(collective::reduce_scatter, o, [&] {
                const auto list = as_list(out.view);
                return kept_fused_reduce_scatter<list_of<X>, operation_of<Op>>(
                    as_list(tensors), as_operation(op), list, own().rank(), own().size(), o);
            });
        return {};
    }

protected:
    // Makes the plan of the call that `make()` gives.
    template <class Options, class Make>
    plan<B> make(collective kind, const Options& o, Make make) {
        const auto held = access::hold(self(), kind);
        return plan<B>(
            session(),
            prepare(own(), kind, o, [&] { return shared<kept<decltype(make())>>::make(make); }),
            o.timeout);
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }
    auto session() { return shared<detail::session>(&own()); }

    template <class X>
    using list_of = std::remove_cvref_t<decltype(as_list(std::declval<X&>()))>;

    template <class X, class Op, class Codec>
    plan<B> plan_coded(X&& tensors, const Op& op, const reduce_options& o) {
        using O = operation_of<Op>;
        static_assert(!is_custom<O>,
                      "hvd: a codec goes with hvd's own operations: a callable would get other "
                      "elements than it was made for");
        static_assert(reducible<typename Codec::template type_of<float>, O, B>,
                      "hvd: this backend does not reduce what the codec makes of floats");
        const auto list =
            prepare(own(), collective::allreduce, o, [&] { return as_list(tensors); });
        if (own().size() == 1) return plan_allreduce(list, op, o);
        if constexpr (check_tensor<B, X, tensor_use::written>() && check_reduced<B, X, Op>())
            return make(collective::allreduce, o, [&] {
                return coded_allreduce_call<std::remove_cvref_t<decltype(list)>, O, Codec>(
                    list, as_operation(op), o);
            });
        return {};
    }
};

}  // namespace detail
}  // namespace hvd::inline v0
