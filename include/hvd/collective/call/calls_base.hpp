// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../execution/backend_session.hpp"
#include "../../execution/request.hpp"
#include "call.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A queued call with the call itself, in one allocation.
template <class Call>
struct queued_call : queued {
    Call call;

    template <class... A>
    explicit queued_call(A&&... arguments) : call(std::forward<A>(arguments)...) {
        op = &call.op;
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
    static void run(Comm& comm, operation& op, time_span deadline) {
        session* const own = comm.session_.get();
        if (own == nullptr) [[unlikely]]
            throw_empty();
        own->run(*own, op, deadline);
    }

    template <class Comm>
    static auto& backend_of(Comm& comm) {
        return static_cast<backend_session<typename Comm::backend_type>&>(session_of(comm));
    }

    template <class Comm>
    static auto& endpoint_of(Comm& comm) {
        return backend_of(comm).endpoint();
    }

    // Returns the endpoint for a blocking call that it makes itself. The earlier calls are
    // completed first.
    template <class Comm>
    static auto& direct_endpoint_of(Comm& comm, collective kind) {
        auto& own = backend_of(comm);
        own.precede(kind);
        return own.endpoint();
    }

    [[gnu::cold, noreturn]] static void throw_empty() {
        throw usage_error(-1, "hvd: this communicator is empty: its rank is not a member of it");
    }
};

template <class Comm, class Call, class Options>
void run_call(Comm& comm, Call& call, const Options& o) {
    access::run(comm, call.op, o.deadline);
}

template <class Call, class Comm, class Options, class... A>
request start_call(Comm& comm, const Options& o, A&&... arguments) {
    auto queued = shared<queued_call<Call>>::make(std::forward<A>(arguments)...);
    progress::of(access::session_of(comm)).start(queued, o.deadline);
    return request(queued);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
