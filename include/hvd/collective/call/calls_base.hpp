// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../execution/backend_session.hpp"
#include "../../execution/request.hpp"
#include "call.hpp"

namespace hvd::inline v0::detail {

// A queued call with the call itself, in one allocation.
template <class Call>
struct queued_call : queued {
    Call call;

    template <class Make>
    explicit queued_call(Make& make) : call(make()) {
        op = &call.op;
    }
};

// A queued call with the call and its result.
template <class Value, class Call>
struct queued_call_for : queued_value<Value> {
    Call call;

    template <class Make>
    explicit queued_call_for(Make& make) : call(make(this->value)) {
        this->op = &call.op;
    }
};

// Gives the files of this folder access to a communicator. Each of them adds one collective to it.
struct access {
    template <class Comm>
    static session& session_of(Comm& comm) {
        if (!comm.session_) [[unlikely]]
            throw_empty();
        return *comm.session_;
    }

    template <class Comm>
    static void run(Comm& comm, operation& op, time_limit timeout) {
        session* const own = comm.session_.get();
        if (own == nullptr) [[unlikely]]
            throw_empty();
        own->run(*own, op, timeout);
    }

    template <class Comm>
    static auto& backend_of(Comm& comm) {
        return static_cast<backend_session<typename Comm::backend_type>&>(session_of(comm));
    }

    template <class Comm>
    static auto& endpoint_of(Comm& comm) {
        return backend_of(comm).endpoint();
    }

    // The ranks of a communicator in the one that it was made of.
    template <class Comm>
    static void set_parents(Comm& comm, std::vector<int> ranks) noexcept {
        comm.parents_ = std::move(ranks);
    }

    // Ends a communicator that was not made on all ranks.
    template <class Comm>
    static void discard(Comm& comm) noexcept {
        comm.discard();
    }

    // The endpoint, held for a blocking call that it makes itself. The earlier calls are completed
    // first.
    template <class Session>
    class held_endpoint {
    public:
        [[gnu::always_inline]] held_endpoint(Session& own, collective kind, time_limit timeout)
            : own_(own), use_(own.user(), name_of(kind)) {
            if (timeout.is_time()) [[unlikely]]
                own_.throw_no_timeout(name_of(kind));
            own_.precede(kind);
        }
        // Out of line, it would need both members in memory.
        [[gnu::always_inline]] ~held_endpoint() = default;
        [[gnu::always_inline]] auto* operator->() const { return &own_.endpoint(); }

    private:
        Session& own_;
        session_use use_;
    };

    template <class Comm>
    static auto direct_endpoint_of(Comm& comm, collective kind, time_limit timeout) {
        return held_endpoint<std::remove_reference_t<decltype(backend_of(comm))>>(backend_of(comm),
                                                                                  kind, timeout);
    }

    // Holds the communicator for a call that is prepared in its memory.
    template <class Comm>
    static session_scope hold(Comm& comm, collective kind) {
        return {session_of(comm).user(), name_of(kind)};
    }

    [[gnu::cold, noreturn]] static void throw_empty() {
        throw usage_error(-1, "hvd: this communicator is empty: its rank is not a member of it");
    }
};

template <class Comm, class Call, class Options>
void run_call(Comm& comm, Call& call, const Options& o) {
    access::run(comm, call.op, o.timeout);
}

// The same for a broadcast, scatter, gather or reduce that blocks: a rank may leave it.
template <class Comm, class Call, class Options>
void run_rooted(Comm& comm, Call& call, const Options& o) {
    call.op.may_leave = !o.confirm && !access::session_of(comm).options().confirm;
    run_call(comm, call, o);
}

// Runs the call that `make` gives. It is made where nobody else uses the communicator, whose memory
// it may take.
template <class Comm, class Options, class Make>
void run_made(Comm& comm, collective kind, const Options& o, Make make) {
    const auto held = access::hold(comm, kind);
    auto call = prepare(access::session_of(comm), kind, o, make);
    if constexpr (requires { o.confirm; })
        if (kind == collective::scatter) return run_rooted(comm, call, o);
    run_call(comm, call, o);
}

// Returns the view of a blocking call's argument. Traits of the user's may throw: then the call is
// forfeited.
template <class Comm, class Options, class X>
auto view_for(Comm& comm, collective kind, const Options& o, X& x) {
    if constexpr (has_view_traits<X>)
        return prepare(access::session_of(comm), kind, o, [&] { return to_view(x); });
    else return to_view(x);
}

// Runs the blocking call that `make` gives, which copies an operation. Captures of a callable may
// need memory: then the call is forfeited where there is none.
template <class Operation, class Comm, class Options, class Make>
void run_copying(Comm& comm, collective kind, const Options& o, Make make) {
    const auto run = [&](auto& call) {
        if (kind == collective::reduce) run_rooted(comm, call, o);
        else run_call(comm, call, o);
    };
    if constexpr (std::is_nothrow_copy_constructible_v<Operation>) {
        auto call = make();
        run(call);
    } else {
        const auto held = access::hold(comm, kind);
        auto call = prepare(access::session_of(comm), kind, o, make);
        run(call);
    }
}

// Begins the call in the communicator's queue.
template <class Queued, class Comm, class Options, class Make>
shared<Queued> start_now(Comm& comm, collective kind, const Options& o, Make& make) {
    session& own = access::session_of(comm);
    const auto held = access::hold(comm, kind);
    const auto queued = prepare(own, kind, o, [&] {
        progress::of(own);
        return shared<Queued>::make(make);
    });
    progress::submit(own, queued, o.timeout);
    return queued;
}

// Begins the call that a queue entry of type Queued makes with `make`.
template <class Queued, class Comm, class Options, class Make>
shared<Queued> start_queued(Comm& comm, collective kind, const Options& o, Make& make) {
    // An engine does not run the call now: it keeps the call under its name.
    if constexpr (requires { comm.template keep<Queued>(o, make); })
        return comm.template keep<Queued>(o, make);
    else return start_now<Queued>(comm, kind, o, make);
}

// Begins the call that `make()` gives.
template <class Comm, class Options, class Make>
request start_call(Comm& comm, collective kind, const Options& o, Make make) {
    return request(start_queued<queued_call<decltype(make())>>(comm, kind, o, make));
}

// Begins the call that `make(value)` gives, whose result is the value.
template <class Value, class Comm, class Options, class Make>
result<Value> start_call_for(Comm& comm, collective kind, const Options& o, Make make) {
    using Call = decltype(make(std::declval<Value&>()));
    return result<Value>(start_queued<queued_call_for<Value, Call>>(comm, kind, o, make));
}

}  // namespace hvd::inline v0::detail
