// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../fusion/codec.hpp"
#include "arguments.hpp"
#include "plan.hpp"

namespace hvd::inline v0::detail {

// Builds a plan: it decides which tensors are packed, and collects the calls.
class device_plan_maker {
public:
    device_plan_maker(device_session& session, collective kind, const device_plan_options& o)
        : session_(session), options_(o) {
        calls->timeout = o.timeout;
        entry_.kind = kind;
        entry_.fused = entry_.making_plan = true;
        entry_.prescale = o.prescale;
        entry_.postscale = o.postscale;
        store(entry_.name, o.name);
        calls->name = std::string_view(entry_.name);
        calls->label = entry_.label();
        if (o.timeout.is_wrong())
            refuse(text("hvd: ", calls->label, " on rank ", session_.rank(), ": ",
                        wrong_limit("timeout", o.timeout)));
    }

    call_header& entry() { return entry_; }
    bool alone() const { return session_.size() == 1; }
    int size() const { return session_.size(); }

    // True for small tensors that are not in an arena. A rank that is alone gains nothing by
    // packing.
    bool is_small(const tensor_ref& t) const {
        return !alone() && t.count > 0 && t.bytes() < options_.pack_below &&
               !session_.in_arena(t.data, t.bytes());
    }

    // Notes a tensor that the ranks compare.
    void note(const tensor_ref& t, bool packed, dtype wire) {
        if (t.data == nullptr && t.count > 0)
            refuse(text("hvd: ", calls->label, " on rank ", session_.rank(), ": null pointer with ",
                        t.count, " elements"));
        refuse_host_memory(text("tensor ", noted_++), t.data, t.count);
        content_.add(t).add(packed).add(std::uint64_t(wire));
        entry_.count += t.bytes();
    }

    // Adds a call on a tensor where it lies. Tensors side by side in an arena become one call.
    void in_place(const tensor_ref& t, collective_call call) {
        call.in = call.out = t.data;
        call.entry.count = t.count;
        const bool registered = session_.in_arena(t.data, t.bytes());
        if (registered && last_registered_ && continues(calls->calls.back(), call)) {
            collective_call& last = calls->calls.back();
            last.entry.count =
                std::size_t(call.in - last.in) / call.element_bytes + call.entry.count;
            return;
        }
        last_registered_ = registered;
        calls->calls.push_back(call);
    }

    // Adds a call on a part of the buffer, whose address is known later.
    void packed(std::size_t offset, collective_call call) {
        if (!has_kernels())
            refuse(
                no_kernels(text(calls->label, ", a plan that packs or casts,"), session_.rank()));
        in_buffer_.push_back({calls->calls.size(), offset});
        call.entry.count = (layout.bytes() - offset) / call.element_bytes;
        last_registered_ = false;
        calls->calls.push_back(call);
    }

    [[gnu::cold]] void refuse(std::string_view why) { entry_.refuse(why); }

    void refuse_host_memory(std::string_view tensor, const void* data, std::size_t count) {
        const message why =
            reason_to_refuse(tensor, data, count, session_.rank(), session_.device());
        if (!why.empty())
            refuse(text("hvd: ", calls->label, " on rank ", session_.rank(), ": ", why));
    }

    void check(const collective_call& call) {
        if (call.entry.refused) return refuse(call.entry.text);
        try {
            session_.check(call, calls->label.c_str());
        } catch (const usage_error& e) {
            refuse(e.what());
        }
    }

    // Finishes the plan. All ranks agree on it, or all throw.
    std::shared_ptr<planned_calls> finish(bool packs, bool unpacks) {
        for (const collective_call& c : calls->calls) {
            content_.add(c.entry.count);
            check(c);
        }
        entry_.content = content_.value();
        const time_point limit = session_.limit_for(options_.timeout);
        exchange_after(try_to_place(packs, unpacks), [&] { agree(session_, entry_, limit); });
        if (calls->buffer != nullptr)
            session_.share_memory(calls->buffer.get(), calls->buffer_bytes, limit);
        for (const auto& [call, offset] : in_buffer_)
            calls->calls[call].out = calls->buffer.get() + offset,
            calls->calls[call].in = calls->calls[call].out;
        return std::move(calls);
    }

    device_layout layout;
    std::shared_ptr<planned_calls> calls = std::make_shared<planned_calls>();

private:
    // True if the next tensor follows the last, with nothing between them or only bytes that the
    // arena left empty. Both must be in one arena, since the places of arenas differ between ranks.
    bool continues(const collective_call& last, const collective_call& next) const {
        const std::byte* const end = last.in + last.entry.count * last.element_bytes;
        if (last.entry.id != next.entry.id || last.element_bytes != next.element_bytes ||
            end > next.in)
            return false;
        const bool whole = std::size_t(next.in - last.in) % last.element_bytes == 0;
        const std::size_t bytes =
            std::size_t(next.in - last.in) + next.entry.count * next.element_bytes;
        return whole && session_.in_arena(last.in, bytes) &&
               (end == next.in || session_.is_padding({end, next.in}));
    }

