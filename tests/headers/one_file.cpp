// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "one_file.hpp"

//! [compiled]
template class hvd::communicator<hvd::mpi>;  // in one of its files
//! [compiled]
