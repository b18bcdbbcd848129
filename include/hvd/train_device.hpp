// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training with device tensors: everything of train.hpp for the communicators of
// nccl.hpp or cuda.hpp. Include one of these as well.
#include "train.hpp"

#include "train/device/gradients.hpp"
#include "train/device/metrics.hpp"
#include "train/device/optimizer.hpp"
#include "train/device/sparse.hpp"
#include "train/device/state.hpp"
