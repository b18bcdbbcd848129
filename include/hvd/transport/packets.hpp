// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/tuning_options.hpp"
#include "../protocol/packed_header.hpp"
#include "endpoint.hpp"
#include "message_memory.hpp"
#include "operation.hpp"

namespace hvd::inline v0::detail {

// An endpoint of hvd's own in which a message may be shorter than the recv that it fills, if that
// recv is of at most `fills_larger` bytes. Other endpoints need the same size on both sides.
template <class Endpoint>
concept fills_larger_recv = requires { Endpoint::fills_larger; };

// Such an endpoint may tell the size of what has come; unknown_size if it can't for this message.
template <class Endpoint>
concept tells_size = requires(Endpoint& l, std::byte* data, std::size_t& size) {
    l.recv(0, data, std::size_t(0), size);
};

// The bytes of data that go with headers, at most, if they are sent to so many other nodes. All
// that leaves a node is bounded, but a message that needs one packet anyway may be full.
template <class Endpoint>
std::size_t most_carried(int others, const tuning_options& tuned) {
    if (others == 0) return 0;
    if (!fills_larger_recv<Endpoint>) return tuned.unstable.least_carried;
    const std::size_t each = tuned.unstable.most_carried / std::size_t(others);
    return each > tuned.unstable.least_carried ? each : tuned.unstable.least_carried;
}

// Messages that have the headers of some ranks and the data that goes with them. They say
// themselves how long both are, and a place for one has room for the longest, since the headers of
// ranks that disagree need not be alike. All of it is memory of the transport.
template <endpoint Endpoint>
class packets {
public:
    // They come from as many senders. Each has at most so many headers, and so many bytes of data.
    [[gnu::cold]] packets(Endpoint& endpoint, std::size_t senders, std::size_t headers,
                          std::size_t data)
        : endpoint_(endpoint),
          senders_(senders),
          headers_(in_line(sizeof(lengths) + headers * most_packed_header)),
          most_(headers_ + in_line(data)),
          sizes_(senders),
          memory_(endpoint) {
        prepare(data);
    }

    // Makes memory for so many bytes of data, while no packet is under way. @throws std::bad_alloc
    [[gnu::cold]] void prepare(std::size_t data) {
        if (senders_ > 0) memory_.reserve((senders_ + 1) * (headers_ + in_line(data)));
    }
    // Packets have so many bytes of data from now on, for which the memory was made.
    [[gnu::cold]] void resize(std::size_t data) noexcept { most_ = headers_ + in_line(data); }

    // Fills the packet that is sent next with the headers that get(i) gives.
    template <class Get>
    void fill(int headers, Get get, const block& data) {
        std::byte* const mine = memory_.data();
        const std::byte* const end = pack_headers(headers, mine + sizeof(lengths), get);
        const lengths both{std::uint32_t(in_line(std::size_t(end - mine))),
                           std::uint32_t(data.bytes)};
        std::memcpy(mine, &both, sizeof both);
        if (data.bytes > 0) std::memcpy(mine + both.headers, data.data, data.bytes);
        bytes_ = both.headers + both.data;
    }

    void send(int peer) { endpoint_.send(peer, memory_.data(), shortens() ? bytes_ : most_); }
    void receive(int peer, std::size_t sender) {
        const lengths none{};  // a packet that is too short would leave those of another one
        std::memcpy(place(sender), &none, sizeof none);
        if constexpr (tells_size<Endpoint>) {
            endpoint_.recv(peer, place(sender), most_, sizes_[sender]);
        } else {
            sizes_[sender] = unknown_size;
            endpoint_.recv(peer, place(sender), most_);
        }
    }

    // Reads the headers of a packet that has come to where get(i) says. False for bytes that are no
    // packet.
    template <class Get>
    [[nodiscard]] bool read_headers(std::size_t sender, int headers, Get get) {
        const std::byte* const packet = place(sender);
        const lengths both = lengths_of(packet);
        if (both.headers < sizeof both || both.headers > headers_ || both.data > most_ - headers_)
            return false;
        const std::size_t all = std::size_t(both.headers) + both.data;
        if (sizes_[sender] != unknown_size && sizes_[sender] != (shortens() ? all : most_))
            return false;
        const std::byte* const end =
            unpack_headers(headers, packet + sizeof both, packet + both.headers, get);
        return end != nullptr && in_line(std::size_t(end - packet)) == both.headers;
    }
    // The data of a packet whose headers were read; null unless it has so many bytes.
    const std::byte* data_of(std::size_t sender, std::size_t bytes) {
        const lengths both = lengths_of(place(sender));
        return both.data == bytes ? place(sender) + both.headers : nullptr;
    }

private:
    // The header's part is a multiple of a place in which any element may begin.
    struct lengths {
        std::uint32_t headers, data;
    };
    static constexpr std::size_t in_line(std::size_t bytes) {
        return (bytes + alignof(std::max_align_t) - 1) / alignof(std::max_align_t) *
               alignof(std::max_align_t);
    }
    static lengths lengths_of(const std::byte* packet) {
        lengths both;
        std::memcpy(&both, packet, sizeof both);
        return both;
    }
    std::byte* place(std::size_t sender) { return memory_.data() + (sender + 1) * most_; }

    bool shortens() const {
        if constexpr (fills_larger_recv<Endpoint>) return most_ <= Endpoint::fills_larger;
        else return false;
    }

    Endpoint& endpoint_;
    const std::size_t senders_, headers_;  // the second in bytes
    std::size_t most_;
    std::size_t bytes_ = 0;
    table<std::size_t> sizes_;         // of the packets that have come
    message_memory<Endpoint> memory_;  // this rank's packet, then one place for each sender
};

// The bytes that may go with the headers of a call: of every rank's tensor in an allreduce, of the
// root's in a broadcast; 0 for other calls.
inline std::size_t bytes_to_carry(const operation& op) {
    if (op.only_agree || !op.packs_again) return 0;
    if (op.entry.kind == collective::allreduce) return bytes_of_groups(op);
    if (op.entry.kind == collective::broadcast)
        return std::size_t(op.entry.count) * op.element_bytes;
    return 0;
}

}  // namespace hvd::inline v0::detail
