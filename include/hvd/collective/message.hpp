// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/result_types.hpp"

namespace hvd::inline v0::detail {

// The options of a message, with its other rank. A rank that can't prepare the call tells that one.
struct options_to : options {
    int other;
};

template <class View>
struct message_call : call {
    packed_tensor tensor;

    message_call(collective kind, const View& x, const options_to& o) : call(kind, o.name) {
        describe(x);
        op.entry.root = o.other;
        op.entry.compares_names = true;
        if constexpr (is_strided<View>) {
            tensor.tensor = erase(x);
            op.buffer_bytes = x.size() * op.element_bytes;
            op.self = this;
            op.pack = [](void* self, operation& current) {
                packed_tensor::pack_into_buffer(&static_cast<message_call*>(self)->tensor, current);
            };
        } else {
            op.in = op.out = bytes_of(x);
        }
    }
};

/// The members of a communicator for messages between two ranks.
template <class Comm, class B>
class message_calls {
public:
    /// Sends a tensor to a rank that receives it. `hvd::peer{1}` is the other rank.
    ///
    /// **Two ranks** make the calls, with equal element type, shape and name, which they compare
    /// before data moves. The others take no part. Messages and collectives run in the order in
    /// which a rank calls them.
    /// **Buffers**: `x` is read until the call is complete. It is any viewable, also empty.
    /// **Completion**: done on return, which is not before the other rank receives. So two ranks do
    /// not both send first.
    /// **Threads**: one at a time per communicator.
    /// @throws hvd::usage_error for a peer that is no other rank, and for a null pointer;
    /// hvd::mismatch_error on both ranks if they disagree; hvd::peer_error if the other one refuses
    /// the message or is gone, hvd::timeout_error if it does not come in time. After the last two,
    /// and if the other rank makes a collective instead, the communicator is given up.
    /// @snippet tests/docs/snippets.cpp send
    template <class X>
    void send(const X& x, peer to, const options& o = {}) {
        if constexpr (check_messages<const X&>()) run(collective::send, x, to, o);
    }
    /// Begins to send. It is complete when the request is, and `x` stays untouched until then.
    template <class X>
    request send_async(X&& x, peer to, const options& o = {}) {
        if constexpr (check_messages<X, tensor_use::kept>())
            return start(collective::send, x, to, o);
        return {};
    }

    /// Receives a tensor from a rank that sends it: see `send`.
    template <class View>
    void recv(const into_view<View>& x, peer from, const options& o = {}) {
        if constexpr (check_messages<const View&>()) run(collective::recv, x.view, from, o);
    }
    /// Begins to receive.
    template <class View>
    request recv_async(const into_view<View>& x, peer from, const options& o = {}) {
        if constexpr (check_messages<const View&>())
            return start(collective::recv, x.view, from, o);
        return {};
    }

    // A tensor without hvd::into is refused.
    template <bare_output Out, class... A>
    refused_call recv(Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class X, tensor_use Use = tensor_use::read>
    static constexpr bool check_messages() {
        static_assert(!is_direct<B>, "hvd: direct<> has no send and recv: use hvd::mpi");
        return !is_direct<B> && check_unfused<X>() && check_tensor<B, X, Use>();
    }

    template <class X>
    void run(collective kind, const X& x, peer other, const options& o) {
        check_peer(kind, other);
        const options_to all{o, other.rank};
        message_call<view_of<const X&>> call(kind, view_for(self(), kind, all, x), all);
        run_call(self(), call, o);
    }

    template <class X>
    request start(collective kind, X& x, peer other, const options& o) {
        check_peer(kind, other);
        const options_to all{o, other.rank};
        return start_call(self(), kind, all,
                          [&] { return message_call<view_of<X>>(kind, to_view(x), all); });
    }

    // No rank waits for a message whose other rank is none.
    void check_peer(collective kind, peer other) {
        const int rank = own().rank(), size = own().size();
        if (other.rank >= 0 && other.rank < size && other.rank != rank) [[likely]]
            return;
        throw usage_error(
            rank,
            text("hvd: ", name_of(kind), " on rank ", rank, ": peer ", other.rank,
                 other.rank == rank ? text(" is this rank itself")
                                    : text(" is not a rank of this communicator of size ", size)));
    }
};

}  // namespace hvd::inline v0::detail
