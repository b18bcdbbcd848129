// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "standard.hpp"  // first: an older standard is told at once

#include "train/checkpoint/checkpoint.hpp"
#include "train/checkpoint/fused.hpp"
#include "train/checkpoint/model.hpp"

#ifdef HVD_COMPILED
#define HVD_CHECKPOINT_DOOR
#include "library.hpp"
#endif
