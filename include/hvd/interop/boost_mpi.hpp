// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include "../platform/mpi_api.hpp"

#include <boost/mpi/communicator.hpp>

#include "../comm/communicator.hpp"

namespace hvd::inline v0 {

/// Makes a communicator beside a Boost.MPI one, on its own duplicate. `comm` stays its owner's.
///
/// **Collective**: all ranks of `comm`. The opposite direction is
/// `boost::mpi::communicator(comm.native_handle(), boost::mpi::comm_attach)`.
/// @throws hvd::usage_error if `comm` is empty. Horovod: `hvd.init(comm)`.
/// @tparam Backend `mpi`, `direct<mpi>` or a policy around them
template <class Backend>
communicator<Backend> borrow_boost(const boost::mpi::communicator& comm,
                                   const communicator_options& options = {}) {
    if (!comm)
        throw usage_error(
            -1, "hvd: a communicator can't be made from an empty boost::mpi::communicator");
    return communicator<Backend>(static_cast<MPI_Comm>(comm), borrow, options);
}

}  // namespace hvd::inline v0
