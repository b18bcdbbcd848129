// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The instantiations that libhvd holds, for the doors that have been included so far. Each door
// includes this file in the compiled form, whichever comes first, so that it has no guard.
#ifdef HVD_THREADS_DOOR
#include "comm/threads_library.hpp"
#ifdef HVD_ENGINE_DOOR
#include "engine/threads_library.hpp"
#endif
#ifdef HVD_TRAIN_DOOR
#include "train/optimizer/threads_library.hpp"
#include "train/threads_library.hpp"
#endif
#ifdef HVD_CHECKPOINT_DOOR
#include "train/checkpoint/threads_library.hpp"
#endif
#endif

#ifdef HVD_MPI_DOOR
#include "comm/mpi_library.hpp"
#ifdef HVD_ENGINE_DOOR
#include "engine/mpi_library.hpp"
#endif
#ifdef HVD_TRAIN_DOOR
#include "train/mpi_library.hpp"
#include "train/optimizer/mpi_library.hpp"
#endif
#ifdef HVD_CHECKPOINT_DOOR
#include "train/checkpoint/mpi_library.hpp"
#endif
#endif

#ifdef HVD_TCP_DOOR
#include "comm/tcp_library.hpp"
#ifdef HVD_ENGINE_DOOR
#include "engine/tcp_library.hpp"
#endif
#ifdef HVD_TRAIN_DOOR
#include "train/optimizer/tcp_library.hpp"
#include "train/tcp_library.hpp"
#endif
#ifdef HVD_CHECKPOINT_DOOR
#include "train/checkpoint/tcp_library.hpp"
#endif
#endif
