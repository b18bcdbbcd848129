// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training: a distributed optimizer and everything around it. Include the door of a
// backend as well. Checkpoints are in checkpoint.hpp, which needs nlohmann-json.
#include "standard.hpp"  // first: an older standard is told at once

#include "train/tensors.hpp"  // next, so that errors of wrong calls are shorter

#include "train/optimizer/optimizers.hpp"  // and these, for the same reason

#include "train/optimizer/typed_gradients.hpp"

#include "train/optimizer/optimizer.hpp"

#include "train/batch_norm.hpp"
#include "train/fused/fused_step.hpp"
#include "train/gradients/adasum.hpp"
#include "train/gradients/gradients.hpp"
#include "train/input/loader.hpp"
#include "train/input/sampler.hpp"
#include "train/metrics.hpp"
#include "train/optimizer/compare.hpp"
#include "train/optimizer/loss_scale.hpp"
#include "train/optimizer/state.hpp"
#include "train/optimizer/step_watch.hpp"
#include "train/schedule.hpp"
#include "train/sparse/sparse.hpp"
#include "train/uneven.hpp"
#include "train/vjp.hpp"
#include "train/wrappers/grouped.hpp"
#include "train/wrappers/lazy_rows.hpp"

#ifdef HVD_COMPILED
#define HVD_TRAIN_DOOR
#include "library.hpp"
#endif
