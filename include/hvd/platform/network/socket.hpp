// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../core/error.hpp"
#include "../linux.hpp"

namespace hvd::inline v0::detail {

// A file descriptor that its owner closes.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor() {
        if (number_ >= 0) ::close(number_);
    }

    int number() const noexcept { return number_; }
    explicit operator bool() const noexcept { return number_ >= 0; }

private:
    int number_ = -1;
};

// An address of this or another host, without a port. It has no pointers: ranks send it.
struct host_address {
    std::uint8_t is_v6 = 0;
    std::uint8_t bytes[16] = {};
    std::uint32_t scope = 0;

    sockaddr_storage with_port(std::uint16_t port, socklen_t& length) const {
        sockaddr_storage result{};
        if (is_v6 != 0) {
            sockaddr_in6 a{};
            a.sin6_family = AF_INET6;
            a.sin6_port = htons(port);
            a.sin6_scope_id = scope;
            std::memcpy(&a.sin6_addr, bytes, 16);
            std::memcpy(&result, &a, length = sizeof a);
        } else {
            sockaddr_in a{};
            a.sin_family = AF_INET;
            a.sin_port = htons(port);
            std::memcpy(&a.sin_addr, bytes, 4);
            std::memcpy(&result, &a, length = sizeof a);
        }
        return result;
    }
    static host_address loopback() {
        host_address result;
        const std::uint8_t local[4] = {127, 0, 0, 1};
        std::memcpy(result.bytes, local, 4);
        return result;
    }
    bool is_loopback() const {
        if (is_v6 == 0) return bytes[0] == 127;
        host_address own;
        own.bytes[15] = 1;
        return std::memcmp(bytes, own.bytes, sizeof bytes) == 0;
    }
    // True for an address of IPv6 that needs the interface beside it, fe80::/10.
    bool is_link_local() const {
        return is_v6 != 0 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
    }
    message print() const {
        if (is_v6 == 0)
            return text(int(bytes[0]), ".", int(bytes[1]), ".", int(bytes[2]), ".", int(bytes[3]));
        message result;
        constexpr char digits[] = "0123456789abcdef";
        for (int i = 0; i < 16; ++i) {
            const char pair[] = {digits[bytes[i] >> 4], digits[bytes[i] & 15],
                                 i % 2 == 1 && i < 15 ? ':' : char(0), 0};
            result += std::string_view(pair);
        }
        return result;
    }
    message print(std::uint16_t port) const {
        return is_v6 == 0 ? text(print(), ":", port) : text("[", print(), "]:", port);
    }
};

// True if an interface is one of a list, "eth0,ib0".
inline bool is_in_list(std::string_view list, std::string_view name) {
    for (;;) {
        const std::size_t comma = list.find(',');
        if (list.substr(0, comma) == name) return true;
        if (comma == list.npos) return false;
        list.remove_prefix(comma + 1);
    }
}

// The addresses of this host's interfaces that are up, without loopback; or those of a list of
// interfaces alone. IPv4 comes first, and last those without a carrier: nobody may be behind them.
inline std::vector<host_address> own_addresses(std::string_view only = {}) {
    std::vector<host_address> v4[2], v6[2];
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return {};
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
        if (only.empty() ? (i->ifa_flags & IFF_LOOPBACK) != 0 : !is_in_list(only, i->ifa_name))
            continue;
        const bool is_idle = (i->ifa_flags & IFF_RUNNING) == 0;
        host_address a;
        if (i->ifa_addr->sa_family == AF_INET) {
            sockaddr_in in{};
            std::memcpy(&in, i->ifa_addr, sizeof in);
            std::memcpy(a.bytes, &in.sin_addr, 4);
            v4[is_idle].push_back(a);
        } else if (i->ifa_addr->sa_family == AF_INET6) {
            sockaddr_in6 in{};
            std::memcpy(&in, i->ifa_addr, sizeof in);
            a.is_v6 = 1;
            a.scope = in.sin6_scope_id;
            std::memcpy(a.bytes, &in.sin6_addr, 16);
            v6[is_idle].push_back(a);
        }
    }
    freeifaddrs(list);
    for (const auto* more : {&v6[0], &v4[1], &v6[1]})
        v4[0].insert(v4[0].end(), more->begin(), more->end());
    return std::move(v4[0]);
}

