// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to device tensors: hvd::nccl and the policies that combine it with host backends. It
// needs the headers of CUDA and NCCL, and both libraries to link with.
#include "standard.hpp"  // first: an older standard is told at once

#include "collective/call/checks.hpp"  // next, so that errors of wrong calls are shorter

#include "cuda.hpp"
#include "device/combined/hierarchical.hpp"
#include "device/nccl/communicator.hpp"
