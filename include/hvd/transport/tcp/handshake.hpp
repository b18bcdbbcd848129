// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../platform/network/socket.hpp"
#include "sha256.hpp"

namespace hvd::inline v0::detail {

using shared_secret = std::array<std::byte, 32>;

// The time in which a host answers that is there.
inline constexpr std::int64_t patience_with_host = 2 * tuning::second;

// How long one of a host's addresses is waited for, in each round of all of them. An address that
// leads nowhere costs little, and a host that is far away answers in a later round.
constexpr std::int64_t patience_in_round(std::size_t round) {
    constexpr std::int64_t first = patience_with_host / 8;
    return round < 3 ? first << round : patience_with_host;
}

// How two ranks prove to each other that they know the secret of their job. The one that connects
// says who it is, for which context, and gives a random number; the other answers with a number of
// its own and a proof; the first one gives its proof, and the other one lets it in with a byte. A
// proof is an HMAC over both numbers, both ranks, the context and the role, so that no proof fits
// another connection. Nothing but a buffer of fixed size is kept for a peer that has not proved
// anything, and it may be dropped at any time: without the last byte it would not know.
class handshake {
public:
    enum class state { goes_on, done, refused };

    // On the side that connects, `peer` is who is expected, and `context` is a number for that
    // which the connection serves. On the other they are not known yet: -1 and 0.
    handshake(const shared_secret& secret, int me, int peer, std::uint64_t context = 0)
        : secret_(secret), me_(me), peer_(peer), context_(context), connects_(peer >= 0) {
        fill_random(me, connects_ ? first_nonce() : second_nonce(), nonce_bytes);
        wait_for(connects_ ? nonce_bytes + sizeof(digest256) : greeting_bytes);
        if (!connects_) return;
        put(magic, sizeof magic);
        put_number(std::uint64_t(me_), 4);
        put_number(context_, 8);
        put(first_nonce(), nonce_bytes);
    }

    int peer() const { return peer_; }
    std::uint64_t context() const { return context_; }
    const char* reason() const { return reason_; }
    // True if the peer has shown that it does not belong to this job.
    bool is_foreign() const { return foreign_; }
    // True if such a peer has proved that it knows this secret.
    bool has_proved(const shared_secret& another) const {
        return foreign_ && equal_digests(std::span(in_ + nonce_bytes, sizeof(digest256)),
                                         proof(another, "accepts", me_, peer_));
    }
    bool wants_to_write() const { return sent_ < out_size_; }
    // True on the side that connects if it has seen the other's proof. The other one may have its
    // proof, too, and count on this connection.
    bool knows_peer() const { return knows_peer_; }
    // A secret of this connection alone, the same on both sides, once the handshake is done.
    shared_secret connection_key() const {
        return connects_ ? proof("session", me_, peer_) : proof("session", peer_, me_);
    }

    // Goes on as far as the socket allows.
    state advance(const descriptor& socket) {
        for (;;) {
            while (sent_ < out_size_) {
                const ssize_t n = send_some(socket, out_ + sent_, out_size_ - sent_);
                if (n <= 0) return would_block(n) ? state::goes_on : refuse("it was closed");
                sent_ += std::size_t(n);
            }
            if (wanted_ == 0) return state::done;
            while (received_ < wanted_) {
                const ssize_t n = ::recv(socket.number(), in_ + received_, wanted_ - received_, 0);
                if (n <= 0) return would_block(n) ? state::goes_on : refuse(why_closed());
                received_ += std::size_t(n);
            }
            if (!take()) return state::refused;
        }
    }

private:
    static constexpr std::byte magic[8] = {std::byte('h'), std::byte('v'), std::byte('d'),
                                           std::byte(' '), std::byte('l'), std::byte('n'),
                                           std::byte('k'), std::byte(3)};
    static constexpr std::byte welcome{1};
    static constexpr std::size_t nonce_bytes = 16;
    static constexpr std::size_t greeting_bytes = sizeof magic + 4 + 8 + nonce_bytes;

