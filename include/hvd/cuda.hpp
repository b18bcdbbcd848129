// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to device tensors without NCCL: hvd::staged<…>, hvd::cuda_aware<mpi>, through_host. It
// needs CUDA's headers and its runtime to link with.
#include "standard.hpp"  // first: an older standard is told at once

#include "collective/call/checks.hpp"  // next, so that errors of wrong calls are shorter

#include "platform/has_mpi.hpp"
#if HVD_HAS_MPI
#include "device/staged/cuda_aware.hpp"
#endif
#include "device/arena.hpp"
#include "device/combined/per_operation.hpp"
#include "device/pin_device.hpp"
#include "device/removed.hpp"
#include "device/staged/communicator.hpp"
#include "device/through_host.hpp"
#include "version.hpp"
