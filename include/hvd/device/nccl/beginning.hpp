// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../platform/nccl_api.hpp"

namespace hvd::inline v0::detail {

// How NCCL joins ranks: all anew, or newcomers to those of another communicator, which keep their
// numbers. Rank 0 makes the id, and all others get it from the host.
struct nccl_beginning {
    bool grows = false;
    ncclComm_t parent = nullptr;  // null on newcomers
    ncclUniqueId id{};

    const char* api() const { return grows ? "ncclCommGrow" : "ncclCommInitRankConfig"; }

    void make_id(int rank) {
        if (grows) check_nccl(ncclCommGetUniqueId(parent, &id), "ncclCommGetUniqueId", rank);
        else check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", rank);
    }

    // The handle is there when this returns, and NCCL's thread may still write it.
    ncclResult_t begin(ncclComm_t* made, int size, int rank, ncclConfig_t* config) const {
        if (!grows) return ncclCommInitRankConfig(made, size, id, rank, config);
        const bool is_new = parent == nullptr;
        const bool knows_id = is_new || rank == 0;
        return ncclCommGrow(parent, size, knows_id ? &id : nullptr, is_new ? rank : -1, made,
                            config);
    }
};

}  // namespace hvd::inline v0::detail
