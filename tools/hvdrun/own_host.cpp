// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
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

bool is_loopback(const std::string& address) {
    return address.rfind("127.", 0) == 0 || address == "::1";
}

std::set<std::string> addresses_printed(const std::string& name) {
    std::set<std::string> result;
    const found_addresses found = addresses_of(name);
    for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next)
        result.insert(printed(a->ai_addr));
    return result;
}

std::set<std::string> own_addresses() {
    std::set<std::string> result;
    const own_interfaces list = interfaces();
    for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next)
        if (i->ifa_addr != nullptr) result.insert(printed(i->ifa_addr));
    result.erase("");
    return result;
}

bool have_common(const std::set<std::string>& a, const std::set<std::string>& b) {
    return std::any_of(a.begin(), a.end(), [&](const auto& one) { return b.count(one) > 0; });
}

std::string own_name() {
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    return own;
}

// A name with a user is left to ssh: it is another host than any.
bool has_user(const std::string& name) { return name.find('@') != std::string::npos; }

// A name that is listed.
struct known_name {
    bool is_local = false;
    std::set<std::string> addresses = {};

    bool is_same_host(const known_name& other) const {
        return (is_local && other.is_local) || have_common(addresses, other.addresses);
    }
};

known_name look_up(const std::string& name) {
    if (has_user(name)) return {};
    if (name == "localhost" || is_own_name(name, own_name())) return {true};
    known_name found{false, addresses_printed(name)};
    found.is_local = std::any_of(found.addresses.begin(), found.addresses.end(), is_loopback) ||
                     have_common(found.addresses, own_addresses());
    return found;
}

// To look a name up can take seconds, so that each is looked up once.
const known_name& known(const std::string& name) {
    static std::map<std::string, known_name> all;
    const auto found = all.find(name);
    return found != all.end() ? found->second : all.emplace(name, look_up(name)).first->second;
}

}  // namespace

bool is_own_name(std::string_view name, std::string_view own) {
    if (name.ends_with('.')) name.remove_suffix(1);
    return name.size() == own.size() && strncasecmp(name.data(), own.data(), own.size()) == 0;
}

host_list with_one_name_each(const host_list& hosts, std::vector<std::string>& said) {
    static std::vector<std::string> first_names;     // in the order in which they were listed
    static std::map<std::string, std::string> told;  // other names, with the first ones
    host_list result;
    for (host_slots one : hosts) {
        const auto same =
            std::find_if(first_names.begin(), first_names.end(), [&](const std::string& name) {
                return name == one.host || known(name).is_same_host(known(one.host));
            });
        if (same == first_names.end()) first_names.push_back(one.host);
        else if (*same != one.host) {
            if (told.emplace(one.host, *same).second)
                said.push_back(*same + " and " + one.host +
                               " are names of one host, whose slots add up");
            one.host = *same;
        }
        add_slots(result, one);
    }
    return result;
}

void find_local(std::vector<placement>& places) {
    for (placement& place : places) place.is_local = known(place.host).is_local;
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
