// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training with device tensors: everything of train.hpp for the communicators of
// nccl.hpp or cuda.hpp. Include one of these as well.
#include "../train.hpp"

#include "device/gradients.hpp"
#include "device/metrics.hpp"
#include "device/optimizer.hpp"
#include "device/sparse.hpp"
#include "device/state.hpp"