// The ways of this host to an address of another one: a link-local address may be behind any
// interface here, whatever the other host's number of its own is.
inline std::vector<host_address> ways_to(const host_address& other) {
    if (!other.is_link_local()) return {other};
    std::vector<host_address> all;
    for (host_address way = other; const host_address& own : own_addresses()) {
        way.scope = own.scope;
        bool is_new = own.is_link_local();
        for (const host_address& a : all) is_new = is_new && a.scope != own.scope;
        if (is_new) all.push_back(way);
    }
    return all;
}

inline void add_once(std::vector<host_address>& all, const host_address& one) {
    for (const host_address& a : all)
        if (a.is_v6 == one.is_v6 && std::memcmp(a.bytes, one.bytes, sizeof a.bytes) == 0) return;
    all.push_back(one);
}

// The number under which the rendezvous and a coordinator speak with ranks. No rank has it.
constexpr int rendezvous_rank = INT32_MAX;

[[gnu::cold, noreturn]] inline void throw_system(int rank, const char* call, int code) {
    if (rank < 0 || rank == rendezvous_rank)
        throw usage_error(-1, text("hvd: ", call, " failed: ", strerror(code)));
    throw usage_error(rank, text("hvd: ", call, " failed on rank ", rank, ": ", strerror(code)));
}

// True if this process or this host has no descriptor left.
inline bool is_out_of_descriptors(int code) { return code == EMFILE || code == ENFILE; }

// A socket that never blocks, closes with the program that replaces this one, and raises no signal.
inline descriptor make_socket(int family) {
#if defined(SOCK_CLOEXEC)
    return descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
#else
    descriptor made(::socket(family, SOCK_STREAM, 0));
    if (made) {
        fcntl(made.number(), F_SETFD, FD_CLOEXEC);
        fcntl(made.number(), F_SETFL, O_NONBLOCK);
    }
    return made;
#endif
}

inline void set_option(const descriptor& s, int level, int name, int value) {
    ::setsockopt(s.number(), level, name, &value, sizeof value);
}

inline host_address address_in(const sockaddr_storage& own) {
    host_address result = host_address::loopback();
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    if (own.ss_family == AF_INET) std::memcpy(&v4, &own, sizeof v4);
    if (own.ss_family == AF_INET6) std::memcpy(&v6, &own, sizeof v6);
    if (own.ss_family == AF_INET) {
        std::memcpy(result.bytes, &v4.sin_addr, 4);
    } else if (own.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        std::memcpy(result.bytes, v6.sin6_addr.s6_addr + 12, 4);
    } else if (own.ss_family == AF_INET6) {
        result.is_v6 = 1;
        result.scope = v6.sin6_scope_id;
        std::memcpy(result.bytes, &v6.sin6_addr, 16);
    }
    return result;
}

// The address of this host that a connection uses.
inline host_address address_of(const descriptor& s) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    ::getsockname(s.number(), reinterpret_cast<sockaddr*>(&own), &size);
    return address_in(own);
}

