// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to the engine with device tensors: everything of engine.hpp, and engines with a
// communicator of nccl.hpp or cuda.hpp. Include one of these as well.
#include "engine.hpp"

#include "engine/device/engine.hpp"
