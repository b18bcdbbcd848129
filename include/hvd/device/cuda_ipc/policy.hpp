// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../backend/concept.hpp"
#include "../../core/memory.hpp"
#include "../../kernel/cuda/reduction.hpp"

namespace hvd {
inline namespace v0 {

namespace detail {
class cuda_ipc_session;
}

/// The ranks of one node reach each other's device memory by CUDA IPC, and hvd's kernels reduce it
/// over NVLink or PCIe: see `communicator<cuda_ipc>`. It does not need NCCL.
///
/// It reduces in rank order, with the same bits as the host: sum, average, min, max and product of
/// 8- to 64-bit integers and of floats of 16, 32 and 64 bits; averages of integers with a rounding;
/// sum and average of complex numbers; bit_and, bit_or and bit_xor of integers. It does not take
/// callables. It moves every element. A rank that is alone copies elements that are not scaled, so
/// its NaNs keep their payloads.
struct cuda_ipc {
    using space_type = device;
    using session_type = detail::cuda_ipc_session;
    static constexpr bool has_arenas = true;
    static constexpr bool reduces_as_the_host = true;
    template <class T, class Op>
    static constexpr bool reduces = detail::reduced_by_kernel<T, Op>();
};

static_assert(device_backend<cuda_ipc>);

}  // namespace v0
}  // namespace hvd
