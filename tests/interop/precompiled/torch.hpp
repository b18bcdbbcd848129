// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// This header is precompiled for the tests of LibTorch. Each test still includes the headers that
// it uses.
#include <torch/nn.h>
#include <torch/optim.h>

#include <hvd/interop/torch.hpp>
