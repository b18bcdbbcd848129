// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "../../platform/network/socket.hpp"

namespace hvd::inline v0::detail {

// True if a connection that ended so was closed by the peer's system: the peer has closed it or is
// dead. The errors are those of the first read and write that failed, 0 for the end of the stream
// and for none. Between hosts a reset proves nothing: a host that hears nothing any more
// resets its connections, though it may still be heard. A write that fails takes the error, and a
// read finds the end of the stream then.
inline bool was_closed_by_peer(int read_error, int write_error, bool is_within_host) {
    const auto proves = [is_within_host](int error) {
        return error == 0 || (is_within_host && (error == ECONNRESET || error == EPIPE));
    };
    return proves(read_error) && proves(write_error);
}

// Sends and receives messages over a socket that does not block. A message is preceded by its size.
class framed_socket {
public:
    static constexpr std::size_t most_bytes = std::size_t(64) << 20;  // of a message

    // No message has more than `most` bytes.
    framed_socket(int peer, descriptor socket, std::size_t most = most_bytes)
        : peer_(peer),
          most_(most),
          is_within_host_(is_within_host(socket)),
          socket_(std::move(socket)) {
        tune_socket(socket_);
    }

    int peer() const { return peer_; }
    int number() const { return socket_.number(); }
    bool is_open() const { return bool(socket_); }
    bool wants_to_write() const { return sent_ < out_.size(); }
    const char* reason() const { return reason_; }
    // True if nothing proves that the peer has closed it: its host may be silent, or what came
    // was wrong.
    bool is_silent() const { return !is_open() && !closed_by_peer_; }

    // The message goes with the next `flush`.
    void queue(std::span<const std::byte> bytes) {
        if (!is_open() || write_error_ != 0) return;
        if (bytes.size() > most_bytes)
            throw usage_error(-1, text("hvd: a message of ", bytes.size(), " bytes to rank ", peer_,
                                       ": at most ", most_bytes, " go"));
        if (sent_ == out_.size()) {
            out_.clear();
            sent_ = 0;
        }
        out_.resize(out_.size() + head_bytes + bytes.size());
        const auto at = out_.end() - std::ptrdiff_t(head_bytes + bytes.size());
        std::ranges::copy(head_of(bytes), at);
        std::ranges::copy(bytes, at + head_bytes);
    }

    // The last message. It is sent only if the socket takes it at once, and needs no memory.
    void send_last(std::span<const std::byte> bytes) noexcept {
        flush();
        if (!is_open() || wants_to_write() || write_error_ != 0) return;
        const auto head = head_of(bytes);
        send_both(socket_, head.data(), head.size(), bytes.data(), bytes.size());
    }

    // Writes as much as the socket takes. A peer that reads no more may have said why before, so
    // that only `fill` ends the link, when it has read everything.
    void flush() {
        while (is_open() && wants_to_write()) {
            const ssize_t n = send_some(socket_, out_.data() + sent_, out_.size() - sent_);
            if (n > 0) sent_ += std::size_t(n);
            else if (errno == EINTR) continue;
            else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            else return stop_writing(errno);
        }
    }

    // Reads what has come. The memory grows with what has come, never with what a peer announces.
    void fill() {
        if (taken_ > 0) {
            in_.erase(in_.begin(), in_.begin() + std::ptrdiff_t(taken_));
            taken_ = 0;
        }
        for (std::size_t turns = most_turns; turns > 0 && is_open(); --turns) {
            const std::size_t before = in_.size();
            in_.resize(before + room);
            const ssize_t n = ::recv(socket_.number(), in_.data() + before, room, 0);
            in_.resize(before + (n > 0 ? std::size_t(n) : 0));
            if (n > 0 && std::size_t(n) < room) return;
            if (n > 0 || (n < 0 && errno == EINTR)) continue;
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
            const int error = n == 0 ? 0 : errno;
            closed_by_peer_ = was_closed_by_peer(error, write_error_, is_within_host_);
            return fail(n == 0 ? "it was closed" : strerror(error));
        }
    }

    // The next whole message. It is valid until the next `fill`.
    bool next(std::span<const std::byte>& message) {
        if (in_.size() - taken_ < head_bytes) return false;
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < 4; ++i) bytes |= std::size_t(in_[taken_ + i]) << (8 * i);
        if (bytes > most_) {
            fail("a message is too long");
            in_.clear();
            taken_ = 0;
            return false;
        }
        if (in_.size() - taken_ - 4 < bytes) return false;
        message = {in_.data() + taken_ + 4, bytes};
        taken_ += 4 + bytes;
        return true;
    }

    void close() { socket_ = {}; }

private:
    static constexpr std::ptrdiff_t head_bytes = 4;
    static std::array<std::byte, head_bytes> head_of(std::span<const std::byte> message) {
        std::array<std::byte, head_bytes> head;
        for (int i = 0; i < head_bytes; ++i)
            head[std::size_t(i)] = std::byte(message.size() >> (8 * i));
        return head;
    }

    static constexpr std::size_t room = 16384;
    static constexpr std::size_t most_turns = 64;  // then other peers are heard

    void fail(const char* why) {
        reason_ = why;
        descriptor gone;
        std::swap(gone, socket_);
    }

    void stop_writing(int error) {
        write_error_ = error;
        out_.clear();
        sent_ = 0;
    }

    int peer_;
    std::size_t most_;
    bool is_within_host_, closed_by_peer_ = false;
    int write_error_ = 0;
    descriptor socket_;
    std::vector<std::byte> in_, out_;
    std::size_t taken_ = 0, sent_ = 0;
    const char* reason_ = "";
};

}  // namespace hvd::inline v0::detail
