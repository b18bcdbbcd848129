// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../backend/concept.hpp"
#include "../../core/concepts.hpp"
#include "../../core/memory.hpp"
#include "../../platform/nccl_api.hpp"

namespace hvd::inline v0 {

struct nccl_options;

namespace detail {
class nccl_session;
}

/// Ranks have a GPU each, and NCCL moves device tensors between them: see `communicator<nccl>`.
///
/// It reduces as NCCL does: sum, average of floats, min, max and product of 8-, 32- and 64-bit
/// integers and of floats of 16, 32 and 64 bits. It moves every element.
///
/// Sums of float16 are computed in float16. Averages are multiplied by a power of two first, so
/// that they do not overflow. By that, elements below 2^-14 times the ranks lose their last bits.
struct nccl {
    using space_type = device;
    using session_type = detail::nccl_session;
    using own_options = nccl_options;
    static constexpr bool has_arenas = true;
    template <class T, class Op>
    static constexpr bool reduces =
        detail::has_nccl_type(dtype_traits<T>::id) && detail::has_nccl_op<Op>;
};

static_assert(device_backend<nccl>);

}  // namespace hvd::inline v0
