// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to device tensors: hvd::nccl and the policies that combine it with host backends. It
// needs the headers of CUDA and NCCL, and both libraries to link with.
#include "cuda.hpp"
#include "device/combined/hierarchical.hpp"
#include "device/nccl/communicator.hpp"
