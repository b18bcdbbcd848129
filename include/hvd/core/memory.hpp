// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"

namespace hvd::inline v0 {

/// Memory that the CPU reads and writes.
struct host {};

/// Memory of a GPU. A view of it handed to a host backend does not compile.
struct device {};

/// The layout is row-major and without gaps.
struct contiguous {};

/// Each dimension has its own stride. The collectives pack such a tensor into a contiguous buffer.
struct strided {};

}  // namespace hvd::inline v0
