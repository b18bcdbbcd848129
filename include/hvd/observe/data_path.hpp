// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstdint>

namespace hvd::inline v0 {

/// How the data of a collective moved, as the transport knows it.
enum class data_path : std::uint8_t {
    none,  ///< no data moved: a barrier, an agreement, a call that failed, or that has not ended
    in_place,  ///< inside a node, straight from the memory of the tensors
    windows,   ///< inside a node, through windows of shared memory
    nodes,     ///< by messages between nodes, and by memory inside each node
    messages,  ///< by messages between all ranks
    carried,   ///< by messages, in those of the headers
    library,   ///< by one call of the backend's library
};

/// The name of a path: "in place", "windows", …
constexpr const char* name_of(data_path path) {
    constexpr const char* names[] = {"none",     "in place", "windows", "nodes",
                                     "messages", "carried",  "library"};
    return names[static_cast<std::uint8_t>(path)];
}

}  // namespace hvd::inline v0
