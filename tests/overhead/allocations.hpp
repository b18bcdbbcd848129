// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>

namespace hvd_test {

// Returns how often this thread has called operator new.
std::size_t allocations();

}  // namespace hvd_test
