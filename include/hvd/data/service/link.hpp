// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "../../platform/clock.hpp"
#include "../../protocol/agreement.hpp"
#include "../../transport/frames/host_silence.hpp"
#include "../../transport/tcp/dial.hpp"
#include "../../transport/tcp/job_secret.hpp"
#include "byte_buffer.hpp"
#include "gathered_bytes.hpp"

namespace hvd::inline v0::detail {

// The kinds of frames between the processes of a data service.
enum class service_frame : std::uint32_t {
    hello = 1,   // the first one of the side that connects: a service_hello
    welcome,     // the answer to it: a service_hello
    refused,     // the other answer to it: a text
    arena,       // of a trainer, for the requests that follow: an arena_offer
    ask_batch,   // a service_request
    batch,       // its answer: a made_batch
    in_slot,     // the same, where the made_batch lies in the slot of the request: its bytes
    failed,      // its other answer: a service_failure
    registered,  // a worker: its addresses
    probe,       // a trainer: nothing, which the worker's host acknowledges
    made,        // a worker: the number of its batches, the nanoseconds for them, and its stages
    ask_list,    // the workers that are there
    list,
    claim,    // of a trainer, to rank 0 of its training: a claim_request
    claimed,  // its answer: a claim_answer
};

// The head of a frame. Its code covers all of it, the place of the frame in the connection, and
// small contents. So nobody between the two sides can change, repeat, leave out or cut frames.
struct service_head {
    std::uint32_t magic = expected_magic;
    service_frame kind = {};
    std::uint64_t number = 0;  // of the request
    std::uint64_t bytes = 0;   // that follow
    std::byte contents[16] = {};
    std::byte code[16] = {};

