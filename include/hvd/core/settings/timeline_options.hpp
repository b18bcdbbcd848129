// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>

#include "../../standard.hpp"
#include "../tuning.hpp"

namespace hvd::inline v0 {

/// Options of a timeline. `docs/reference/settings.md` has the range and the variable of each.
/// Horovod: `HOROVOD_TIMELINE`.
struct timeline_options {
    /// the file of each rank, in which `{rank}` stands for its number. Without that, the number is
    /// put before the ending: "run.json" is "run.0.json" on rank 0. If empty, nothing is recorded
    std::string file = {};
    std::size_t max_bytes = 256 * detail::tuning::MiB;  ///< of the file; then recording ends
    bool mark_units = false;  ///< a mark for each unit of an engine: tensors that travel together
};

}  // namespace hvd::inline v0
