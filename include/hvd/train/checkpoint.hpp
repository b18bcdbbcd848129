// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/fused.hpp"
#include "checkpoint/model.hpp"

#ifdef HVD_COMPILED
#define HVD_CHECKPOINT_DOOR
#include "../library.hpp"
#endif
