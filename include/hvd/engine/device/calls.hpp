// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "../../device/arguments.hpp"
#include "../../device/combined/per_operation.hpp"
#include "../named_calls.hpp"
#include "options.hpp"
#include "request.hpp"
#include "runner.hpp"

namespace hvd::inline v0::detail {

// True for a view of device memory, and for a fused list of such.
template <class X>
constexpr bool on_device = [] {
    if constexpr (is_viewable<X>) return std::is_same_v<typename view_of<X>::space, device>;
    else return false;
}();
template <class... Parts>
constexpr bool on_device<fused<Parts...>> =
    (std::is_same_v<typename part_view<Parts>::type::space, device> && ...);

template <class X>
concept device_tensor = on_device<std::remove_cvref_t<X>>;

// The backend of each kind of collective.
template <class D>
struct policies_of {
    using reducing = D;
    using gathering = D;
    using broadcasting = D;
};

template <class Allreduce, class Allgather, class Broadcast>
struct policies_of<per_operation<Allreduce, Allgather, Broadcast>> {
    static_assert(device_backend<Allgather> && device_backend<Broadcast>,
                  "hvd: an engine takes a per_operation<…> of backends for devices only");
    using reducing = typename policies_of<Allreduce>::reducing;
    using gathering = typename policies_of<Allgather>::gathering;
    using broadcasting = typename policies_of<Broadcast>::broadcasting;
};

// The device tensors that a rank submits to an engine. It lives for one call.
template <class D>
class named_device_calls {
    using reducing = typename policies_of<D>::reducing;
    using gathering = typename policies_of<D>::gathering;
    using broadcasting = typename policies_of<D>::broadcasting;

public:
    named_device_calls(engine_core& core, device_runner& runner, std::string_view name,
                       const named_device_options& options)
        : core_(core),
          devices_(runner.devices()),
          watch_(runner.watch()),
          name_(name),
          options_(options) {
        refuse_wrong_name(core.rank(), name);
    }

    template <class X, class Op>
    named_device_request allreduce(X& x, const Op& op) {
        if constexpr (check_tensor<reducing, X&, tensor_use::written>() &&
                      check_reduced<reducing, X&, Op>()) {
            const auto list = as_list(x);
            return submit(collective::allreduce, [&](device_tensor_call& call) {
                const auto function = keep(call, op);
                list.for_each([&](const auto& t) { reduce(call, t, t, *function); });
                learn(call);
                return describe_list(call, list);
            });
        } else {
            return {};
        }
    }
    template <class In, class Out, class Op>
    named_device_request allreduce(const In& in, Out& out, const Op& op) {
        if constexpr (check_device_reduction<reducing, In, Out&, Op>()) {
            return submit(collective::allreduce, [&](device_tensor_call& call) {
                const auto function = keep(call, op);
                reduce(call, to_view(in), to_view(out), *function);
                learn(call);
                return describe(call, to_view(in));
            });
        } else {
            return {};
        }
    }

    template <class In, class View, class Op>
    named_device_request reduce_scatter(const In& in, const Op& op, const into_view<View>& to) {
        if constexpr (check_device_reduction<reducing, In, View, Op>()) {
            return submit(collective::reduce_scatter, [&](device_tensor_call& call) {
                const auto function = keep(call, op);
                auto a = begin<reducing>(collective::reduce_scatter, in, to.view);
                describe_reduction<reducing, element_of<In>>(a.call, *function, scales());
                const std::size_t all = to_view(in).size();
                const auto size = std::size_t(core_.size());
                for (int p = 0; all % size != 0 && p < core_.size(); ++p)
                    call.sent.push_back(even_part(all, p + 1, core_.size()) -
                                        even_part(all, p, core_.size()));
                a.require(all % size == 0 ? all / size : call.sent[std::size_t(core_.rank())],
                          to.view.size(), "into()");
                a.counts(call.sent, to.view.size(), all);
                a.apart(all, to.view.size());
                add(call, a);
                return describe(call, to_view(in));
            });
        } else {
            return {};
        }
    }

    template <class X>
    named_device_request broadcast(X& x, root r) {
        if constexpr (check_tensor<broadcasting, X&, tensor_use::written>()) {
            const auto list = as_list(x);
            return submit(collective::broadcast, [&](device_tensor_call& call) {
                list.for_each([&](const auto& t) {
                    auto a = begin<broadcasting>(collective::broadcast, t, t);
                    a.root(r.rank);
                    a.call.entry.count = t.size();
                    add(call, a);
                });
                return describe_list(call, list);
            });
        } else {
            return {};
        }
    }

    template <class In, class View>
    named_device_request allgather(const In& in, const into_view<View>& to) {
        if constexpr (check_device_pair<gathering, In, View>()) {
            return submit(collective::allgather, [&](device_tensor_call& call) {
                gather(call, collective::allgather, in, to.view);
                return describe(call, to_view(in));
            });
        } else {
            return {};
        }
    }

