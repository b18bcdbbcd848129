// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The interfaces of this host, and the address by which other ranks reach it.
#include <cstdlib>
#include <map>

#include <ifaddrs.h>
#include <net/if.h>

#include <hvd/core/settings/unread_variables.hpp>
#include <hvd/platform/network/resolve.hpp>

#include "checks.hpp"

namespace hvd_info {
namespace {

struct interface {
    bool is_up = false, has_carrier = false, is_loopback = false;
    std::string addresses;
};

std::map<std::string, interface> interfaces() {
    std::map<std::string, interface> result;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return result;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        interface& one = result[i->ifa_name];
        one.is_up = (i->ifa_flags & IFF_UP) != 0;
        one.has_carrier = (i->ifa_flags & IFF_RUNNING) != 0;
        one.is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        if (i->ifa_addr == nullptr ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        one.addresses += (one.addresses.empty() ? "" : " ") +
                         std::string(hvd::detail::address_in(i->ifa_addr).print());
    }
    ::freeifaddrs(list);
    return result;
}

std::string text_of(const interface& one) {
    const std::string state = !one.is_up ? "down" : one.has_carrier ? "up" : "up, no carrier";
    return state + (one.addresses.empty() ? ", no address" : ", " + one.addresses);
}

// The address with its interface.
std::string way_of(const std::map<std::string, interface>& all, const std::string& address) {
    for (const auto& [name, one] : all)
        if ((" " + one.addresses + " ").find(" " + address + " ") != std::string::npos)
            return address + " of " + name;
    return address;
}

std::string list_of(const std::map<std::string, interface>& all) {
    std::string names;
    for (const auto& [name, one] : all)
        if (one.is_up && !one.addresses.empty()) names += (names.empty() ? "" : ", ") + name;
    return names.empty() ? "none" : names;
}

// Names that a user gave to hvd or NCCL. NCCL's may begin with ^ or =, and are prefixes.
void judge_names(check_report& report, const std::map<std::string, interface>& all,
                 const char* variable) {
    const char* const value = hvd::detail::variable_that_is_set(variable);
    if (value == nullptr || *value == '^') return;
    const bool is_prefix = std::string_view(variable).starts_with("NCCL") && *value != '=';
    std::string_view rest = *value == '=' ? value + 1 : value;
    for (;;) {
        const std::size_t comma = rest.find(',');
        const std::string_view wanted = rest.substr(0, rest.find_first_of(",:"));
        for (const auto& [name, one] : all)
            if ((is_prefix ? name.starts_with(wanted) : name == wanted) && one.is_up &&
                !one.addresses.empty())
                return;
        if (comma == rest.npos) break;
        rest.remove_prefix(comma + 1);
    }
    report.wrong(std::string(variable) + " is " + value +
                     ", and this host has no such interface that is up and has an address",
                 "set it to one of: " + list_of(all) +
                     "; or give the interface an address: " + "ip addr add ADDRESS/24 dev NAME");
}

void judge_host_name(check_report& report, const system_files& files) {
    const std::string name = host_name();
    report.add("host name", name);
    // Machines of one name differ by the number that the kernel drew when it booted.
    report.add("machine", files.read("/proc/sys/kernel/random/boot_id"));
    try {
        std::string addresses;
        for (const auto& one : hvd::detail::resolve(name.c_str(), "the system"))
            if (const std::string text(one.print());
                (" " + addresses + " ").find(" " + text + " ") == std::string::npos)
                addresses += (addresses.empty() ? "" : " ") + text;
        report.add("it resolves to", addresses);
    } catch (const hvd::error&) {
        report.wrong(
            "the name of this host, " + name +
                ", does not resolve: launchers of MPI and NCCL's bootstrap may fail or "
                "wait for DNS",
            "add a line to /etc/hosts: 127.0.1.1 " + name + " (docker run --hostname does it)");
    }
}

}  // namespace

check_report check_network(const context& c) {
    check_report report{"network", {}, {}};
    const std::map<std::string, interface> all = interfaces();
    for (const auto& [name, one] : all) {
        report.add(name, text_of(one));
        if (one.is_up && one.addresses.empty() && !one.is_loopback)
            report.note(name + " is up and has no address, so that no rank uses it",
                        "give it one if ranks should: ip addr add ADDRESS/24 dev " + name);
    }
    const char* const only = hvd::detail::variable_that_is_set("HVD_NETWORK_INTERFACE");
    const auto own = hvd::detail::own_addresses(only == nullptr ? "" : only);
    report.add("others reach it by", own.empty() ? "nothing: only ranks of this host work together"
                                                 : way_of(all, std::string(own[0].print())));
    for (const char* variable : {"HVD_NETWORK_INTERFACE", "NCCL_SOCKET_IFNAME"})
        judge_names(report, all, variable);
    if (own.empty() && only == nullptr && c.place.size > c.place.local_size)
        report.wrong("this host has no address by which other hosts reach it",
                     "give an interface an address, or start the container with the host's network "
                     "(docker run --network host)");
    judge_host_name(report, c.files);
    return report;
}

}  // namespace hvd_info