    static bool would_block(ssize_t n) {
        return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    }
    // The one that connects sees the other's proof first.
    const char* why_closed() const {
        return !connects_ && peer_ >= 0 ? "it went away when it had seen the proof of the secret"
                                        : "it was closed";
    }
    state refuse(const char* why) {
        reason_ = why;
        return state::refused;
    }

    std::byte* first_nonce() { return nonces_; }
    std::byte* second_nonce() { return nonces_ + nonce_bytes; }

    void put(const std::byte* data, std::size_t n) {
        std::memcpy(out_ + out_size_, data, n);
        out_size_ += n;
    }
    void put_number(std::uint64_t n, int bytes) {
        for (int i = 0; i < bytes; ++i) out_[out_size_++] = std::byte(n >> (8 * i));
    }
    static std::uint64_t number_in(const std::byte* data, int bytes) {
        std::uint64_t n = 0;
        for (int i = 0; i < bytes; ++i) n |= std::uint64_t(data[i]) << (8 * i);
        return n;
    }
    void wait_for(std::size_t n) {
        wanted_ = n;
        received_ = 0;
    }

    digest256 proof(const char* role, int connecting, int accepting) const {
        return proof(secret_, role, connecting, accepting);
    }
    digest256 proof(const shared_secret& secret, const char* role, int connecting,
                    int accepting) const {
        std::array<std::byte, 8 + 16 + 2 * nonce_bytes> said{};
        std::memcpy(said.data(), role, std::strlen(role));
        for (std::size_t i = 0; i < 4; ++i) {
            said[8 + i] = std::byte(std::uint32_t(connecting) >> (8 * i));
            said[12 + i] = std::byte(std::uint32_t(accepting) >> (8 * i));
        }
        for (std::size_t i = 0; i < 8; ++i) said[16 + i] = std::byte(context_ >> (8 * i));
        std::memcpy(said.data() + 24, nonces_, 2 * nonce_bytes);
        return hmac_sha256(secret, said);
    }

    // Takes what was waited for. False if the peer is refused.
    bool take() {
        if (knows_peer_) return let_in();
        if (connects_) return take_answer();
        return peer_ < 0 ? take_greeting() : take_proof();
    }
    bool take_greeting() {
        if (std::memcmp(in_, magic, sizeof magic) != 0) {
            refuse("it does not speak hvd's protocol");
            return false;
        }
        const std::uint64_t rank = number_in(in_ + sizeof magic, 4);
        if (rank > INT32_MAX) {
            refuse("it gives a rank that does not exist");
            return false;
        }
        peer_ = int(rank);
        context_ = number_in(in_ + sizeof magic + 4, 8);
        std::memcpy(first_nonce(), in_ + sizeof magic + 12, nonce_bytes);
        out_size_ = sent_ = 0;
        put(second_nonce(), nonce_bytes);
        put(proof("accepts", peer_, me_).data(), sizeof(digest256));
        wait_for(sizeof(digest256));
        return true;
    }
    bool take_proof() {
        if (!equal_digests(std::span(in_, sizeof(digest256)), proof("connect", peer_, me_))) {
            refuse("it does not know the secret of this job");
            return false;
        }
        out_size_ = sent_ = 0;
        put(&welcome, 1);
        return let_in();
    }
    bool let_in() {
        wait_for(0);
        return true;
    }
    bool take_answer() {
        std::memcpy(second_nonce(), in_, nonce_bytes);
        if (!equal_digests(std::span(in_ + nonce_bytes, sizeof(digest256)),
                           proof("accepts", me_, peer_))) {
            foreign_ = true;
            refuse("it does not know the secret of this job");
            return false;
        }
        out_size_ = sent_ = 0;
        put(proof("connect", me_, peer_).data(), sizeof(digest256));
        knows_peer_ = true;
        wait_for(1);
        return true;
    }

    const shared_secret& secret_;
    int me_, peer_;
    std::uint64_t context_;
    bool connects_, knows_peer_ = false, foreign_ = false;
    std::byte nonces_[2 * nonce_bytes] = {};
    std::byte in_[64] = {}, out_[64] = {};
    std::size_t wanted_ = 0, received_ = 0, out_size_ = 0, sent_ = 0;
    const char* reason_ = "";
};

}  // namespace hvd::inline v0::detail