    template <class In, class Counts, class View>
    named_device_request alltoall(const In& in, const Counts& counts, const into_view<View>& to) {
        if constexpr (check_device_pair<gathering, In, View>()) {
            return submit(collective::alltoall, [&](device_tensor_call& call) {
                std::size_t all = 0;
                for (const auto n : counts) all += call.sent.emplace_back(std::size_t(n));
                auto a = begin<gathering>(collective::alltoall, in, to.view);
                a.require(std::size_t(core_.size()), call.sent.size(), "the counts");
                a.require(all, to_view(in).size(), "the input");
                gather(call, collective::alltoall, in, to.view);
                return describe(call, to_view(in));
            });
        } else {
            return {};
        }
    }

private:
    device_session& session_for(collective kind) const { return *devices_.session_for(kind); }

    device_reduce_options scales() const {
        return {.prescale = options_.prescale, .postscale = options_.postscale};
    }

    // ---- what a call does -----------------------------------------------------------------------

    // The peers learn of what is refused here.
    template <class B, class In, class Out>
    device_arguments begin(collective kind, const In& in, const Out& out) const {
        static_assert(!is_strided<view_of<const In&>> && !is_strided<view_of<const Out&>>,
                      "hvd: tensors of a device are moved without gaps");
        device_arguments a(session_for(kind), kind, {}, options_.timeout, true);
        a.tensors(in, out);
        return a;
    }

    template <class Op>
    static std::shared_ptr<const operation_of<Op>> keep(device_tensor_call& call, const Op& op) {
        const auto function = std::make_shared<const operation_of<Op>>(as_operation(op));
        call.function = function;
        return function;
    }

    template <class In, class Out, class Op>
    void reduce(device_tensor_call& call, const In& in, const Out& out, const Op& function) const {
        auto a = begin<reducing>(collective::allreduce, in, out);
        describe_reduction<reducing, element_of<const In&>>(a.call, function, scales());
        a.call.entry.count = in.size();
        a.require(in.size(), out.size(), "the output");
        a.apart(in.size(), in.size());
        add(call, a);
    }

    // The counts are known when all ranks have submitted the tensor.
    template <class In, class Out>
    void gather(device_tensor_call& call, collective kind, const In& in, const Out& out) const {
        auto a = begin<gathering>(kind, in, out);
        a.call.entry.count = to_view(in).size();
        call.room = out.size();
        const std::size_t each = a.call.element_bytes;
        const auto from = reinterpret_cast<std::uintptr_t>(a.call.in),
                   to = reinterpret_cast<std::uintptr_t>(a.call.out);
        if (from < to + out.size() * each && to < from + to_view(in).size() * each)
            throw usage_error(core_.rank(), text("hvd: ", name_of(kind), " on rank ", core_.rank(),
                                                 ": the input and into() overlap: they must be "
                                                 "apart in an engine"));
        add(call, a);
    }

    void add(device_tensor_call& call, const device_arguments& a) const {
        const collective_call& c = a.call;
        const device_session& session = session_for(c.entry.kind);
        if (c.entry.refused) throw usage_error(core_.rank(), c.entry.text);
        session.check(c, a.label().c_str());
        if (c.entry.kind == collective::alltoall || c.entry.kind == collective::allgather) {
            refuse_host_memory("the input", c.in, c.entry.count, a.label().c_str());
            refuse_host_memory("into()", c.out, call.room, a.label().c_str());
        } else if (const message why =
                       reason_to_refuse(c, session.rank(), session.size(), session.device());
                   !why.empty()) {
            refuse_memory(a.label().c_str(), why);
        }
        call.calls.push_back(c);
    }
    void refuse_host_memory(const char* which, const void* data, std::size_t count,
                            const char* label) const {
        const device_session& session = *devices_.gathering;
        const message why = reason_to_refuse(which, data, count, session.rank(), session.device());
        if (!why.empty()) refuse_memory(label, why);
    }
    [[noreturn]] void refuse_memory(const char* label, const message& why) const {
        throw usage_error(core_.rank(), text("hvd: ", label, " on rank ", core_.rank(), ": ", why));
    }

    // A rank that reduces on the host may be asked for such a reduction after it has joined.
    void learn(device_tensor_call& call) const {
        if (!devices_.reduces_on_host || call.calls.empty()) return;
        const collective_call& c = call.calls.front();
        for (const collective_call& other : call.calls)
            if (other.entry.id != c.entry.id) return;
        call.group = {c.reduce, c.callable, c.element_bytes, 0, 0, nullptr, c.entry.id, false};
        call.described.groups = &call.group;
        call.described.group_count = 1;
        call.described.fallible = c.fallible;
    }

    // ---- its signature --------------------------------------------------------------------------

