// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>

#include "../collective/call/call.hpp"
#include "../collective/call/calls_base.hpp"
#include "../collective/call/result_types.hpp"
#include "../comm/topology.hpp"
#include "call.hpp"
#include "options.hpp"
#include "request.hpp"

namespace hvd::inline v0::detail {

// Gives the files that add collectives of device tensors access to a communicator.
struct device_access {
    // The session of a combination is that of its reductions.
    template <class Comm>
        requires requires(const Comm& comm) { comm.reducing_part(); }
    static const auto& session_of(const Comm& comm) {
        return session_of(comm.reducing_part());
    }
    template <class Comm>
    static const auto& session_of(const Comm& comm) {
        if (comm.session_ == nullptr) [[unlikely]]
            access::throw_empty();
        return comm.session_;
    }
    // The session of gathers, and that of broadcasts.
    template <class Comm>
    static const auto& gathering_session_of(const Comm& comm) {
        if constexpr (requires { comm.gathering_part(); })
            return gathering_session_of(comm.gathering_part());
        else return session_of(comm);
    }
    template <class Comm>
    static const auto& broadcasting_session_of(const Comm& comm) {
        if constexpr (requires { comm.broadcasting_part(); })
            return broadcasting_session_of(comm.broadcasting_part());
        else return session_of(comm);
    }
    // Calls f for the sessions of reductions and gathers, which may be one.
    template <class Comm, class F>
    static void for_each_session(const Comm& comm, F f) {
        if constexpr (requires { comm.gathering_part(); }) {
            for_each_session(comm.reducing_part(), f);
            for_each_session(comm.gathering_part(), f);
        } else {
            f(*session_of(comm));
        }
    }

    // Makes later work of the stream wait for a call, whose request stays as it is.
    static void follow(const device_request& call, device_stream stream) {
        if (call.session_) call.session_->follow(call.done_, stream, call.label_);
    }

    template <class Comm, class Session>
    static Comm made_of(std::shared_ptr<Session> session, topology place) {
        Comm comm;
        comm.session_ = std::move(session);
        comm.topology_ = std::move(place);
        return comm;
    }
};

template <class B, class In, class Out>
constexpr bool check_device_pair() {
    if constexpr (check_tensor<B, In>() && check_tensor<B, Out&, tensor_use::written>()) {
        static_assert(!is_strided<view_of<In>> && !is_strided<view_of<Out&>>,
                      "hvd: tensors of a device are moved without gaps");
        static_assert(std::is_same_v<element_of<In>, element_of<Out&>>,
                      "hvd: input and output have different element types");
        return true;
    } else {
        return false;
    }
}

template <class B, class In, class Out, class Op>
constexpr bool check_device_reduction() {
    if constexpr (check_device_pair<B, In, Out>()) return check_reduced<B, In, Op>();
    else return false;
}

template <class B>
concept reduces_on_host = requires { typename B::host_policy; };

// Sets how elements of type T are reduced. `op` outlives the call.
template <class B, class T, class Op>
void describe_reduction(collective_call& call, const Op& op, const device_reduce_options& o) {
    describe_operation(call, op, o.prescale, o.postscale);
    if constexpr (reduces_on_host<B>) {
        if constexpr (!holds_fractions<T, Op>) refuse_scales<T>(call);
        call.reduce = &reduce_elements<T, Op>;
    }
}

// Makes the calls of one rank. It refuses errors that the rank can see, before anything is
// enqueued.
class device_arguments {
public:
    device_arguments(device_session& session, collective kind, std::string_view name,
                     time_limit timeout, bool of_plan = false)
        : session_(session),
          timeout_(timeout),
          of_plan_(of_plan),
          named_(name_of(kind), name),
          label_(named_.c_str()),
          rank_(session.rank()),
          size_(std::size_t(session.size())),
          exchanges_in_place_(session.exchanges_in_place()) {
        call.entry.kind = kind;
        store(call.entry.name, name);
        if (timeout.is_wrong()) [[unlikely]]
            refuse(
                text("hvd: ", label_, " on rank ", rank_, ": ", wrong_limit("timeout", timeout)));
    }

    template <class In, class Out>
    void tensors(const In& in, const Out& out) {
        const auto from = to_view(in);
        const auto to = to_view(out);
        describe_elements<element_of<In>>(call);
        call.in = detail::bytes_of(from);
        call.out = detail::bytes_of(to);
        if ((call.in == nullptr && from.size() > 0) || (call.out == nullptr && to.size() > 0))
            [[unlikely]]
            refuse(text("hvd: ", label_, " on rank ", rank_, ": null pointer with ",
                        from.size() + to.size(), " elements"));
    }

