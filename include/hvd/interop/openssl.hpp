// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#if !__has_include(<openssl/ssl.h>)
#error "hvd: interop/openssl.hpp needs OpenSSL 1.1.1 or newer: there is no <openssl/ssl.h> here"
#endif
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "../backend/tcp.hpp"
#include "../core/lean/atomic.hpp"

namespace hvd::inline v0 {
namespace detail {

// The errors of OpenSSL are a list of the thread. Those of one call are gone with this, and those
// of the caller stay.
class openssl_errors {
public:
    openssl_errors() { ERR_set_mark(); }
    openssl_errors(const openssl_errors&) = delete;
    ~openssl_errors() { ERR_pop_to_mark(); }

    static const char* last() {
        const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
        return reason != nullptr ? reason : "OpenSSL gives no reason";
    }
};

// All connections of this process share it, and it stays until OpenSSL ends: at the end of the
// process, maybe before the last communicator. Afterwards no function of OpenSSL is called.
class openssl {
public:
    static const openssl& of_process() {
        static const openssl made;
        return made;
    }
    static bool has_ended() { return ended_.load(); }

    SSL_CTX* context() const { return context_; }

    // The reason of a call that has failed.
    [[gnu::cold, noreturn]] static void refuse(const char* call) {
        throw usage_error(-1, text("hvd: ", call, " failed: ", openssl_errors::last()));
    }

private:
    openssl() {
        const openssl_errors errors;
        context_ = SSL_CTX_new(TLS_method());
        if (context_ == nullptr) refuse("SSL_CTX_new");
        // TLS 1.3 alone, keys that live as long as the connection, and no certificates.
        if (SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
            SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) != 1 ||
            SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") != 1 ||
            SSL_CTX_set1_groups_list(context_, "X25519:P-256") != 1)
            refuse("SSL_CTX_set_ciphersuites");
#if defined(SSL_OP_ALLOW_NO_DHE_KEX)
        SSL_CTX_clear_options(context_, SSL_OP_ALLOW_NO_DHE_KEX);
#endif
        SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_num_tickets(context_, 0);
        // One call of the system reads several records.
        SSL_CTX_set_read_ahead(context_, 1);
        SSL_CTX_set_default_read_buffer_len(context_, 32 * tuning::KiB);
        OPENSSL_atexit([] { ended_.store(true); });
    }

    static inline atomic<bool> ended_{false};
    SSL_CTX* context_ = nullptr;
};

// A wire whose bytes are encrypted and authenticated by TLS 1.3. Both ranks know a secret of the
// job for this connection, from which and from keys of this connection alone (Diffie-Hellman) TLS
// makes its keys, so that a secret that becomes known later opens nothing that was heard before.
// The handshake goes on with the first reads and writes.
//
// OpenSSL does not see the socket: its own functions would raise SIGPIPE. Records for the peer go
// to memory first, so that a call writes all of a record or nothing.
class tls_session {
public:
    // The bytes of a record. So many records have one key: RFC 8446, 5.5, allows 24 million.
    static constexpr std::size_t record_bytes = 16 * tuning::KiB;
    static constexpr std::uint64_t records_of_a_key = std::uint64_t(1) << 24;

    tls_session(descriptor socket, bool connects, const shared_secret& secret,
                std::uint64_t records)
        : socket_(std::move(socket)), secret_(secret), records_of_a_key_(records) {
        const openssl_errors errors;
        BIO* const bytes = BIO_new(method());
        ssl_ = bytes != nullptr ? SSL_new(openssl::of_process().context()) : nullptr;
        if (ssl_ == nullptr) {
            BIO_free(bytes);
            openssl::refuse("SSL_new");
        }
        BIO_set_data(bytes, this);
        BIO_set_init(bytes, 1);
        SSL_set_bio(ssl_, bytes, bytes);
        SSL_set_app_data(ssl_, this);
        if (connects) {
            // A peer that has a certificate in the place of the secret is refused: none is trusted.
            SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);
            SSL_set_psk_use_session_callback(ssl_, give_secret);
            SSL_set_connect_state(ssl_);
        } else {
            SSL_set_psk_find_session_callback(ssl_, find_secret);
            SSL_set_accept_state(ssl_);
        }
        out_.resize(sizeof greeting);
        std::memcpy(out_.data(), &greeting, sizeof greeting);
    }
    tls_session(const tls_session&) = delete;
    ~tls_session() {
        if (!openssl::has_ended()) SSL_free(ssl_);
    }

