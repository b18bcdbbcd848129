// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/signature.hpp"

namespace hvd::inline v0::detail {

// A request to the thread of an engine, which alone negotiates.
struct engine_commands {
    std::vector<std::pair<std::string, signature>> submitted;
    bool restart = false;  // a rank has declined the prediction: everything pending is in submitted
    std::uint64_t units = 0;  // of the prediction that have run
    bool join = false;
    bool bye = false;           // this rank is done, and waits for the others
    message leave;              // it leaves without the others: the reason, if not empty
    std::vector<int> culprits;  // for whose sake it leaves, if not for its own
};

}  // namespace hvd::inline v0::detail
