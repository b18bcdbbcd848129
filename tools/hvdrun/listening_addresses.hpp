// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include <hvd/platform/network/resolve.hpp>

namespace hvdrun {

// These addresses of this host; none stands for all.
inline std::vector<hvd::detail::host_address> listening_addresses(
    const std::vector<std::string>& addresses) {
    std::vector<hvd::detail::host_address> all;
    for (const std::string& one : addresses)
        for (const auto& address : hvd::detail::resolve(one.c_str(), "an address of hvdrun"))
            hvd::detail::add_once(all, address);
    return all;
}

}  // namespace hvdrun
