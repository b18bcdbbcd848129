// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <vector>

#include <hvd/tcp.hpp>
#include <hvd/threads.hpp>
// The doors that add to a backend's, behind it.
#include <hvd/autotune.hpp>
#include <hvd/elastic.hpp>
#include <hvd/engine.hpp>
#include <hvd/timeline.hpp>
#include <hvd/train.hpp>
#include <hvd/train_engine.hpp>

#if defined(MPI_VERSION) || defined(OMPI_MPI_H) || defined(MPI_INCLUDED)
#error "a program on threads and tcp includes MPI"
#endif

using timed = hvd::communicator<hvd::observed<hvd::threads, hvd::timeline>>;

static_assert(sizeof(hvd::engine<hvd::threads>) > 0 && sizeof(timed) > 0);
