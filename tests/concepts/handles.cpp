// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <concepts>
#include <type_traits>

#include <hvd/hvd.hpp>

namespace {

template <class T>
constexpr bool moves_only = std::is_nothrow_move_constructible_v<T> &&
                            std::is_nothrow_move_assignable_v<T> && !std::copyable<T>;

}  // namespace

static_assert(moves_only<hvd::communicator<hvd::threads>>);
static_assert(moves_only<hvd::request>);
static_assert(!std::is_convertible_v<hvd::communicator<hvd::threads>, bool>,
              "only where it is asked for");
static_assert(std::is_constructible_v<bool, hvd::communicator<hvd::threads>>);

static_assert(std::is_empty_v<hvd::threads>);
#if HVD_HAS_MPI
static_assert(moves_only<hvd::communicator<hvd::mpi>>);
static_assert(std::is_empty_v<hvd::mpi>);
static_assert(!std::movable<hvd::mpi_environment>);
#endif

// Errors derive from hvd::error, which has no other base of ours.
static_assert(std::derived_from<hvd::usage_error, hvd::error> &&
              std::derived_from<hvd::mismatch_error, hvd::error>);
static_assert(std::derived_from<hvd::peer_error, hvd::error>);
