// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "ranks.hpp"

namespace hvd::inline v0 {

/// A backend that was removed. Only its name is left, so that `communicator<cuda_ipc>` says what to
/// use instead.
struct cuda_ipc {
    using space_type = device;
    using session_type = detail::device_session;
    template <class T, class Op>
    static constexpr bool reduces = true;
};

// It has the members of other communicators, so that the compiler says nothing else.
template <class Removed>
    requires std::is_same_v<Removed, cuda_ipc>
class communicator<Removed> : public detail::device_ranks<communicator<Removed>, Removed> {
    static_assert(!std::is_same_v<Removed, cuda_ipc>,
                  "hvd::cuda_ipc was removed: use hvd::nccl between GPUs, or "
                  "hvd::staged<hvd::threads> or hvd::staged<hvd::mpi> for ranks that share a GPU");

public:
    communicator() = default;
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>&, const communicator_options& = {}) {}
    communicator split(int, int = 0) { return {}; }
};

}  // namespace hvd::inline v0