    static signature signature_of(const device_tensor_call& call) {
        signature mine;
        if (!call.calls.empty()) copy_header(mine.call, call.calls.front().entry);
        mine.call.refused = false;
        mine.call.name[0] = mine.call.text[0] = 0;
        mine.where = tensor_memory::device;
        return mine;
    }
    template <class View>
    static signature describe(const device_tensor_call& call, const View& view) {
        signature mine = signature_of(call);
        const tensor_ref t = erase(view);
        describe_single(mine.call, t);
        mine.bytes = t.bytes();
        mine.fuses = mine.call.kind == collective::allreduce && !call.calls.front().fallible;
        return mine;
    }
    template <class List>
    static signature describe_list(const device_tensor_call& call, const List& list) {
        if (call.calls.size() == 1) {
            signature mine{};
            list.for_each([&](const auto& view) { mine = describe(call, view); });
            return mine;
        }
        signature mine = signature_of(call);
        hash content;
        bool fuses = !call.calls.empty() && mine.call.kind == collective::allreduce;
        list.for_each([&](const auto& view) {
            const tensor_ref t = erase(view);
            content.add(t);
            mine.bytes += t.bytes();
            fuses = fuses && t.id == call.calls.front().entry.id;
        });
        for (const collective_call& c : call.calls) fuses = fuses && !c.fallible;
        mine.fuses = fuses;
        mine.call.fused = true;
        mine.call.count = mine.bytes;
        mine.call.content = content.value();
        return mine;
    }

    // ---- its submission -------------------------------------------------------------------------

    // `describe` fills the call and returns its signature. It may throw.
    template <class F>
    named_device_request submit(collective kind, F&& describe) {
        shared<device_tensor_call> call;
        core_.or_refuse(name_, [&] { call = shared<device_tensor_call>::make(); });
        call->timeout = options_.timeout;
        if (options_.timeout.is_time()) call->due = limit_of(options_.timeout);
        signature mine;
        mine.where = tensor_memory::device;
        mine.call.kind = kind;
        std::exception_ptr failure;
        try {
            mine = describe(*call);
            mark(*call);
        } catch (...) {
            failure = std::current_exception();
        }
        mine.priority = options_.priority;
        copy_header(call->described.entry, mine.call);
        store(call->described.entry.name, name_);
        core_.throw_unseen_instead_of(name_, mine);
        if (failure) refuse(mine, failure);
        core_.or_refuse(name_, [&] { hand_in(call, mine); });
        return named_device_request(call);
    }

    // The watch calls back when the work is done.
    static std::function<void(std::exception_ptr)> call_back_on_failure(device_tensor_call& call) {
        if (!call.then) return {};
        return [made = &call](std::exception_ptr why) {
            if (why) made->then(std::move(why));
        };
    }

    void hand_in(const shared<device_tensor_call>& call, const signature& mine) {
        call->watch = &watch_;
        call->bytes = std::size_t(mine.bytes);
        call->then = options_.then;
        if (core_.tells_of_work()) call->observed_name = name_;
        core_.adopt(*call);
        try {
            if (call->then || !call->observed_name.empty()) watch_.begin(*call);
            core_.submit(
                name_, call, mine, call_back_on_failure(*call), [](queued&) {},
                [](queued& done, bool has_failed) {
                    auto& made = static_cast<device_tensor_call&>(done);
                    made.watch->on_done(made, has_failed);
                });
        } catch (...) {
            watch_.forget(*call);
            throw;
        }
    }

    [[noreturn]] void refuse(const signature& mine, const std::exception_ptr& failure) {
        try {
            core_.submit_refusal(name_, mine, what_of(failure));
        } catch (const usage_error&) {
            try {
                std::rethrow_exception(failure);
            } catch (const usage_error&) {
            }
            throw;  // with the name of the tensor
        }
    }

    // Notes where the user's stream is.
    void mark(device_tensor_call& call) const {
        const device_session& session =
            session_for(call.calls.empty() ? collective::allreduce : call.calls.front().entry.kind);
        const int rank = session.rank();
        const current_device here(session.device(), rank);
        if (options_.stream.given()) {
            if (is_capturing(options_.stream.get(), rank))
                throw usage_error(rank, text("hvd: rank ", rank,
                                             ": its stream is being captured into a graph, which "
                                             "takes no tensors of an engine"));
            call.point = cuda_event(options_.stream.get(), rank);
            return;
        }
        for (const cudaStream_t other : {cudaStreamLegacy, cudaStreamPerThread})
            if (can_be_followed(other, rank)) {
                call.point = cuda_event(other, rank);
                return;
            }
    }

    engine_core& core_;
    const engine_devices& devices_;
    work_watch& watch_;
    std::string_view name_;
    const named_device_options& options_;
};

}  // namespace hvd::inline v0::detail
