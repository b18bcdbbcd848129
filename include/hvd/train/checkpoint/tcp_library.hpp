// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../optimizer/tcp_library.hpp"
#include "checkpoint_library.hpp"

namespace hvd::inline v0 {

HVD_CHECKPOINTS(tcp)

}  // namespace hvd::inline v0