    const descriptor& socket() const { return socket_; }
    bool has_unsent() const { return !out_.empty(); }
    const char* why() const { return why_.c_str(); }

    ssize_t write(const std::byte* first, std::size_t first_bytes, const std::byte* second,
                  std::size_t second_bytes) {
        if (!begin_call()) return fail(EPROTO);
        if (!flush()) return fail(EAGAIN);
        if (is_broken_) return fail(EPIPE);
        const openssl_errors errors;
        std::size_t taken = 0;
        while (taken < first_bytes + second_bytes && out_.size() < batch_bytes) {
            const std::size_t n =
                taken < first_bytes
                    ? write_both(first + taken, first_bytes - taken, second, second_bytes)
                    : write_record(second + (taken - first_bytes),
                                   first_bytes + second_bytes - taken);
            if (n == 0) break;
            taken += n;
        }
        flush();
        if (taken > 0) return ssize_t(taken);
        return fail(has_failed_ ? EPROTO : was_closed_ ? EPIPE : EAGAIN);
    }

    ssize_t read(std::byte* first, std::size_t first_bytes, std::byte* second,
                 std::size_t second_bytes) {
        if (!begin_call()) return fail(EPROTO);
        const openssl_errors errors;
        std::size_t got = 0;
        while (got < first_bytes + second_bytes) {
            std::byte* const to = got < first_bytes ? first + got : second + (got - first_bytes);
            const std::size_t room =
                got < first_bytes ? first_bytes - got : first_bytes + second_bytes - got;
            std::size_t n = 0;
            if (SSL_read_ex(ssl_, to, room, &n) != 1) {
                note_failure();
                break;
            }
            got += n;
        }
        flush();  // what TLS itself has to say
        if (got > 0) return ssize_t(got);
        if (was_closed_) return 0;
        return fail(has_failed_ ? EPROTO : EAGAIN);
    }

    // Sends the records that are in memory. False if some are left.
    bool flush() {
        while (sent_ < out_.size() && !is_broken_) {
            const ssize_t n = send_some(socket_, out_.data() + sent_, out_.size() - sent_);
            if (n > 0) sent_ += std::size_t(n);
            else if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
            else if (errno != EINTR) is_broken_ = true;
        }
        out_.clear();
        sent_ = 0;
        return true;
    }

    // During the handshake this rank waits for the other, also to write.
    short events(bool reads, bool writes) const {
        const bool is_open = openssl::has_ended() || SSL_is_init_finished(ssl_) == 1;
        return short((reads || !is_open ? POLLIN : 0) |
                     (has_unsent() || (writes && is_open) ? POLLOUT : 0));
    }

    bool end_writing() {
        if (begin_call() && !std::exchange(has_said_end_, true)) {
            const openssl_errors errors;
            SSL_shutdown(ssl_);
        }
        if (!flush()) return false;
        has_said_end_ = true;
        ::shutdown(socket_.number(), SHUT_WR);
        return true;
    }
    // Words that are to go need the bytes of the handshake.
    bool drop_what_comes() {
        const bool is_needed = begin_call() && !has_said_end_ && SSL_is_init_finished(ssl_) != 1;
        return is_needed || hvd::detail::drop_what_comes(socket_);
    }

private:
    // So many bytes of records go to the system with one call. Two processes over loopback moved
    // 0.65, 0.77, 0.74 and 0.72 GB in a second of their processors with 16, 64, 128 and 256 KiB.
    static constexpr std::size_t batch_bytes = 64 * tuning::KiB;
    static constexpr frame greeting{0, frame::kind::encrypted};
    static constexpr std::string_view identity = "hvd";

    static ssize_t fail(int code) {
        errno = code;
        return -1;
    }

    // False if no call of OpenSSL may follow.
    bool begin_call() {
        if (openssl::has_ended() && !has_failed_) give_up("OpenSSL has ended with the process");
        is_later_ = false;
        return !has_failed_;
    }
    void give_up(message why) {
        has_failed_ = true;
        why_ = std::move(why);
    }

