// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the search for thresholds. It includes engine.hpp. interop/autotune_file.hpp keeps
// its results in a file.
#include "engine.hpp"

#include "engine/tuning/autotune.hpp"
#include "engine/tuning/machine.hpp"
