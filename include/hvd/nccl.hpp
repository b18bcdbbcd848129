// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The door to hvd::nccl: device tensors. Needs the headers of CUDA and NCCL, and both libraries to link with.
#include "comm/nccl_communicator.hpp"
#include "version.hpp"
