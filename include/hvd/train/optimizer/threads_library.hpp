// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../comm/threads_library.hpp"
#include "state_library.hpp"

namespace hvd::inline v0 {

HVD_OPTIMIZERS(threads)

}  // namespace hvd::inline v0
