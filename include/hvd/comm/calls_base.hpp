// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call.hpp"
#include "session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// A queued call and the call itself, in one allocation.
template <class B, class Call>
struct queued_call : queued<B> {
    Call call;

    template <class... A>
    explicit queued_call(A&&... arguments) : call(std::forward<A>(arguments)...) {
        this->op = &call.op;
    }
};

// How the files of this folder, each of which adds one collective to `communicator`, reach it.
struct access {
    template <class Comm>
    static auto& session_of(Comm& comm) {
        if (comm.session_ == nullptr)
            throw usage_error(-1, "hvd: this communicator is empty: its rank is not a member of it");
        return *comm.session_;
    }
};

template <class Comm, class Call, class Options>
void run_call(Comm& comm, Call& call, const Options& o) {
    access::session_of(comm).run(call.op, o.deadline);
}

template <class Call, class Comm, class Options, class... A>
request start_call(Comm& comm, const Options& o, A&&... arguments) {
    auto queued = std::make_shared<queued_call<typename Comm::backend_type, Call>>(std::forward<A>(arguments)...);
    access::session_of(comm).start(queued, o.deadline);
    return request(queued);
}

// Whether the backend has a shorter way for plain tensors: one call of its library.
template <class B>
constexpr bool is_direct = [] {
    if constexpr (requires { B::is_direct; }) return bool(B::is_direct);
    else return false;
}();

}  // namespace detail
}  // namespace v0
}  // namespace hvd
