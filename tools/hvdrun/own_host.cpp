// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cstring>
#include <map>
#include <memory>
#include <string_view>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failure.hpp"
#include "hosts.hpp"

namespace hvdrun {
namespace {

struct free_addresses {
    void operator()(addrinfo* list) const { freeaddrinfo(list); }
    void operator()(ifaddrs* list) const { freeifaddrs(list); }
};
using found_addresses = std::unique_ptr<addrinfo, free_addresses>;
using own_interfaces = std::unique_ptr<ifaddrs, free_addresses>;

found_addresses addresses_of(const std::string& host) {
    const std::size_t at = host.rfind('@');
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const std::string name = at == std::string::npos ? host : host.substr(at + 1);
    if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
    return found_addresses(list);
}

own_interfaces interfaces() {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) throw failure(1, "the addresses of this host cannot be read");
    return own_interfaces(list);
}

std::string printed(const sockaddr* address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (address->sa_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, address, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    } else if (address->sa_family == AF_INET6) {
        sockaddr_in6 v6{};
        std::memcpy(&v6, address, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    }
    return text;
}

std::string address_of_interface(const std::string& name) {
    std::string v6;
    const own_interfaces list = interfaces();
    for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || name != i->ifa_name) continue;
        if (i->ifa_addr->sa_family == AF_INET) return printed(i->ifa_addr);
        if (i->ifa_addr->sa_family == AF_INET6 && v6.empty()) v6 = printed(i->ifa_addr);
    }
    if (!v6.empty()) return v6;
    throw usage_failure("--network-interface " + name + ": this host has no such interface with " +
                        "an address");
}

// The address of this host on the way to another one. No packet is sent.
std::string address_towards(const std::string& host) {
    const found_addresses found = addresses_of(host);
    for (const addrinfo* i = found.get(); i != nullptr; i = i->ai_next) {
        const int s = ::socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (s < 0) continue;
        sockaddr_storage to{}, own{};
        std::memcpy(&to, i->ai_addr, i->ai_addrlen);
        if (to.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(to).sin_port = htons(9);
        else reinterpret_cast<sockaddr_in6&>(to).sin6_port = htons(9);
        socklen_t size = sizeof own;
        const bool known =
            ::connect(s, reinterpret_cast<const sockaddr*>(&to), i->ai_addrlen) == 0 &&
            ::getsockname(s, reinterpret_cast<sockaddr*>(&own), &size) == 0;
        ::close(s);
        if (known) return printed(reinterpret_cast<const sockaddr*>(&own));
    }
    return "";
}

std::string first_address() {
    const own_interfaces list = interfaces();
    for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next)
        if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
            (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0)
            return printed(i->ifa_addr);
    return "127.0.0.1";
}

std::string_view short_name(std::string_view name) { return name.substr(0, name.find('.')); }

bool is_this_host(const std::string& name) {
    if (name == "localhost" || name == "127.0.0.1" || name == "::1") return true;
    if (name.find('@') != std::string::npos) return false;
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    if (name == own) return true;
    // A short name and a full one of the same host.
    const bool one_is_short = short_name(name) == name || short_name(own) == own;
    if (one_is_short && short_name(name) == short_name(own)) return true;
    const found_addresses found = addresses_of(name);
    const own_interfaces list = interfaces();
    for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next)
        for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next)
            if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == a->ai_family &&
                printed(i->ifa_addr) == printed(a->ai_addr))
                return true;
    return false;
}

}  // namespace

void find_local(std::vector<placement>& places) {
    static std::map<std::string, bool> known;  // to look a name up can take seconds
    for (placement& place : places) {
        if (known.count(place.host) == 0) known[place.host] = is_this_host(place.host);
        place.is_local = known[place.host];
    }
}

std::string own_address(const std::vector<placement>& places, const std::string& interface,
                        bool others_may_come) {
    if (!interface.empty()) return address_of_interface(interface);
    for (const placement& place : places) {
        if (place.is_local) continue;
        const std::string towards = address_towards(place.host);
        return towards.empty() ? first_address() : towards;
    }
    return others_may_come ? first_address() : "127.0.0.1";
}

}  // namespace hvdrun
