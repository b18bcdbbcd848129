// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "../../core/settings/tcp_options.hpp"
#include "../../platform/host_identity.hpp"
#include "../../platform/network/resolve.hpp"
#include "../../protocol/call_header.hpp"
#include "listening_place.hpp"

namespace hvd::inline v0::detail {

// True for a process that no launcher has started: a job of its own.
inline bool is_alone(const tcp_options& o) {
    return o.rank < 0 && o.size < 1 && o.rendezvous.empty();
}

// True if all ranks are on this host: they meet at a loopback address. The name of a host does not
// tell it, since a host may know itself by such an address.
inline bool is_of_one_host(const tcp_options& o) {
    if (is_alone(o)) return true;
    return is_written_loopback(o.rendezvous.substr(0, o.rendezvous.rfind(':')).c_str());
}

// The addresses at which the sockets of this process listen for other ranks: none stands for all.
// Ranks of this host come by the loopback address, also beside others.
inline std::vector<host_address> addresses_for_ranks(const tcp_options& o, bool is_of_one_host) {
    if (is_of_one_host) return {host_address::loopback()};
    std::vector<host_address> at;
    if (!o.network_interface.empty()) at = own_addresses(o.network_interface);
    if (!at.empty()) add_once(at, host_address::loopback());
    return at;
}

// The same for the place at which they meet, which this process serves at one of `written`.
inline std::vector<host_address> addresses_for_meeting(const tcp_options& o, bool is_of_one_host,
                                                       std::span<const host_address> written) {
    std::vector<host_address> at = addresses_for_ranks(o, is_of_one_host);
    if (at.empty()) return at;
    for (const host_address& a : written) {
        if (a.is_loopback() && !is_of_one_host) return {};  // others know this host by another one
        add_once(at, a);
    }
    return at;
}

// Where this process listens, as far as its options say it. @throws usage_error
inline listening_place place_of(const tcp_options& o, std::uint16_t port, bool is_of_one_host) {
    listening_place mine;
    mine.host = o.host_id.empty() ? host_identity() : hash().add(o.host_id).value();
    mine.port = port;
    if (!o.address.empty())
        for (const host_address& a : resolve(o.address.c_str(), "HVD_ADDRESS")) mine.add(a);
    else if (!o.network_interface.empty())
        for (const host_address& a : own_addresses(o.network_interface)) mine.add(a);
    if (mine.addresses == 0 && !o.network_interface.empty())
        throw usage_error(o.rank, text("hvd: HVD_NETWORK_INTERFACE is '", o.network_interface,
                                       "', and this host has no such interface with an address"));
    if (mine.addresses == 0 && is_of_one_host) mine.add(host_address::loopback());
    return mine;
}

// The same with all addresses of this host, where the options leave them open.
inline listening_place known_place_of(const tcp_options& o, std::uint16_t port,
                                      bool is_of_one_host) {
    listening_place place = place_of(o, port, is_of_one_host);
    if (place.addresses == 0)
        for (const host_address& a : own_addresses()) place.add(a);
    return place;
}

}  // namespace hvd::inline v0::detail
