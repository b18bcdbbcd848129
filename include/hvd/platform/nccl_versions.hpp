// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// This is the one file that includes <nccl.h>. Older headers of NCCL do not include the 8-bit
// floats.
#include <cuda_fp8.h>
#include <nccl.h>

#include "../core/lean/text.hpp"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1),
              "hvd: needs the header of NCCL 2.19.1 or later");

namespace hvd::inline v0::detail {

// Functions that came after NCCL 2.19, each with the version that brought it. hvd calls one only
// if the header and the running library have it.
enum class nccl_since {
    oldest = NCCL_VERSION(2, 19, 1),
    traffic_class = NCCL_VERSION(2, 26, 2),     // a member of ncclConfig_t
    windows = NCCL_VERSION(2, 27, 3),           // ncclCommWindowRegister, ncclCommWindowDeregister
    rooted_movements = NCCL_VERSION(2, 28, 3),  // ncclAlltoAll, ncclGather, ncclScatter
    revoking = NCCL_VERSION(2, 28, 7),          // ncclCommRevoke; ncclCommShrink is older
    growing = NCCL_VERSION(2, 29, 2),           // ncclCommGrow, ncclCommGetUniqueId
};

// Returns the version as NCCL writes it: 22809 is 2.28.9.
inline message nccl_version_text(int code) {
    return text(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

// Declares the names that an older header lacks, so that the code that uses them is the same for
// all headers. These functions are never called. Functions that the header has are weak: a program
// also starts with an older library, which lacks them.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 3)
using ncclWindow_t = struct no_nccl_window*;
constexpr int NCCL_WIN_COLL_SYMMETRIC = 1, NCCL_SHRINK_ABORT = 1;
inline ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, std::size_t, ncclWindow_t*, int) {
    return ncclInvalidUsage;
}
inline ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclInvalidUsage; }
inline ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
    return ncclInvalidUsage;
}
#else
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#pragma weak ncclCommShrink
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 3)
inline ncclResult_t ncclAlltoAll(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t,
                                 cudaStream_t) {
    return ncclInvalidUsage;
}
inline ncclResult_t ncclGather(const void*, void*, std::size_t, ncclDataType_t, int, ncclComm_t,
                               cudaStream_t) {
    return ncclInvalidUsage;
}
inline ncclResult_t ncclScatter(const void*, void*, std::size_t, ncclDataType_t, int, ncclComm_t,
                                cudaStream_t) {
    return ncclInvalidUsage;
}
#else
#pragma weak ncclAlltoAll
#pragma weak ncclGather
#pragma weak ncclScatter
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 7)
constexpr int NCCL_REVOKE_DEFAULT = 0;
inline ncclResult_t ncclCommRevoke(ncclComm_t, int) { return ncclInvalidUsage; }
#else
#pragma weak ncclCommRevoke
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 2)
inline ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId*) { return ncclInvalidUsage; }
inline ncclResult_t ncclCommGrow(ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*,
                                 ncclConfig_t*) {
    return ncclInvalidUsage;
}
#else
#pragma weak ncclCommGetUniqueId
#pragma weak ncclCommGrow
#endif

}  // namespace hvd::inline v0::detail
