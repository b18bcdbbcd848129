// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training: a distributed optimizer and what belongs to it. A backend's door comes beside it; checkpoints are
// train/checkpoint.hpp, which needs nlohmann-json.
#include "train/adasum.hpp"
#include "train/gradients.hpp"
#include "train/optimizer.hpp"
#include "train/optimizers.hpp"
#include "train/state.hpp"
