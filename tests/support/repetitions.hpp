// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// How often a test repeats what differs by chance.
#pragma once

#include <cstdlib>

namespace hvd_test {

// `whole` under ./run test --soak and where the test is named, `part` with all others.
inline int repetitions(int whole, int part) {
    return std::getenv("HVD_TEST_WHOLE") != nullptr ? whole : part;
}

}  // namespace hvd_test
