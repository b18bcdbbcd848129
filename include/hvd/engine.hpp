// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the engine, which matches tensors by name. It includes hvd.hpp.
#include "hvd.hpp"

#include "engine/engine.hpp"
