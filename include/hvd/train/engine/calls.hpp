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

namespace hvd {
inline namespace v0 {
namespace detail {

// The agreements of training between the ranks of an engine. All have one name, so that ranks in
// different agreements notice it. A rank that has joined agrees with everything.
template <class Backend>
class engine_channel {
public:
    explicit engine_channel(engine<Backend>& on) : engine_(on) {}

    int rank() const { return engine_.rank(); }
    int size() const { return engine_.size(); }

    table<call_header> exchange_headers(const call_header& mine, time_point) {
        std::vector<std::byte> sent(sizeof mine);
        call_header known;
        std::memset(static_cast<void*>(&known), 0, sizeof known);
        copy_header(known, mine);
        std::memcpy(sent.data(), &known, sizeof known);
        const auto all = engine_.allgather("training: agreement", sent).wait();
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
    engine<Backend>& engine_;
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

// The calls that training makes of a communicator, by an engine. Each has a name. Calls of one
// thread that wait for their results go after all gradients.
template <class Backend>
class engine_calls {
    static_assert(!device_backend<Backend>,
                  "hvd: an engine trains tensors of the host: give tensors of a device a "
                  "communicator");

public:
    using backend_type = Backend;

    explicit engine_calls(engine<Backend>& on) : engine_(on), channel_(on) {}

    explicit operator bool() const noexcept { return bool(engine_); }
    int rank() const noexcept { return engine_.rank(); }
    int size() const noexcept { return engine_.size(); }
    engine_channel<Backend>& channel() { return channel_; }

    void refuse(std::string_view name, std::string_view why) { engine_.refuse(name, why); }

    // The plans that are made next belong to the tensor with this name. The next forward pass needs
    // those with lower numbers first.
    void begin_plans_of(std::string_view name, std::size_t number) {
        plans_ = name;
        constexpr auto most = std::size_t(std::numeric_limits<int>::max() - 1);
        priority_ = -int(number < most ? number : most);
    }
    // Calls for one tensor, with names of their own.
    engine_calls for_tensor(std::string_view name) const {
        engine_calls own(engine_);
        own.calls_ = name;
        return own;
    }

    template <class X, class Op>
    void allreduce(X&& x, const Op& op, const reduce_options& o = {}) {
        if constexpr (std::is_same_v<Op, op::adasum>) adasum_allreduce(*this, x, o);
        else engine_.allreduce(name_of(o), x, op, last(o)).wait();
    }
    template <class X>
    auto allgather(const X& x, const options& o = {}) {
        return engine_.allgather(name_of(o), x, last(o)).wait();
    }
    template <class X>
    auto alltoall(const X& x, const std::vector<std::size_t>& counts, const options& o = {}) {
        return engine_.alltoall(name_of(o), x, counts, last(o)).wait();
    }
    template <class X>
    void broadcast(X&& x, root r = root{0}, const options& o = {}) {
        engine_.broadcast(name_of(o), x, r, last(o)).wait();
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

    template <class X, class Op>
    named_plan plan_allreduce(X&& x, const Op& op, const reduce_options& o) {
        return named_plan([to = &engine_, name = plans_, list = as_list(x), op, how = first(o)] {
            return to->allreduce(name, list, op, how);
        });
    }
    template <class X, class Op, class View>
    named_plan plan_reduce_scatter(X&& x, const Op& op, const into_view<View>& out,
                                   const reduce_options& o) {
        return named_plan([to = &engine_, name = plans_, in = to_view(x), out, op, how = first(o)] {
            return to->reduce_scatter(name, in, op, out, how);
        });
    }
    template <class X, class View>
    named_plan plan_allgather(X&& x, const into_view<View>& out, const options& o) {
        const reduce_options plain{.deadline = o.deadline};
        std::string name = plans_ + ": ";
        name += o.name;
        return named_plan([to = &engine_, name, in = to_view(x), out, how = first(plain)] {
            return to->allgather(name, in, out, how);
        });
    }

private:
    template <class Options>
    std::string name_of(const Options& o) const {
        return (calls_ + ": ").append(o.name.empty() ? "call" : o.name);
    }
    named_options first(const reduce_options& o) const {
        return {.prescale = o.prescale,
                .postscale = o.postscale,
                .priority = priority_,
                .deadline = o.deadline};
    }
    static named_options last(const reduce_options& o) {
        return {.prescale = o.prescale,
                .postscale = o.postscale,
                .priority = std::numeric_limits<int>::min(),
                .deadline = o.deadline};
    }
    static named_options last(const options& o) {
        return last(reduce_options{.deadline = o.deadline});
    }

    engine<Backend>& engine_;
    engine_channel<Backend> channel_;
    std::string plans_, calls_ = "training";
    int priority_ = 0;
};

template <class Engine>
    requires is_engine<Engine>
struct training_calls<Engine> {
    using type = engine_calls<typename Engine::backend_type>;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
