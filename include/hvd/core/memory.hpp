// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

namespace hvd {
inline namespace v0 {

/// Memory that the CPU reads and writes.
struct host {};

/// Memory of a GPU. A view of it handed to a host backend does not compile. Feature F4.
struct device {};

/// Row-major and without gaps.
struct contiguous {};

/// Any stride per dimension; packed into a contiguous buffer by the collectives. Feature B16.
struct strided {};

}  // namespace v0
}  // namespace hvd
