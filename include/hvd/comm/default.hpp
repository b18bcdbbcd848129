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
using default_environment = mpi_environment;
#else
struct no_environment {};
using default_backend = threads;
using default_environment = no_environment;
#endif

// The process-wide communicator, which is hvd's only global. Everything is a template, so that
// units built with and without MPI link together: each kind has its own global.
template <class Backend, class Environment>
struct process_state {
    detail::mutex mutex;
    std::optional<Environment> environment;
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

/// Makes the process-wide communicator `hvd::world()`, and starts MPI if nobody has. It is
/// idempotent and thread-safe. **Collective** if it makes one. It is for people who come from
/// Horovod. Programs that can pass a communicator along should prefer
/// `communicator<Backend>::world()`.
/// @snippet tests/docs/snippets.cpp default
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
void init(const communicator_options& options = {}) {
    auto& state = detail::process_state<Backend, Environment>::get();
    const detail::lock_guard lock(state.mutex);
    if (state.world) return;
    if (!state.environment) state.environment.emplace();
    state.world.emplace(communicator<Backend>::world(options));
}

/// Ends the process-wide communicator. `init()` may make another. MPI runs until the end of the
/// process, and is finalised there if `init()` started it.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
void shutdown() {
    auto& state = detail::process_state<Backend, Environment>::get();
    const detail::lock_guard lock(state.mutex);
    state.world.reset();
}

/// True after `init()`, until `shutdown()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
bool is_initialized() {
    auto& state = detail::process_state<Backend, Environment>::get();
    const detail::lock_guard lock(state.mutex);
    return state.world.has_value();
}

/// Returns the process-wide communicator. @throws hvd::usage_error without `init()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
communicator<Backend>& world() {
    return detail::process_state<Backend, Environment>::get().require();
}

/// Returns `world().rank()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
int rank() {
    return world<Backend, Environment>().rank();
}

/// Returns `world().size()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
int size() {
    return world<Backend, Environment>().size();
}

/// Returns `world().local_rank()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
int local_rank() {
    return world<Backend, Environment>().local_rank();
}

/// Returns `world().local_size()`.
template <class Backend = detail::default_backend, class Environment = detail::default_environment>
int local_size() {
    return world<Backend, Environment>().local_size();
}

}  // namespace hvd::inline v0
