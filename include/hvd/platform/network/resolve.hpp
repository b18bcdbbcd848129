// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <netdb.h>

#include "socket.hpp"

namespace hvd::inline v0::detail {

inline host_address address_in(const sockaddr* from) {
    host_address a;
    if (from->sa_family == AF_INET6) {
        sockaddr_in6 in{};
        std::memcpy(&in, from, sizeof in);
        a.is_v6 = 1;
        a.scope = in.sin6_scope_id;
        std::memcpy(a.bytes, &in.sin6_addr, 16);
    } else {
        sockaddr_in in{};
        std::memcpy(&in, from, sizeof in);
        std::memcpy(a.bytes, &in.sin_addr, 4);
    }
    return a;
}

inline std::string_view without_brackets(std::string_view host) {
    const bool has_them = host.size() >= 2 && host.front() == '[' && host.back() == ']';
    return has_them ? host.substr(1, host.size() - 2) : host;
}

// The addresses of a host, by its name or as it was written, or of a list, "10.0.0.1,[fd00::1]".
// Names of a list that are not known are left out, if another one is. `where` names the source in
// an error.
// @throws usage_error
inline std::vector<host_address> resolve(const char* hosts, std::string_view where) {
    std::vector<host_address> addresses;
    int code = EAI_NONAME;
    for (std::string_view rest = hosts;;) {
        const std::size_t comma = rest.find(',');
        const message host(without_brackets(rest.substr(0, comma)));
        addrinfo wanted{}, *found = nullptr;
        wanted.ai_socktype = SOCK_STREAM;
        if (const int failed = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found); failed != 0)
            code = failed;
        for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
            if (i->ai_family != AF_INET && i->ai_family != AF_INET6) continue;
            const host_address one = address_in(i->ai_addr);
            if (one.scope != 0) addresses.push_back(one);
            else
                for (const host_address& way : ways_to(one)) addresses.push_back(way);
        }
        if (found != nullptr) ::freeaddrinfo(found);
        if (comma == rest.npos) break;
        rest.remove_prefix(comma + 1);
    }
    if (addresses.empty())
        throw usage_error(-1, text("hvd: ", where, " names the host ", hosts,
                                   ", which is not known here: ", gai_strerror(code)));
    return addresses;
}

// The address of this host by which a connection goes.
inline host_address own_address_of(int socket) {
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return {};
    return address_in(reinterpret_cast<const sockaddr*>(&bound));
}

inline bool is_loopback(const host_address& a) {
    static constexpr std::uint8_t v6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    return a.is_v6 != 0 ? std::memcmp(a.bytes, v6, 16) == 0 : a.bytes[0] == 127;
}

// True for a loopback address as it is written in a rendezvous, and for localhost.
inline bool is_written_loopback(const char* host) {
    const std::string_view written(host);
    if (written == "localhost" || written == "[::1]") return true;
    addrinfo number{}, *found = nullptr;
    number.ai_family = AF_INET;
    number.ai_flags = AI_NUMERICHOST;
    if (::getaddrinfo(host, nullptr, &number, &found) != 0) return false;
    const bool result = is_loopback(address_in(found->ai_addr));
    ::freeaddrinfo(found);
    return result;
}

// A host and a port, as in "node1:7000" or "[fe80::1]:7000", or several hosts and the port of all,
// as in "10.0.0.1,[fd00::1]:7000".
struct host_and_port {
    message host;
    std::uint16_t port = 0;
};

// @throws usage_error
inline host_and_port read_host_and_port(std::string_view written, std::string_view where) {
    const std::size_t colon = written.rfind(':');
    std::uint32_t port = 0;
    bool valid = colon != std::string_view::npos && colon > 0 && colon + 1 < written.size();
    for (std::size_t i = colon + 1; valid && i < written.size(); ++i) {
        valid = written[i] >= '0' && written[i] <= '9' && port < 65536;
        port = 10 * port + std::uint32_t(written[i] - '0');
    }
    std::string_view host = written.substr(0, valid ? colon : 0);
    for (std::string_view rest = host;;) {
        const std::size_t comma = rest.find(',');
        const std::string_view one = rest.substr(0, comma);
        const std::string_view bare = without_brackets(one);
        valid = valid && !bare.empty() && (bare.size() < one.size() || one.find(':') == one.npos);
        if (comma == rest.npos) break;
        rest.remove_prefix(comma + 1);
    }
    if (host.find(',') == host.npos) host = without_brackets(host);
    if (!valid || host.empty() || port < 1 || port > 65535)
        throw usage_error(-1, text("hvd: ", where, " is '", written,
                                   "'; it takes a host and a port, as in node1:7000"));
    return {message(host), std::uint16_t(port)};
}

}  // namespace hvd::inline v0::detail
