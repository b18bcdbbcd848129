// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <hvd/mpi.hpp>

//! [declared]
extern template class hvd::communicator<hvd::mpi>;  // in a header
//! [declared]