    // Called before the ranks agree: if one rank has no room for the plan, all are told.
    std::exception_ptr try_to_place(bool packs, bool unpacks) {
        try {
            place_plan(*calls, layout, packs, unpacks, session_);
            return {};
        } catch (const cuda_error& e) {
            refuse(e.what());
            return std::current_exception();
        }
    }

    device_session& session_;
    const device_plan_options& options_;
    call_header entry_;
    hash content_;
    bool last_registered_ = false;
    int noted_ = 0;
    std::vector<std::pair<std::size_t, std::size_t>> in_buffer_;
};

template <class T>
collective_call call_of(collective kind) {
    collective_call call;
    call.entry.kind = kind;
    describe_elements<T>(call);
    return call;
}

// Plans one element type of an allreduce. Its small tensors, or all that are cast, become one
// tensor of the wire's type.
template <class B, class T, class Codec, class List, class Op>
void plan_type(device_plan_maker& maker, const List& list, const Op& op,
               const device_plan_options& o) {
    using W = typename Codec::template type_of<T>;
    // The mean of floats is a factor of the unpacking. Types that are reduced as on the host have
    // their own mean, with its own bits. Scales then belong to the codec, as in the host's plans.
    constexpr bool on_host = reduces_on_host<B>;
    constexpr bool scales = is_float_element<T> && !(on_host && std::is_same_v<T, W>);
    constexpr bool divides = scales && !on_host && std::is_same_v<Op, op::average>;
    static const op::sum plain{};
    const double before_sum = divides ? factor_before_mean(dtype_traits<W>::id, maker.size()) : 1;
    const double before = scales ? o.prescale * before_sum : 1,
                 after = scales ? o.postscale / (divides ? maker.size() * before_sum : 1) : 1;
    std::vector<tensor_ref> tensors;
    std::size_t small = 0;
    list.for_each([&](const auto& x) {
        if constexpr (std::is_same_v<element_of<decltype(x)>, T>) {
            tensors.push_back(erase(x));
            small += maker.is_small(tensors.back());
        }
    });
    const bool cast = !std::is_same_v<T, W> && !maker.alone();
    device_reduce_options kept{.prescale = o.prescale, .postscale = o.postscale};
    auto asked = call_of<T>(collective::allreduce);
    describe_reduction<B, T>(asked, op, kept);
    maker.check(asked);
    const std::size_t offset = maker.layout.begin_group();
    for (const tensor_ref& t : tensors) {
        const bool packed = (cast && t.count > 0) || (small > 1 && maker.is_small(t));
        maker.note(t, packed, dtype_traits<W>::id);
        if (packed) {
            maker.layout.add(t, copy_between(dtype_traits<T>::id, dtype_traits<W>::id, before != 1),
                             copy_between(dtype_traits<W>::id, dtype_traits<T>::id, after != 1),
                             before, after);
            continue;
        }
        if (t.count == 0) continue;
        maker.in_place(t, asked);
    }
    if (maker.layout.bytes() == offset) return;
    auto call = call_of<W>(collective::allreduce);
    if constexpr (scales) kept.prescale = kept.postscale = 1;
    if constexpr (divides) describe_reduction<B, W>(call, plain, kept);
    else describe_reduction<B, W>(call, op, kept);
    maker.packed(offset, call);
}

/// The members of a communicator that make plans for device tensors.
template <class Comm, class B>
class device_plans {
public:
    /// Plans `allreduce(tensors, op)` of a `fuse(…)` or a single view. Tensors of fewer bytes than
    /// `.pack_below` are packed by one launch and scaled in the same pass. Larger ones are not
    /// copied. Packing needs hvd's kernels (`hvd/kernels.cuh`), and so does a codec.
    ///
    /// **Collective**: all ranks agree on tensors, operation and scales here, once. If they differ,
    /// they get `hvd::mismatch_error`. `codec` sets the type in which floats travel:
    /// `hvd::codec::cast<hvd::bfloat16>` halves the bytes.
    /// @throws hvd::usage_error for calls that this backend can't make; the other ranks then get
    /// hvd::peer_error.
    /// @snippet tests/device/snippets.cpp device_plan
    template <class X, class Op, class Codec = codec::none_t>
        requires operation_like<Op>
    device_plan plan_allreduce(X&& tensors, const Op& op, const device_plan_options& o = {},
                               Codec = {}) {
        static_assert(!Codec::keeps_residual,
                      "hvd: plans for device tensors have no error feedback");
        const auto list = as_list(tensors);
        using O = operation_of<Op>;
        if constexpr (check_tensor<B, decltype(list)>() && check_reduced<B, decltype(list), Op>()) {
            auto maker = make(collective::allreduce, o);
            const auto function = std::make_shared<const O>(as_operation(op));
            maker.calls->function = function;
            maker.entry().op = std::uint8_t(O::id);
            [&]<class... T>(type_list<T...>) {
                (plan_type<B, T, Codec>(maker, list, *function, o), ...);
            }(fused_types_t<decltype(list)>{});
            return {session(), maker.finish(true, true)};
        } else {
            return {};
        }
    }

