// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include <hvd/platform/network/resolve.hpp>

namespace hvdrun {

// An address of this host as a number, or all of them where it is empty.
inline std::vector<hvd::detail::host_address> addresses_at(const std::string& address) {
    if (address.empty()) return {};
    return hvd::detail::resolve(address.c_str(), "the address of hvdrun");
}

}  // namespace hvdrun
