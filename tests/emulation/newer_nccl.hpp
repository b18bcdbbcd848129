// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Declares functions of NCCL 2.29.2, which the emulation has, where the header is older. A program
// that includes this first is compiled as with the newer header.

#include <cuda_fp8.h>
#include <nccl.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 2)
#undef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE NCCL_VERSION(2, 29, 2)
extern "C" {
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId* id, int rank,
                          ncclComm_t* made, ncclConfig_t* config);
}
#endif
