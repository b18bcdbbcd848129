// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include <hvd/core/error.hpp>

namespace device_test {

// Returns the text of the hvd::peer_error that f throws, or "".
template <class F>
std::string peer_error_of(F f) {
    try {
        f();
    } catch (const hvd::peer_error& e) {
        return e.what();
    }
    return "";
}

}  // namespace device_test