    // A call of OpenSSL has failed: for good, unless the peer has to say something first.
    void note_failure() {
        if (is_later_) return;
        // OpenSSL goes back into the handshake when it fails, and takes an alert for the end, too.
        const bool said_end = (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0 &&
                              SSL_is_init_finished(ssl_) == 1;
        if (is_closed_ || said_end) was_closed_ = true;
        else if (is_foreign_) give_up("it does not encrypt its connections, and this rank does");
        else if (error_ != 0) give_up(strerror(error_));
        else give_up(text("TLS: ", openssl_errors::last()));
    }

    // ---- records --------------------------------------------------------------------------------

    // The head of a frame goes with what follows it. Returns how many bytes were taken.
    std::size_t write_both(const std::byte* first, std::size_t first_bytes, const std::byte* second,
                           std::size_t second_bytes) {
        const std::size_t behind =
            second_bytes < record_bytes - first_bytes ? second_bytes : record_bytes - first_bytes;
        std::memcpy(record_, first, first_bytes);
        if (behind > 0) std::memcpy(record_ + first_bytes, second, behind);
        return write_record(record_, first_bytes + behind);
    }
    std::size_t write_record(const std::byte* data, std::size_t bytes) {
        std::size_t n = 0;
        if (SSL_write_ex(ssl_, data, bytes < record_bytes ? bytes : record_bytes, &n) != 1) {
            note_failure();
            return 0;
        }
        if (++records_ == records_of_a_key_) change_key();
        return n;
    }
    void change_key() {
        records_ = 0;
        if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(ssl_) != 1)
            note_failure();
    }

    // ---- called by OpenSSL ----------------------------------------------------------------------

    static BIO_METHOD* method() {
        static BIO_METHOD* const made = [] {
            BIO_METHOD* const calls = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "hvd");
            if (calls == nullptr) openssl::refuse("BIO_meth_new");
            BIO_meth_set_write(calls, take_records);
            BIO_meth_set_read(calls, give_records);
            BIO_meth_set_ctrl(calls, control);
            return calls;
        }();
        return made;
    }
    static tls_session& of(BIO* bytes) { return *static_cast<tls_session*>(BIO_get_data(bytes)); }

    static int take_records(BIO* bytes, const char* data, int n) noexcept try {
        BIO_clear_retry_flags(bytes);
        std::vector<std::byte>& out = of(bytes).out_;
        const std::byte* const begin = reinterpret_cast<const std::byte*>(data);
        out.insert(out.end(), begin, begin + n);
        return n;
    } catch (const std::bad_alloc&) {
        of(bytes).error_ = ENOMEM;
        return -1;
    }

    static int give_records(BIO* bytes, char* data, int n) noexcept {
        BIO_clear_retry_flags(bytes);
        tls_session& self = of(bytes);
        while (self.greeted_ < sizeof greeting) {
            const ssize_t got =
                self.receive(self.greeting_ + self.greeted_, sizeof greeting - self.greeted_);
            if (got <= 0) return self.note_nothing(bytes, got);
            self.greeted_ += std::size_t(got);
            self.is_foreign_ = std::memcmp(self.greeting_, &greeting, self.greeted_) != 0;
            if (self.is_foreign_) return -1;
        }
        const ssize_t got = self.receive(data, std::size_t(n));
        return got > 0 ? int(got) : self.note_nothing(bytes, got);
    }
    ssize_t receive(void* data, std::size_t bytes) const noexcept {
        return ::recv(socket_.number(), data, bytes, 0);
    }
    int note_nothing(BIO* bytes, ssize_t got) noexcept {
        is_closed_ = got == 0;
        is_later_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (is_later_) BIO_set_retry_read(bytes);
        else error_ = errno;
        return int(got);
    }

    static long control(BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1 : 0; }

    static SSL_SESSION* session_of(SSL* ssl) {
        static constexpr unsigned char aes_128_gcm_sha256[2] = {0x13, 0x01};
        const tls_session& self = *static_cast<const tls_session*>(SSL_get_app_data(ssl));
        SSL_SESSION* const made = SSL_SESSION_new();
        const bool is_good =
            made != nullptr &&
            SSL_SESSION_set1_master_key(made,
                                        reinterpret_cast<const unsigned char*>(self.secret_.data()),
                                        self.secret_.size()) == 1 &&
            SSL_SESSION_set_cipher(made, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) == 1 &&
            SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1;
        if (is_good) return made;
        SSL_SESSION_free(made);
        return nullptr;
    }
    static int give_secret(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes,
                           SSL_SESSION** session) {
        *id = reinterpret_cast<const unsigned char*>(identity.data());
        *id_bytes = identity.size();
        *session = session_of(ssl);
        return *session != nullptr ? 1 : 0;
    }
    static int find_secret(SSL* ssl, const unsigned char* id, std::size_t id_bytes,
                           SSL_SESSION** session) {
        const bool is_ours =
            id_bytes == identity.size() && std::memcmp(id, identity.data(), id_bytes) == 0;
        *session = is_ours ? session_of(ssl) : nullptr;
        return !is_ours || *session != nullptr ? 1 : 0;
    }

    const descriptor socket_;
    const shared_secret secret_;
    SSL* ssl_ = nullptr;
    std::vector<std::byte> out_;  // records, of which the first sent_ bytes have gone
    std::size_t sent_ = 0;
    std::byte record_[record_bytes];
    std::uint64_t records_ = 0;  // that have the present key
    const std::uint64_t records_of_a_key_;
    std::byte greeting_[sizeof greeting];
    std::size_t greeted_ = 0;  // bytes of it that have come
    // Noted while OpenSSL reads: there is nothing yet, the end, an error of the system, or bytes
    // of a wire of another kind.
    bool is_later_ = false, is_closed_ = false, is_foreign_ = false;
    int error_ = 0;
    bool was_closed_ = false, is_broken_ = false, has_failed_ = false, has_said_end_ = false;
    message why_;
};

