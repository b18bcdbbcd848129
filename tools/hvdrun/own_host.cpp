// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <hvd/platform/network/socket.hpp>

#include "failure.hpp"
#include "hosts.hpp"

namespace hvdrun {
namespace {

constexpr std::size_t most_addresses = 8;  // as of a rank
constexpr std::size_t most_lookups = 16;   // at once, of names

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

// True for a link-local address of IPv6, which is behind one interface.
bool has_interface(const sockaddr* address) {
    sockaddr_in6 v6{};
    if (address->sa_family != AF_INET6) return false;
    std::memcpy(&v6, address, sizeof v6);
    return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
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
        char name[IF_NAMESIZE] = "";
        if (has_interface(address) && if_indextoname(v6.sin6_scope_id, name) != nullptr)
            return std::string(text) + "%" + name;
    }
    return text;
}

// Bridges of containers and virtual machines have the same address on many hosts.
bool is_bridge(std::string_view name) {
    for (const char* const begin :
         {"docker", "br-", "virbr", "cni", "podman", "lxc", "lxd", "veth"})
        if (name.starts_with(begin)) return true;
    return false;
}

// The less an address is worth to other hosts, the later it comes.
int order_of(const ifaddrs& one) {
    const int order = one.ifa_addr->sa_family == AF_INET ? 0 : has_interface(one.ifa_addr) ? 2 : 1;
    const bool is_idle = (one.ifa_flags & IFF_RUNNING) == 0;
    return order + (is_idle ? 6 : is_bridge(one.ifa_name) ? 3 : 0);
}

// The addresses of the interfaces that are up, without loopback, or of those of a list.
std::vector<std::string> addresses_by(std::string_view only) {
    std::vector<std::pair<int, std::string>> found;
    const own_interfaces list = interfaces();
    for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
        const bool is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        if (only.empty() ? is_loopback : !hvd::detail::is_in_list(only, i->ifa_name)) continue;
        // ::1 adds nothing to 127.0.0.1.
        if (is_loopback && i->ifa_addr->sa_family == AF_INET6 && !found.empty()) continue;
        if (std::string text = printed(i->ifa_addr); !text.empty())
            found.emplace_back(order_of(*i), std::move(text));
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> result;
    for (const auto& [order, text] : found) result.push_back(text);
    return result;
}

std::vector<std::string> addresses_of_interfaces(const std::string& names) {
    std::vector<std::string> result = addresses_by(names);
    if (result.empty())
        throw usage_failure("--network-interface " + names + ": this host has no such interface " +
                            "with an address");
    return result;
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

std::set<std::string> all_own_addresses() {
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
                     have_common(found.addresses, all_own_addresses());
    return found;
}

// To look a name up can take seconds, so that each is looked up once, and several at a time.
std::map<std::string, known_name>& known_names() {
    static std::map<std::string, known_name> all;
    return all;
}

const known_name& known(const std::string& name) {
    const auto found = known_names().find(name);
    if (found != known_names().end()) return found->second;
    return known_names().emplace(name, look_up(name)).first->second;
}

void look_up_all(const host_list& hosts) {
    std::vector<std::pair<std::string, known_name>> found;
    for (const host_slots& one : hosts)
        if (!known_names().contains(one.host)) found.push_back({one.host, {}});
    std::atomic<std::size_t> next = 0;
    const auto look_up_some = [&] {
        for (std::size_t n = next++; n < found.size(); n = next++)
            found[n].second = look_up(found[n].first);
    };
    std::vector<std::jthread> threads;
    try {
        while (threads.size() + 1 < std::min(found.size(), most_lookups))
            threads.emplace_back(look_up_some);
    } catch (const std::system_error&) {  // a limit of the system: it takes longer
    }
    look_up_some();
    threads.clear();
    for (auto& one : found) known_names().insert(std::move(one));
}

}  // namespace

bool is_own_name(std::string_view name, std::string_view own) {
    if (name.ends_with('.')) name.remove_suffix(1);
    return name.size() == own.size() && strncasecmp(name.data(), own.data(), own.size()) == 0;
}

host_list with_one_name_each(const host_list& hosts, std::vector<std::string>& said) {
    static std::vector<std::string> first_names;     // in the order in which they were listed
    static std::map<std::string, std::string> told;  // other names, with the first ones
    look_up_all(hosts);
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

std::vector<std::string> own_addresses(const std::vector<placement>& places,
                                       const std::string& interfaces, bool others_may_come) {
    if (!interfaces.empty()) return addresses_of_interfaces(interfaces);
    const auto remote = std::find_if(places.begin(), places.end(),
                                     [](const placement& place) { return !place.is_local; });
    if (remote == places.end() && !others_may_come) return {"127.0.0.1"};
    std::vector<std::string> result = addresses_by("");
    const std::string towards = remote == places.end() ? "" : address_towards(remote->host);
    if (!towards.empty()) {
        std::erase(result, towards);
        result.insert(result.begin(), towards);
    }
    if (result.empty()) result.push_back("127.0.0.1");
    if (result.size() > most_addresses) result.resize(most_addresses);
    return result;
}

std::string for_others(const std::vector<std::string>& addresses) {
    std::string result;
    for (const std::string& one : addresses) {
        const std::string bare = one.substr(0, one.find('%'));
        result += result.empty() ? "" : ",";
        result += bare.find(':') == std::string::npos ? bare : "[" + bare + "]";
    }
    return result;
}

}  // namespace hvdrun
