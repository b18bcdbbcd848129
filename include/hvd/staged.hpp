// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to device tensors without NCCL: hvd::cuda_ipc, hvd::staged<…>, hvd::cuda_aware<mpi>,
// through_host. Needs the headers of CUDA and its runtime to link with.
#include "detail/has_mpi.hpp"
#if HVD_HAS_MPI
#include "comm/cuda_aware_session.hpp"
#endif
#include "comm/cuda_ipc_communicator.hpp"
#include "comm/device_arena.hpp"
#include "comm/device_communicator.hpp"
#include "comm/per_operation.hpp"
#include "comm/pin_device.hpp"
#include "comm/through_host.hpp"
#include "version.hpp"
