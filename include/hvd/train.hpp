// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training: a distributed optimizer and what belongs to it. A backend's door comes
// beside it; checkpoints are train/checkpoint.hpp, which needs nlohmann-json.
#include "train/adasum.hpp"
#include "train/batch_norm.hpp"
#include "train/gradients.hpp"
#include "train/joined_step.hpp"
#include "train/loader.hpp"
#include "train/metrics.hpp"
#include "train/optimizer.hpp"
#include "train/optimizers.hpp"
#include "train/sampler.hpp"
#include "train/schedule.hpp"
#include "train/sparse.hpp"
#include "train/state.hpp"
#include "train/uneven.hpp"
#include "train/vjp.hpp"
