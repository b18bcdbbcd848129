// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../comm/serializer.hpp"
#include "../../engine/engine.hpp"
#include "../../protocol/received_headers.hpp"
#include "../calls.hpp"
#include "../gradients/adasum.hpp"
#include "../gradients/flat_allreduce.hpp"
#include "../gradients/gradient_wire.hpp"

namespace hvd::inline v0::detail {

// The agreements of training between the ranks of an engine. All have one name, so that ranks in
// different agreements notice it. A rank that has joined agrees with everything.
class engine_channel {
public:
    explicit engine_channel(shared<engine_core> core) : core_(std::move(core)) {}

    int rank() const { return core_->rank(); }
    int size() const { return core_->size(); }

    table<call_header> exchange_headers(const call_header& mine, time_point) {
        std::vector<std::byte> sent(sizeof mine);
        call_header known;
        std::memset(static_cast<void*>(&known), 0, sizeof known);
        copy_header(known, mine);
        std::memcpy(sent.data(), &known, sizeof known);
        const named_options plain;
        const auto all = named_calls<any_backend>(*core_, "training: agreement", plain)
                             .allgather_async(sent)
                             .wait();
        table<call_header> headers(all.counts.size());
        for (std::size_t r = 0; r < headers.size(); ++r) {
            headers[r] = known;
            headers[r].count = 0;
            if (all.counts[r] == sizeof known)
                std::memcpy(static_cast<void*>(&headers[r]),
                            all.values.data() + all.displacements[r], sizeof known);
        }
        replace_other_bytes(headers);
        return headers;
    }
    void post_refusal(const call_header& mine, time_point limit) { exchange_headers(mine, limit); }

private:
    shared<engine_core> core_;
};

// A tensor that is submitted again and again, as a plan is run.
class named_plan {
public:
    named_plan() = default;
    explicit named_plan(std::function<request()> submit) : submit_(std::move(submit)) {}

    request run_async() { return submit_(); }
    void begin_epoch(std::uint64_t) {}  // ranks compare it at the end of a step

private:
    std::function<request()> submit_;
};

class named_steps;

// The calls that training makes of a communicator, by an engine of any backend. Each has a name.
// Calls of one thread that wait for their results go after all gradients.
class engine_calls {
public:
    using backend_type = any_backend;
    using steps_type = named_steps;

    template <class Backend>
    explicit engine_calls(engine<Backend>& on)
        : core_(engine_access::core_of(on)), channel_(core_) {
        static_assert(!device_backend<Backend>,
                      "hvd: an engine trains tensors of the host: give tensors of a device a "
                      "communicator");
    }

    explicit operator bool() const noexcept { return bool(core_); }
    int rank() const noexcept { return !core_ ? -1 : core_->rank(); }
    int size() const noexcept { return !core_ ? 0 : core_->size(); }
    engine_channel& channel() { return channel_; }
    const shared<step_question>& question() const { return core_->question(); }

    void refuse(std::string_view name, std::string_view why) {
        const named_options plain;
        at(name, plain).refuse(why);
    }

    // Called in a handler: this rank could not prepare a call that its peers make.
    template <class Options>
    [[gnu::cold]] void forfeit_call(const Options& o) {
        refuse(name_of(o), what_of(std::current_exception()));
    }

    // The plans that are made next belong to the tensor with this name. The next forward pass needs
    // those with lower numbers first.
    void begin_plans_of(std::string_view name, std::size_t number) {
        plans_ = name;
        constexpr auto most = std::size_t(std::numeric_limits<int>::max() - 1);
        priority_ = -int(number < most ? number : most);
    }
    // Calls for one tensor, with names of their own.
    engine_calls for_tensor(std::string_view name) const {
        engine_calls own(*this);
        own.calls_ = name;
        return own;
    }

