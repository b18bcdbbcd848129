// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Declares the names that programs use in their own headers. Code that uses more of them needs a
// door: hvd/hvd.hpp, hvd/threads.hpp, hvd/mpi.hpp,
// hvd/tcp.hpp.
#include <cstddef>

#include "standard.hpp"

namespace hvd::inline v0 {

template <class Backend>
class communicator;
template <class Backend>
class plan;
class arena;
class request;
template <class T>
class result;
template <class T>
struct gathered;
class thread_group;
class mpi_environment;

struct threads;
struct mpi;
struct tcp;
struct gloo;
template <class Backend>
struct direct;

struct host;
struct device;
struct contiguous;
struct strided;
template <class T, class Space = host, std::size_t Rank = 1, class Layout = contiguous>
class tensor_view;
class float16;
class bfloat16;
template <class T>
struct dtype_traits;
template <class T>
struct serializer;

class time_span;
struct root;
struct options;
struct reduce_options;
struct communicator_options;
struct tuning_options;
struct tcp_options;

class error;
class usage_error;
class mismatch_error;
class peer_error;
class timeout_error;
class not_finite_error;
class library_error;
class mpi_error;

}  // namespace hvd::inline v0
