// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../arguments.hpp"
#include "policy.hpp"
#include "session.hpp"

namespace hvd::inline v0 {

namespace detail {

template <class Comm>
class device_exchanges;

}  // namespace detail

/// Options of messages between ranks.
struct device_message_options {
    std::string_view name = {};  ///< for errors; need not be unique
    time_limit timeout = {};     ///< for this call; the communicator's if it is not given
    device_stream stream = {};   ///< as in `device_options`
};

/// Messages to and from other ranks that NCCL moves together, in one group: the exchange with all
/// neighbours of a rank. It keeps no tensor alive, and may be exchanged again and again.
/// @snippet tests/device/snippets.cpp device_messages
class device_messages {
public:
    /// Adds a message to a rank.
    template <class X>
    device_messages& send(const X& x, peer to) {
        if constexpr (detail::check_device_pair<nccl, X, X>()) add(to_view(x), to, true);
        return *this;
    }
    /// Adds a message from a rank. The tensor has as many elements as the other rank sends.
    template <class View>
    device_messages& recv(const into_view<View>& to, peer from) {
        if constexpr (detail::check_device_pair<nccl, View, View>()) add(to.view, from, false);
        return *this;
    }

    /// The number of messages.
    std::size_t size() const noexcept { return messages_.size(); }

private:
    template <class>
    friend class detail::device_exchanges;

    template <class View>
    void add(const View& x, peer other, bool sends) {
        using T = typename View::value_type;
        messages_.push_back(
            {detail::bytes_of(x), x.size(), sizeof(T), dtype_traits<T>::id, other.rank, sends});
    }

    std::vector<detail::device_message> messages_;
};

namespace detail {

/// The members of `communicator<nccl>` that send messages from rank to rank.
template <class Comm>
class device_exchanges {
public:
    /// Sends a tensor to a rank that receives it.
    ///
    /// The two ranks make the calls, with equal element type and count. These are not compared.
    /// Messages between two ranks arrive in the order in which they were sent.
    /// **Buffers**: as for `allreduce`. **Completion**: done on return, which may not be before the
    /// other rank receives: two ranks that send to each other use `exchange`.
    /// @throws hvd::usage_error for a peer that is no other rank, and for a null pointer;
    /// hvd::peer_error, hvd::nccl_error and hvd::cuda_error.
    /// @snippet tests/device/snippets.cpp device_send
    template <class X>
    void send(const X& x, peer to, const device_message_options& o = {}) {
        send_async(x, to, o).wait();
    }
    /// Begins to send.
    template <class X>
    device_request send_async(const X& x, peer to, const device_message_options& o = {}) {
        return begin(device_messages().send(x, to), "send", o);
    }

    /// Receives a tensor from a rank that sends it.
    template <class View>
    void recv(const into_view<View>& to, peer from, const device_message_options& o = {}) {
        recv_async(to, from, o).wait();
    }
    /// Begins to receive.
    template <class View>
    device_request recv_async(const into_view<View>& to, peer from,
                              const device_message_options& o = {}) {
        return begin(device_messages().recv(to, from), "recv", o);
    }

    /// Sends and receives all messages together, so that no order of ranks can block them. The
    /// ranks with which this rank has no message make no call. No tensor that is received overlaps
    /// another of the messages.
    void exchange(const device_messages& messages, const device_message_options& o = {}) {
        exchange_async(messages, o).wait();
    }
    /// Begins an exchange.
    device_request exchange_async(const device_messages& messages,
                                  const device_message_options& o = {}) {
        return begin(messages, "exchange", o);
    }

private:
    device_request begin(const device_messages& group, const char* kind,
                         const device_message_options& o) const {
        const call_label named(kind, o.name);
        const char* const label = named.c_str();
        const auto& session = device_access::session_of(static_cast<const Comm&>(*this));
        const std::vector<device_message>& messages = group.messages_;
        if (o.timeout.is_wrong()) [[unlikely]]
            refuse(session->rank(), label, ": ", wrong_limit("timeout", o.timeout));
        check_messages(messages, label, session->rank(), session->size());
        return begin_call(session, named, o.stream, o.timeout,
                          [&](cudaStream_t stream, time_point limit) {
                              try {
                                  session->exchange(messages, label, stream, limit);
                              } catch (const library_error&) {
                                  refuse_host_memory(messages, label, *session);
                                  throw;
                              }
                          });
    }

    // Says so if a failed exchange had a tensor in memory of the host.
    [[gnu::cold]] static void refuse_host_memory(std::span<const device_message> messages,
                                                 const char* label, const device_session& session) {
        for (const device_message& m : messages) {
            const message why =
                reason_to_refuse(text("the tensor ", m.sends ? "to" : "from", " rank ", m.peer),
                                 m.data, m.count, session.rank(), session.device());
            if (!why.empty())
                throw usage_error(session.rank(),
                                  text("hvd: ", label, " on rank ", session.rank(), ": ", why));
        }
    }

    static void check_messages(std::span<const device_message> messages, const char* label,
                               int rank, int size) {
        const auto refuse = [&](const auto&... why) {
            throw usage_error(rank, text("hvd: ", label, " on rank ", rank, ": ", why...));
        };
        // NCCL takes 2048 operations in a group, and a group in parts could block.
        if (messages.size() > tuning::nccl_operations)
            refuse(messages.size(), " messages, at most ", tuning::nccl_operations,
                   " travel together");
        for (const device_message& m : messages) {
            if (m.peer < 0 || m.peer >= size)
                refuse("peer ", m.peer, " is not a rank of this communicator of size ", size);
            if (m.peer == rank) refuse("peer ", m.peer, " is this rank itself");
            if (m.data == nullptr && m.count > 0)
                refuse("null pointer with ", m.count, " elements");
            for (const device_message& other : messages)
                if (&other != &m && !m.sends && m.overlaps(other))
                    refuse("the tensor of ", m.count, " elements from rank ", m.peer,
                           " overlaps that of ", other.count, " elements ",
                           other.sends ? "to" : "from", " rank ", other.peer);
        }
    }
};

}  // namespace detail
}  // namespace hvd::inline v0