    template <class X, class Op>
    void allreduce(X&& x, const Op& op, const reduce_options& o = {}) {
        if constexpr (std::is_same_v<Op, op::adasum>) {
            adasum_allreduce(*this, x, o);
        } else {
            const named_options how = last();
            at(name_of(o), how).allreduce_async(as_list(x), op, plain(o)).wait();
        }
    }
    template <class X>
    auto allgather(const X& x, const options& o = {}) {
        const named_options how = last();
        return at(name_of(o), how).allgather_async(x, plain(o)).wait();
    }
    template <class X>
    auto alltoall(const X& x, const std::vector<std::size_t>& counts, const options& o = {}) {
        const named_options how = last();
        return at(name_of(o), how).alltoall_async(x, counts, plain(o)).wait();
    }
    template <class X>
    void broadcast(X&& x, root r = root{0}, const options& o = {}) {
        const named_options how = last();
        at(name_of(o), how).broadcast_async(std::forward<X>(x), r, plain(o)).wait();
    }
    template <class T>
    T& broadcast_object(T& object, root r = root{0}, const options& = {}) {
        std::vector<std::byte> bytes;
        run_on_all(channel_, "broadcast_object", never, [&] {
            if (rank() == r.rank) serializer<T>::write(bytes, object);
        });
        std::uint64_t size = bytes.size();
        broadcast(view(&size, 1), r, {.name = "size of an object"});
        bytes.resize(std::size_t(size));
        broadcast(bytes, r, {.name = "object"});
        if (rank() != r.rank) {
            std::span<const std::byte> rest(bytes);
            object = serializer<T>::read(rest);
        }
        return object;
    }

    named_plan plan_gradients(std::span<const flat_tensor> tensors, gradient_op op,
                              const reduce_options& o, const bucket_inputs* inputs = nullptr) {
        std::vector<flat_tensor> list(tensors.begin(), tensors.end());
        return named_plan(
            [own = *this, list = std::move(list), op, how = first(), o = plain(o), inputs] {
                auto named = own.at(own.plans_, how);
                return start_call(named, collective::allreduce, o,
                                  [&] { return flat_allreduce(list, op, o, inputs); });
            });
    }
    template <class X, class Op, class View>
    named_plan plan_reduce_scatter(X&& x, const Op& op, const into_view<View>& out,
                                   const reduce_options& o) {
        return named_plan([own = *this, in = to_view(x), out, op, how = first(), o = plain(o)] {
            return own.at(own.plans_, how).reduce_scatter_async(in, op, out, o);
        });
    }
    template <class X, class View>
    named_plan plan_allgather(X&& x, const into_view<View>& out, const options& o) {
        engine_calls named = *this;
        (named.plans_ += ": ") += o.name;
        return named_plan([own = named, in = to_view(x), out, how = first(), o = plain(o)] {
            return own.at(own.plans_, how).allgather_async(in, out, o);
        });
    }

private:
    // The name outlives the call.
    named_calls<any_backend> at(std::string_view name, const named_options& how) const {
        return {*core_, name, how};
    }
    template <class Options>
    std::string name_of(const Options& o) const {
        return (calls_ + ": ").append(o.name.empty() ? "call" : o.name);
    }
    named_options first() const { return {.priority = priority_}; }
    static named_options last() { return {.priority = std::numeric_limits<int>::min()}; }
    // Names are those of the tensors.
    static reduce_options plain(const reduce_options& o) {
        return {.prescale = o.prescale, .postscale = o.postscale, .timeout = o.timeout};
    }
    static options plain(const options& o) { return {.timeout = o.timeout}; }

    shared<engine_core> core_;
    engine_channel channel_;
    std::string plans_, calls_ = "training";
    int priority_ = 0;
};

template <class Engine>
    requires is_engine<Engine>
struct training_calls<Engine> {
    using type = engine_calls;
};

// **Collective** if this rank refuses: the calls know no backend.
template <class Backend>
void check_wire(engine_calls& calls, gradient_codec codec) {
    if (!reduces_wire_of<Backend>(codec)) refuse_call(calls, no_wire_text);
}

}  // namespace hvd::inline v0::detail
