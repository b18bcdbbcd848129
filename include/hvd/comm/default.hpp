// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>

#include "../platform/has_mpi.hpp"
#include "../platform/thread.hpp"
#include "communicator.hpp"
#if HVD_HAS_MPI
#include "../backend/mpi.hpp"
#include "mpi_environment.hpp"
#else
#include "../backend/threads.hpp"
#endif

namespace hvd::inline v0 {
namespace detail {

#if HVD_HAS_MPI
using default_backend = mpi;
#else
using default_backend = threads;
#endif

// A backend of MPI names the environment that starts it; others need none.
struct no_environment {};
template <class Backend>
struct environment_of {
    using type = no_environment;
};
template <class Backend>
    requires requires { typename Backend::endpoint_type::environment_type; }
struct environment_of<Backend> {
    using type = typename Backend::endpoint_type::environment_type;
};

// The process-wide communicator, which is hvd's only global. Everything is a template, so that
// units built with and without MPI link together: each kind has its own global.
template <class Backend>
struct process_state {
    detail::mutex mutex;
    std::optional<typename environment_of<Backend>::type> environment;
    std::optional<communicator<Backend>> world;

    static process_state& get() {
        static process_state state;
        return state;
    }

    communicator<Backend>& require() {
        const detail::lock_guard lock(mutex);
        if (!world)
            throw usage_error(-1, "hvd: hvd::init() has not been called, or hvd::shutdown() has");
        return *world;
    }
};

}  // namespace detail

/// Makes the process-wide communicator `hvd::world()`. It is idempotent and thread-safe.
/// **Collective** if it makes one. It is for people who come from Horovod. Programs that can pass a
/// communicator along should prefer `communicator<Backend>::world()`.
/// @tparam Backend `mpi`, which it starts if nobody has. `init<hvd::tcp>()` names another one, for
/// all of these functions, and starts no MPI. A program compiled without MPI that names none is one
/// rank
/// @throws hvd::usage_error for one rank where a launcher has started several
/// @snippet tests/docs/snippets.cpp default
template <class Backend = detail::default_backend>
void init(const communicator_options& options = {}) {
    auto& state = detail::process_state<Backend>::get();
    const detail::lock_guard lock(state.mutex);
    if (state.world) return;
    if (!state.environment) state.environment.emplace();
    state.world.emplace(communicator<Backend>::world(options));
}

/// Ends the process-wide communicator. `init()` may make another. MPI runs until the end of the
/// process, and is finalised there if `init()` started it.
template <class Backend = detail::default_backend>
void shutdown() {
    auto& state = detail::process_state<Backend>::get();
    const detail::lock_guard lock(state.mutex);
    state.world.reset();
}

/// True after `init()`, until `shutdown()`.
template <class Backend = detail::default_backend>
bool is_initialized() {
    auto& state = detail::process_state<Backend>::get();
    const detail::lock_guard lock(state.mutex);
    return state.world.has_value();
}

/// Returns the process-wide communicator. @throws hvd::usage_error without `init()`.
template <class Backend = detail::default_backend>
communicator<Backend>& world() {
    return detail::process_state<Backend>::get().require();
}

/// Returns `world().rank()`.
template <class Backend = detail::default_backend>
int rank() {
    return world<Backend>().rank();
}

/// Returns `world().size()`.
template <class Backend = detail::default_backend>
int size() {
    return world<Backend>().size();
}

/// Returns `world().local_rank()`.
template <class Backend = detail::default_backend>
int local_rank() {
    return world<Backend>().local_rank();
}

/// Returns `world().local_size()`.
template <class Backend = detail::default_backend>
int local_size() {
    return world<Backend>().local_size();
}

/// Returns `world().cross_rank()`.
template <class Backend = detail::default_backend>
int cross_rank() {
    return world<Backend>().cross_rank();
}

/// Returns `world().cross_size()`.
template <class Backend = detail::default_backend>
int cross_size() {
    return world<Backend>().cross_size();
}

/// Returns `world().is_homogeneous()`.
template <class Backend = detail::default_backend>
bool is_homogeneous() {
    return world<Backend>().is_homogeneous();
}

}  // namespace hvd::inline v0