    /// Plans `broadcast(tensors, root)`. The root packs small tensors of all types as one, and the
    /// others unpack them.
    template <class X>
    device_plan plan_broadcast(X&& tensors, root r = root{0}, const device_plan_options& o = {}) {
        const auto list = as_list(tensors);
        if constexpr (check_tensor<B, std::remove_cvref_t<decltype(list)>>()) {
            auto maker = make(collective::broadcast, o);
            const device_session& s = *session();
            maker.entry().root = r.rank;
            if (r.rank < 0 || r.rank >= s.size())
                maker.refuse(text("hvd: broadcast: root ", r.rank,
                                  " is not a rank of this communicator of size ", s.size()));
            std::size_t small = 0;
            list.for_each([&](const auto& x) { small += maker.is_small(erase(x)); });
            list.for_each([&](const auto& x) {
                const tensor_ref t = erase(x);
                const bool packed = small > 1 && maker.is_small(t);
                maker.note(t, packed, t.id);
                if (packed) maker.layout.add(t, copy_kind::bytes, copy_kind::bytes, 1, 1);
                else if (t.count > 0) {
                    auto call = call_of<element_of<decltype(x)>>(collective::broadcast);
                    call.entry.root = r.rank;
                    maker.in_place(t, call);
                }
            });
            if (maker.layout.bytes() > 0) {
                auto call = call_of<std::byte>(collective::broadcast);
                call.entry.root = r.rank;
                maker.packed(0, call);
            }
            return {session(), maker.finish(s.rank() == r.rank, s.rank() != r.rank)};
        } else {
            return {};
        }
    }

    /// Plans `allgather(in, into(out))` of tensors that are equal on all ranks.
    template <class In, class View>
    device_plan plan_allgather(const In& in, const into_view<View>& to,
                               const device_plan_options& o = {}) {
        if constexpr (check_device_pair<B, In, View>()) {
            return single(collective::allgather, erase(to_view(in)), o, [&](device_arguments& a) {
                a.tensors(in, to.view);
                a.counts({}, to_view(in).size(), to.view.size());
                a.apart(to_view(in).size(), to.view.size());
            });
        } else {
            return {};
        }
    }

    /// Plans `reduce_scatter(in, op, into(out))` into equal parts.
    template <class In, class Op, class View>
        requires operation_like<Op>
    device_plan plan_reduce_scatter(const In& in, const Op& op, const into_view<View>& to,
                                    const device_plan_options& o = {}) {
        if constexpr (check_device_reduction<B, In, View, Op>()) {
            const auto function = std::make_shared<const operation_of<Op>>(as_operation(op));
            const device_reduce_options scales{.prescale = o.prescale, .postscale = o.postscale};
            const auto describe = [&](device_arguments& a) {
                describe_reduction<B, element_of<In>>(a.call, *function, scales);
                a.tensors(in, to.view);
                a.counts({}, to.view.size(), to_view(in).size());
                a.apart(to_view(in).size(), to.view.size());
            };
            return single(collective::reduce_scatter, erase(to_view(in)), o, describe, function);
        } else {
            return {};
        }
    }

private:
    const auto& session() const {
        return device_access::session_of(static_cast<const Comm&>(*this));
    }

    device_plan_maker make(collective kind, const device_plan_options& o) const {
        session()->refuse_if_broken(name_of(kind));
        return {*session(), kind, o};
    }

    // The other ranks are told of refusals of `describe(arguments)`.
    template <class F>
    device_plan single(collective kind, const tensor_ref& t, const device_plan_options& o,
                       F&& describe, std::shared_ptr<const void> function = {}) const {
        auto maker = make(kind, o);
        device_arguments a(*session(), kind, o.name, o.timeout, true);
        try {
            describe(a);
        } catch (const usage_error& e) {
            maker.refuse(e.what());
        }
        maker.note(t, false, t.id);
        maker.refuse_host_memory("into()", a.call.out, a.call.entry.count);
        maker.entry().op = std::uint8_t(a.call.entry.op);
        maker.calls->function = std::move(function);
        maker.calls->calls.push_back(a.call);
        return {session(), maker.finish(false, false)};
    }
};

}  // namespace hvd::inline v0::detail
