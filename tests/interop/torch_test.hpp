// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// LibTorch comes before doctest, since both have a macro CHECK and the tests want doctest's.
// So it is for all files of a unit.
#include <torch/nn.h>
#include <torch/optim.h>

#include <hvd/interop/torch.hpp>
#include <hvd/interop/torch_state.hpp>
#include <hvd/train.hpp>
#include <hvd/train_engine.hpp>
#undef CHECK

#include "hvd_test.hpp"
#include "torch_numbers.hpp"