    static constexpr std::uint32_t expected_magic = 0x68766473;
    // Larger contents, which are batches, are not authenticated byte by byte.
    static constexpr std::uint64_t most_authenticated = 4096;
};
static_assert(sizeof(service_head) == 56);

// True while the peer's host has not acknowledged all that was sent.
inline bool has_unacknowledged([[maybe_unused]] const descriptor& s) {
#if HVD_LINUX
    tcp_info info{};
    socklen_t size = sizeof info;
    return ::getsockopt(s.number(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_unacked > 0;
#else
    return false;
#endif
}

// The bytes of a connection between a trainer and a worker, encrypted. The functions are those of
// transport/frames/plain_wire.hpp.
class encrypted_link {
public:
    encrypted_link() = default;
    encrypted_link(const encrypted_link&) = delete;
    encrypted_link& operator=(const encrypted_link&) = delete;
    virtual ~encrypted_link() = default;

    virtual ssize_t write(std::span<const std::byte> first, std::span<const std::byte> second) = 0;
    virtual ssize_t read(std::byte* to, std::size_t bytes) = 0;
    virtual bool flush() = 0;
    virtual short events(bool reads, bool writes) const = 0;
    virtual const char* why() const = 0;
};

// interop/openssl_data_service.hpp sets it, where a program includes that.
using make_encrypted_link = std::unique_ptr<encrypted_link> (*)(descriptor, bool connects,
                                                                const shared_secret&);
inline make_encrypted_link encrypts_links = nullptr;

inline void require_encryption(int rank) {
    if (encrypts_links == nullptr)
        refuse(rank,
               "the data service encrypts its connections, and this program can't: include "
               "hvd/interop/openssl_data_service.hpp and link OpenSSL (-lssl -lcrypto)");
}

// A connection between two processes of a data service that have authenticated each other. One
// thread at a time sends, and one receives.
class service_link {
public:
    service_link() = default;
    service_link(descriptor socket, const shared_secret& key, bool connects, std::uint64_t most)
        : socket_(std::move(socket)), key_(key), connects_(connects), most_(most) {
        tune_socket(socket_);
        keep_with_busy_peer(socket_);
    }

    const descriptor& socket() const { return socket_; }
    const service_head& head() const { return head_; }
    std::span<const std::byte> contents() const { return contents_; }
    std::string_view text() const {
        return {reinterpret_cast<const char*>(contents_.data()), contents_.size()};
    }
    byte_buffer take_contents() { return std::exchange(contents_, byte_buffer()); }
    // Contents go into these, which live as long.
    void use(spare_buffers& spares) { spares_ = &spares; }
    // The reason why the connection is over.
    std::string_view why() const { return why_; }

    // All that follows is encrypted. The socket stays, for other threads that end the connection.
    void encrypt() {
        descriptor same(::fcntl(socket_.number(), F_DUPFD_CLOEXEC, 0));
        if (!same) refuse(-1, "no descriptor for an encrypted connection: ", strerror(errno));
        encrypted_ = encrypts_links(std::move(same), connects_, derived_secret(key_, 0x746c73));
    }
    // The events after which `advance` is to be called.
    short reading_events() const { return events_for(true, false); }

    // Ends the connection. Another thread that uses it returns.
    void shut_down() const { ::shutdown(socket_.number(), SHUT_RDWR); }

    // Sends a frame. False if the connection is over.
    bool send(service_frame kind, std::uint64_t number, std::span<const std::byte> contents,
              time_point until = never) {
        const service_head head = signed_head(kind, number, contents.size(), contents);
        return send_bytes(std::as_bytes(std::span(&head, 1)), contents, until);
    }
    bool send_gathered(service_frame kind, std::uint64_t number, const gathered_bytes& contents) {
        if (contents.size() <= service_head::most_authenticated) {
            std::byte whole[service_head::most_authenticated];
            contents.copy_to(whole);
            return send(kind, number, {whole, contents.size()});
        }
        const service_head head = signed_head(kind, number, contents.size(), {});
        std::vector<std::byte> front;  // one packet
        bool is_front = true;
        return contents.in_pairs([&](auto copy, auto piece) {
            if (!std::exchange(is_front, false)) return send_bytes(copy, piece, never);
            put(front, &head, sizeof head);
            put(front, copy.data(), copy.size());
            return send_bytes(front, piece, never);
        });
    }
    bool send_text(service_frame kind, std::uint64_t number, std::string_view text) {
        return send(kind, number, std::as_bytes(std::span(text)));
    }

    enum class state { incomplete, complete, over };

    // Takes what has come of the next frame.
    state advance() {
        if (is_complete_) begin_frame();
        while (have_ < sizeof head_) {
            const state s = receive(reinterpret_cast<std::byte*>(&head_), sizeof head_, have_);
            if (s != state::complete) return s;
            if (!accept_head()) return state::over;
        }
        if (taken_ < contents_.size()) {
            const state s = receive(contents_.data(), contents_.size(), taken_);
            if (s != state::complete) return s;
        }
        if (!accept_contents()) return state::over;
        is_complete_ = true;
        ++received_;
        return state::complete;
    }

    // Waits for a whole frame. False if the connection is over.
    bool wait(time_point until = never) {
        for (;;) switch (advance()) {
                case state::complete: return true;
                case state::over: return false;
                case state::incomplete:
                    if (!await(true, until)) return over("it does not answer");
            }
    }

private:
    using code = std::array<std::byte, 16>;

    static code first_half(const digest256& whole) {
        code half;
        std::memcpy(half.data(), whole.data(), half.size());
        return half;
    }
    service_head signed_head(service_frame kind, std::uint64_t number, std::uint64_t bytes,
                             std::span<const std::byte> contents) {
        service_head head;
        head.kind = kind;
        head.number = number;
        head.bytes = bytes;
        if (bytes <= service_head::most_authenticated) {
            const code digest = first_half(sha256().add(contents).finish());
            std::memcpy(head.contents, digest.data(), digest.size());
        }
        const code made = code_of(head, connects_, sent_++);
        std::memcpy(head.code, made.data(), made.size());
        return head;
    }
    code code_of(const service_head& head, bool from_connecting, std::uint64_t place) const {
        std::byte said[sizeof head - sizeof head.code + 9];
        std::memcpy(said, &head, sizeof said - 9);
        said[sizeof said - 9] = std::byte(from_connecting);
        std::memcpy(said + sizeof said - 8, &place, 8);
        return first_half(hmac_sha256(key_, said));
    }

    void begin_frame() {
        is_complete_ = false;
        have_ = taken_ = 0;
        contents_ = byte_buffer();
    }
    bool accept_head() {
        if (head_.magic != service_head::expected_magic)
            return over("it sent what is no frame of a data service");
        if (!equal_digests(head_.code, code_of(head_, !connects_, received_)))
            return over("it sent a frame that is not authentic");
        if (head_.bytes > most_) {
            over("");
            why_ = detail::text("it sent ", head_.bytes, " bytes in a frame, and at most ", most_,
                                " go");
            return false;
        }
        const std::size_t bytes = std::size_t(head_.bytes);
        contents_ = spares_ != nullptr ? spares_->take(bytes) : byte_buffer(bytes);
        return true;
    }
    bool accept_contents() {
        if (contents_.size() > service_head::most_authenticated) return true;
        return equal_digests(head_.contents, first_half(sha256().add(contents_).finish())) ||
               over("it sent a frame that is not authentic");
    }

    state receive(std::byte* data, std::size_t bytes, std::size_t& have) {
        while (have < bytes) {
            const ssize_t n = encrypted_ ? encrypted_->read(data + have, bytes - have)
                                         : ::recv(socket_.number(), data + have, bytes - have, 0);
            if (n > 0) have += std::size_t(n);
            else if (n == 0) return over("it was closed"), state::over;
            else if (errno == EAGAIN || errno == EWOULDBLOCK) return state::incomplete;
            else if (errno != EINTR) return over(why_not()), state::over;
        }
        return state::complete;
    }
    bool send_bytes(std::span<const std::byte> first, std::span<const std::byte> second,
                    time_point until) {
        while (!first.empty() || !second.empty()) {
            const ssize_t n = encrypted_ ? encrypted_->write(first, second)
                                         : send_both(socket_, first.data(), first.size(),
                                                     second.data(), second.size());
            if (n >= 0) {
                const std::size_t of_first = std::min(std::size_t(n), first.size());
                first = first.subspan(of_first);
                second = second.subspan(std::size_t(n) - of_first);
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                if (!await(false, until)) return over("it takes nothing");
            } else if (errno != EINTR) return over(why_not());
        }
        while (encrypted_ && !encrypted_->flush())
            if (!await(false, until)) return over("it takes nothing");
        return true;
    }
    const char* why_not() const { return encrypted_ ? encrypted_->why() : strerror(errno); }
    short events_for(bool reads, bool writes) const {
        if (encrypted_) return encrypted_->events(reads, writes);
        return short((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
    }
    // Without a limit it waits as long as the peer's host lives: a peer may be stopped or busy, but
    // a host that acknowledges nothing of what goes to it is gone. While nothing goes, the system
    // finds that out in a minute.
    bool await(bool reads, time_point until) {
        const short events = events_for(reads, !reads);
        if (until != never) return await_socket(socket_, events, until);
        for (host_silence silence;;) {
            const bool is_under_way = !reads || has_unacknowledged(socket_);
            pollfd p{socket_.number(), events, 0};
            poll_sockets(&p, 1, is_under_way ? 100 * tuning::millisecond : INT64_MAX);
            if (p.revents != 0) return true;
            if (silence.look(socket_)) return over("its host does not answer");
        }
    }
    bool over(const char* why) {
        if (why_.empty()) why_ = why;
        return false;
    }

    descriptor socket_;
    std::unique_ptr<encrypted_link> encrypted_;  // in the place of the socket
    shared_secret key_{};
    bool connects_ = false, is_complete_ = false;
    std::uint64_t most_ = 0, sent_ = 0, received_ = 0;
    service_head head_;
    std::size_t have_ = 0, taken_ = 0;
    byte_buffer contents_;
    spare_buffers* spares_ = nullptr;
    message why_;
};

}  // namespace hvd::inline v0::detail
