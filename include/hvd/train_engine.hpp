// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to training on an engine: everything of train.hpp takes an engine in place of a
// communicator, where the order of gradients may differ between ranks and steps.
#include "engine.hpp"
#include "train.hpp"

#include "train/engine/calls.hpp"
#include "train/engine/gradients.hpp"
#include "train/engine/named_steps.hpp"
#include "train/engine/state.hpp"
