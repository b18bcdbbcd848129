// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace hvd_test {

// The text of the exception that f throws, which is an E, or an empty one.
template <class E, class F>
std::string text_of(F f) {
    try {
        f();
    } catch (const E& e) {
        return e.what();
    }
    return {};
}

}  // namespace hvd_test