// The wire of one connection (see plain_wire).
class tls_wire {
public:
    tls_wire() = default;
    tls_wire(descriptor socket, bool connects, const shared_secret& secret,
             std::uint64_t records_of_a_key = tls_session::records_of_a_key)
        : session_(
              owner<tls_session>::make(std::move(socket), connects, secret, records_of_a_key)) {}

    static void prepare() { openssl::of_process(); }
    template <class F>
    static tls_wire over(descriptor socket, bool connects, const F& secret) {
        return tls_wire(std::move(socket), connects, secret());
    }

    const descriptor& socket() const noexcept { return session_->socket(); }
    explicit operator bool() const noexcept { return bool(session_); }

    ssize_t write(const std::byte* first, std::size_t first_bytes, const std::byte* second,
                  std::size_t second_bytes) {
        return session_->write(first, first_bytes, second, second_bytes);
    }
    ssize_t read(std::byte* first, std::size_t first_bytes, std::byte* second,
                 std::size_t second_bytes) {
        return session_->read(first, first_bytes, second, second_bytes);
    }

    bool has_unsent() const { return session_ && session_->has_unsent(); }
    bool flush() { return !session_ || session_->flush(); }
    short events(bool reads, bool writes) const { return session_->events(reads, writes); }
    const char* why() const { return session_->why(); }
    const char* why_closed() const { return *why() != 0 ? why() : "its connection was closed"; }
    bool end_writing() noexcept { return session_->end_writing(); }
    bool drop_what_comes() noexcept { return session_->drop_what_comes(); }

private:
    owner<tls_session> session_;
};

}  // namespace detail

/// A backend whose connections between ranks are encrypted.
template <class Backend>
struct encrypted;

/// `tcp` with TLS 1.3 on each connection between ranks: others neither read nor change what goes
/// through the network. The secret of the job is all that it needs; there are no certificates. The
/// shared memory of a host is not encrypted, nor is the way to the rendezvous, which carries
/// addresses. All ranks name this backend. The program links OpenSSL (`-lssl -lcrypto`).
/// @snippet tests/tcp/faults.cpp encrypted
template <>
struct encrypted<tcp> {
    using endpoint_type = detail::job_endpoint<detail::basic_tcp_messages<detail::tls_wire>>;
};

static_assert(backend<encrypted<tcp>>);

}  // namespace hvd::inline v0