    void require(std::size_t wanted, std::size_t given, const char* what) const {
        if (wanted != given) [[unlikely]]
            refuse(text("hvd: ", label_, " on rank ", rank_, ": ", what, " has ", given,
                        " elements, expected ", wanted));
    }

    // Checks that input and output of this rank do not overlap, unless they are in place. Counts
    // and root are known.
    void apart(std::size_t in, std::size_t out) const {
        const bool of_root = call.entry.kind == collective::reduce ||
                             call.entry.kind == collective::gather ||
                             call.entry.kind == collective::scatter;
        if (in == 0 || out == 0 || (of_root && !is_root()) || is_in_place()) return;
        const auto a = reinterpret_cast<std::uintptr_t>(call.in),
                   b = reinterpret_cast<std::uintptr_t>(call.out);
        if (a < b + out * call.element_bytes && b < a + in * call.element_bytes) [[unlikely]]
            refuse(text("hvd: ", label_, " on rank ", rank_, ": input of ", in,
                        " elements and output of ", out, " elements overlap", must()));
    }

    void root(int r) {
        call.entry.root = r;
        if (r < 0 || std::size_t(r) >= size_) [[unlikely]]
            refuse(text("hvd: ", label_, " on rank ", rank_, ": root ", r,
                        " is not a rank of this communicator of size ", size_));
    }
    bool is_root() const { return call.entry.root == rank_; }

    // Sets the counts: `mine` elements of this rank, and `all` of all ranks if this rank has those
    // (`with_all`).
    void counts(std::span<const std::size_t> counts, std::size_t mine, std::size_t all,
                bool with_all = true) {
        call.counts = counts;
        call.entry.count = mine;
        if (!counts.empty()) {
            require(size_, counts.size(), ".counts");
            require(counts[std::size_t(rank_)], mine, "this rank's tensor");
        }
        if (with_all) require(call.total(int(size_)), all, "the tensor of all ranks");
    }

    // Sets the counts of an alltoall.
    void exchange(std::span<const std::size_t> send, std::span<const std::size_t> receive,
                  std::size_t in, std::size_t out) {
        if (send.empty() && receive.empty()) {
            require(in, out, "into()");
            if (in % size_ != 0) [[unlikely]]
                refuse(text("hvd: ", label_, " on rank ", rank_, ": ", in,
                            " elements can't be split evenly over ", size_, " ranks"));
            call.entry.count = in / size_;
            return;
        }
        require(size_, send.size(), ".counts");
        require(size_, receive.size(), ".receive_counts");
        call.counts = send;
        call.receive_counts = receive;
        const std::size_t own = std::size_t(rank_);
        if (send[own] != receive[own]) [[unlikely]]
            refuse(text("hvd: ", label_, " on rank ", rank_, ": rank ", rank_, " sends ", send[own],
                        " to itself by .counts, expects ", receive[own], " by .receive_counts"));
        require(call.total(int(size_)), in, "the input");
        require(call.total_received(int(size_)), out, "into()");
    }

    const call_label& label() const { return named_; }

    collective_call call;

private:
    // The peers of a plan are told when they agree on it.
    [[gnu::cold, noreturn]] void refuse(const message& why) const {
        if (!of_plan_) post_refusal(session_, call.entry.kind, why, session_.limit_for(timeout_));
        throw usage_error(rank_, why);
    }

    // In-place calls are those that NCCL supports: a rank's own part is at its place in the whole.
    // In an alltoall each received part is at the place of the part that was sent.
    bool is_in_place() const {
        const std::size_t before = call.total(rank_) * call.element_bytes;
        switch (call.entry.kind) {
            case collective::allgather:
            case collective::gather: return call.in == call.out + before;
            case collective::reduce_scatter:
            case collective::scatter: return call.out == call.in + before;
            case collective::alltoall:
                return call.in == call.out && exchanges_in_place_ &&
                       std::ranges::equal(call.counts, call.receive_counts);
            default: return call.in == call.out;
        }
    }

    const char* must() const {
        switch (call.entry.kind) {
            case collective::allgather:
            case collective::gather:
                return "; they must be apart, or the input this rank's part of the output";
            case collective::reduce_scatter:
            case collective::scatter:
                return "; they must be apart, or the output this rank's part of the input";
            case collective::alltoall:
                return exchanges_in_place_
                           ? "; they must be apart, or the same with the same counts"
                           : "; they must be apart: this backend has no alltoall in place";
            default: return " in part; they must be the same or apart";
        }
    }

    device_session& session_;
    time_limit timeout_;
    bool of_plan_;
    call_label named_;
    const char* label_;
    int rank_;
    std::size_t size_;
    bool exchanges_in_place_;
};

}  // namespace hvd::inline v0::detail
