// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to batches in the memory of a GPU: everything of data.hpp, and the stage that copies
// them there. It needs CUDA's headers and its runtime to link with.
#include "data.hpp"

#include "data/device/to_device.hpp"