// True if both ends of a connection have one address: they are on one host then, and in one network
// namespace of it.
inline bool is_within_host(const descriptor& s) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(s.number(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
    const host_address own = address_of(s), other = address_in(peer);
    return own.is_v6 == other.is_v6 && std::memcmp(own.bytes, other.bytes, sizeof own.bytes) == 0;
}

// Small messages go at once, and a host that is silent for some seconds is noticed.
inline void tune_socket(const descriptor& s) {
    set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(s, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE)
    set_option(s, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set_option(s, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set_option(s, IPPROTO_TCP, TCP_KEEPCNT, 3);
#endif
#if defined(TCP_USER_TIMEOUT)
    // It also counts the time in which a peer is busy and reads nothing.
    set_option(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 60000);
#endif
#if defined(SO_NOSIGPIPE)
    set_option(s, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

// For a connection whose peer may be stopped or busy without a limit, and whose host is looked
// after by host_silence. While nothing is under way, a host may be silent for a minute. The probes
// are few: a job of n ranks has a connection for each pair.
inline void keep_with_busy_peer([[maybe_unused]] const descriptor& s) {
#if defined(TCP_USER_TIMEOUT)
    set_option(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    set_option(s, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(s, IPPROTO_TCP, TCP_KEEPINTVL, 10);
#endif
}

// For a connection within this host, which its system ends if a process dies. Probes would tell
// nothing, and those of all pairs of ranks would keep the processors busy.
inline void keep_within_host(const descriptor& s) {
    keep_with_busy_peer(s);
    set_option(s, SOL_SOCKET, SO_KEEPALIVE, 0);
}

inline ssize_t send_some(const descriptor& s, const std::byte* data, std::size_t bytes) {
#if defined(MSG_NOSIGNAL)
    return ::send(s.number(), data, bytes, MSG_NOSIGNAL);
#else
    return ::send(s.number(), data, bytes, 0);
#endif
}

// Sends one piece of memory and then another.
inline ssize_t send_both(const descriptor& s, const std::byte* first, std::size_t first_bytes,
                         const std::byte* second, std::size_t second_bytes) {
    iovec parts[2] = {{const_cast<std::byte*>(first), first_bytes},
                      {const_cast<std::byte*>(second), second_bytes}};
    msghdr all{};
    all.msg_iov = parts;
    all.msg_iovlen = 2;
#if defined(MSG_NOSIGNAL)
    return ::sendmsg(s.number(), &all, MSG_NOSIGNAL);
#else
    return ::sendmsg(s.number(), &all, 0);
#endif
}

// Fills one piece of memory and then another.
inline ssize_t receive_both(const descriptor& s, std::byte* first, std::size_t first_bytes,
                            std::byte* second, std::size_t second_bytes) {
    iovec parts[2] = {{first, first_bytes}, {second, second_bytes}};
    msghdr all{};
    all.msg_iov = parts;
    all.msg_iovlen = 2;
    return ::recvmsg(s.number(), &all, 0);
}

// Drops what has come. False when the peer has ended the connection.
inline bool drop_what_comes(const descriptor& s) noexcept {
    std::byte dropped[4096];
    for (int turns = 64; turns > 0; --turns) {
        const ssize_t n = ::recv(s.number(), dropped, sizeof dropped, 0);
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    }
    return true;
}

// True for each of some connections whose other side sends nothing any more. Bytes that it has sent
// before may be unread.
inline std::vector<bool> were_ended(std::span<const descriptor* const> sockets) {
#if defined(POLLRDHUP)
    constexpr short end = POLLRDHUP | POLLHUP | POLLERR;
#else
    constexpr short end = POLLHUP | POLLERR;
#endif
    std::vector<bool> ended(sockets.size());
    if (sockets.empty()) return ended;
    std::vector<pollfd> fds;
    for (const descriptor* const s : sockets) fds.push_back({s->number(), end, 0});
    ::poll(fds.data(), nfds_t(fds.size()), 0);
    for (std::size_t i = 0; i < fds.size(); ++i) ended[i] = (fds[i].revents & end) != 0;
    return ended;
}

// Waits for events at sockets, for some nanoseconds at most; INT64_MAX waits without a limit.
inline void poll_sockets(pollfd* fds, std::size_t count, std::int64_t nanoseconds) {
#if HVD_LINUX
    const timespec span{time_t(nanoseconds / 1'000'000'000), long(nanoseconds % 1'000'000'000)};
    ::ppoll(fds, nfds_t(count), nanoseconds == INT64_MAX ? nullptr : &span, nullptr);
#else
    const std::int64_t ms = nanoseconds / 1'000'000;
    ::poll(fds, nfds_t(count), nanoseconds == INT64_MAX ? -1 : int(ms > 3600000 ? 3600000 : ms));
#endif
}

// Listens on a port that the system chooses or on the one that is given: at some addresses of this
// host, or at all of them where none is named.
class listening_socket {
public:
    explicit listening_socket(int rank, std::uint16_t port = 0,
                              std::span<const host_address> at = {}) {
        int code = 0;
        for (int attempts = port == 0 ? most_attempts : 1; attempts > 0; --attempts) {
            sockets_.clear();
            port_ = port;
            code = at.empty() ? begin_everywhere() : begin_at(at);
            if (code != EADDRINUSE) break;
        }
        if (code != 0) refuse(rank, port, code);
    }

    std::uint16_t port() const noexcept { return port_; }
    void add_to(std::vector<pollfd>& fds) const {
        for (const descriptor& s : sockets_) fds.push_back({s.number(), POLLIN, 0});
    }

    // A connection that has come, or none.
    descriptor accept() const {
        for (const descriptor& s : sockets_)
            if (descriptor made = accept_at(s); made || is_out_of_descriptors(errno)) return made;
        return {};
    }

private:
    // A port that is free at one address may be taken at another one.
    static constexpr int most_attempts = 32;

    [[gnu::cold, noreturn]] static void refuse(int rank, std::uint16_t port, int code) {
        const bool is_taken = code == EADDRINUSE;
        throw usage_error(
            rank, text("hvd: ", rank < 0 ? message() : text("rank ", rank, " "),
                       "can't listen on port ", port, ": ", strerror(code),
                       is_taken && rank >= 0 ? ". Another process may have the same rank" : ""));
    }

    // One socket has all addresses, of IPv4 alone on a host without IPv6. Returns an error, or 0.
    int begin_everywhere() {
        host_address any;
        any.is_v6 = 1;
        if (begin(any, 0) == 0) return 0;
        any.is_v6 = 0;
        return begin(any, 0);
    }
    // Some of them may have gone meanwhile, or be no addresses of this host.
    int begin_at(std::span<const host_address> at) {
        int code = EADDRNOTAVAIL;
        for (const host_address& a : at) {
            code = begin(a, 1);
            if (code != 0 && code != EADDRNOTAVAIL && code != EAFNOSUPPORT) return code;
        }
        return sockets_.empty() ? code : 0;
    }

    int begin(const host_address& at, int v6_only) {
        descriptor made = make_socket(at.is_v6 != 0 ? AF_INET6 : AF_INET);
        if (!made) return errno;
        if (at.is_v6 != 0) set_option(made, IPPROTO_IPV6, IPV6_V6ONLY, v6_only);
        set_option(made, SOL_SOCKET, SO_REUSEADDR, 1);  // an earlier job may just have ended
        socklen_t length = 0;
        sockaddr_storage bound = at.with_port(port_, length);
        if (::bind(made.number(), reinterpret_cast<const sockaddr*>(&bound), length) != 0 ||
            ::listen(made.number(), SOMAXCONN) != 0 ||
            ::getsockname(made.number(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
            return errno;
        port_ = port_in(bound);
        sockets_.push_back(std::move(made));
        return 0;
    }
    static std::uint16_t port_in(const sockaddr_storage& bound) {
        sockaddr_in6 v6{};
        sockaddr_in v4{};
        if (bound.ss_family == AF_INET6) std::memcpy(&v6, &bound, sizeof v6);
        else std::memcpy(&v4, &bound, sizeof v4);
        return ntohs(bound.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
    }

    static descriptor accept_at(const descriptor& s) {
#if defined(SOCK_CLOEXEC)
        return descriptor(::accept4(s.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
#else
        descriptor made(::accept(s.number(), nullptr, nullptr));
        if (made) {
            fcntl(made.number(), F_SETFD, FD_CLOEXEC);
            fcntl(made.number(), F_SETFL, O_NONBLOCK);
        }
        return made;
#endif
    }

    std::vector<descriptor> sockets_;
    std::uint16_t port_ = 0;
};

// Begins to connect. The socket is writable when it is connected or has failed.
inline descriptor begin_connect(const host_address& to, std::uint16_t port) {
    socklen_t length = 0;
    const sockaddr_storage address = to.with_port(port, length);
    descriptor s = make_socket(to.is_v6 != 0 ? AF_INET6 : AF_INET);
    if (!s) return s;
    if (::connect(s.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
        errno != EINPROGRESS)
        return {};
    return s;
}
inline int error_of(const descriptor& s) {
    int code = 0;
    socklen_t size = sizeof code;
    if (::getsockopt(s.number(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
    return code;
}

inline void fill_random(int rank, std::byte* data, std::size_t bytes) {
    if (::getentropy(data, bytes) != 0) throw_system(rank, "getentropy", errno);
}

}  // namespace hvd::inline v0::detail
