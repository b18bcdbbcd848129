// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/tcp_library.hpp"
#include "state_library.hpp"

namespace hvd::inline v0 {

HVD_OPTIMIZERS(tcp)

}  // namespace hvd::inline v0
