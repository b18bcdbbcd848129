// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>

#include <unistd.h>

#include "../lean/atomic.hpp"
#include "../lean/slice.hpp"
#include "../message_sink.hpp"
#include "spelling.hpp"

namespace hvd::inline v0::detail {

// The variables of the environment. Libraries of macOS do not see `environ`.
#if defined(__APPLE__)
extern "C" char*** _NSGetEnviron();
inline char** variables() { return *_NSGetEnviron(); }
#else
inline char** variables() { return environ; }
#endif

// True once the program has asked for settings of the environment.
inline atomic<bool>& environment_is_read() {
    static atomic<bool> is_read{false};
    return is_read;
}
// True once it has asked for those of a communicator, or of hvd::tcp. A world needs these when it
// is made; engines and timelines may ask for theirs later.
inline atomic<bool>& communicator_settings_are_read() {
    static atomic<bool> is_read{false};
    return is_read;
}
inline atomic<bool>& tcp_settings_are_read() {
    static atomic<bool> is_read{false};
    return is_read;
}

// Returns the value of a variable; null if it is empty, which means the same as not set.
inline const char* variable_that_is_set(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != 0 ? value : nullptr;
}

inline atomic<bool>& unread_variables_are_told() {
    static atomic<bool> told{false};
    return told;
}

// Variables that nothing reads unless the program asks for the settings of the environment.
inline constexpr std::string_view variables_to_ask_for[] = {
    "HVD_TIMEOUT", "HVD_DESTRUCTOR_TIMEOUT", "HVD_MPI_BETWEEN_NODES", "HVD_SHARED_MEMORY_BYTES",
    "HVD_CHECK_FINITE", "HVD_CPUS", "HVD_CHUNK_BYTES", "HVD_BUCKET_BYTES", "HVD_TUNING",
    "HVD_CONFIG",
    // of engines, autotune and timelines
    "HVD_ENGINE_", "HVD_AUTOTUNE", "HVD_TIMELINE_"};

// Variables that the world of hvd::tcp and its kin reads, unless it is given its place.
inline constexpr std::string_view variables_of_tcp[] = {"HVD_NETWORK_INTERFACE",
                                                        "HVD_START_TIMEOUT"};

// All others that hvd, its launcher, its tests or its tools read.
inline constexpr std::string_view variables_read_unasked[] = {
    "HVD_WAITING_NOTICE", "HVD_CALL_RECORD", "HVD_NODE_SIZE", "HVD_ALONE", "HVD_MPI_CUDA_AWARE",
    "HVD_LOCAL_RANK", "HVD_LOCAL_SIZE", "HVD_JOBS", "HVD_RANK", "HVD_SIZE", "HVD_RENDEZVOUS",
    "HVD_RENDEZVOUS_SERVED", "HVD_SECRET", "HVD_SECRET_FILE", "HVD_ADDRESS", "HVD_HOST_ID",
    "HVD_DATA_SERVICE", "HVD_DATA_DISPATCHER",
    // of elastic jobs, tests and tools
    "HVD_ELASTIC_", "HVD_TEST_", "HVD_FAULT_", "HVD_EMULATION_", "HVD_LAB_", "HVD_PYTHON_"};

// A name that ends in '_' stands for all that begin with it, and HVD_AUTOTUNE for all of autotune.
inline bool is_named_by(std::string_view variable, slice<const std::string_view> names) {
    for (const std::string_view name : names) {
        const bool is_prefix = name.back() == '_' || name == "HVD_AUTOTUNE";
        if (is_prefix ? variable.starts_with(name) : variable == name) return true;
    }
    return false;
}

// True if a part of the program has asked for a variable, or may yet do so.
[[gnu::cold]] inline bool is_asked_for(std::string_view variable) {
    if (is_named_by(variable, variables_of_tcp)) return tcp_settings_are_read().load();
    const bool is_of_world = variable != "HVD_CONFIG" && !variable.starts_with("HVD_ENGINE_") &&
                             !variable.starts_with("HVD_AUTOTUNE") &&
                             !variable.starts_with("HVD_TIMELINE_");
    return (is_of_world ? communicator_settings_are_read() : environment_is_read()).load();
}

// The call that reads a variable.
[[gnu::cold]] inline std::string_view reader_of(std::string_view variable) {
    if (variable == "HVD_CONFIG")
        return "hvd::options_from_environment_and_file() of hvd/interop/options_file.hpp";
    if (variable.starts_with("HVD_ENGINE_"))
        return "hvd::options_from_environment<hvd::engine_options>() of hvd/settings.hpp";
    if (variable.starts_with("HVD_AUTOTUNE"))
        return "hvd::options_from_environment<hvd::autotune_options>() of hvd/settings.hpp";
    if (variable.starts_with("HVD_TIMELINE_"))
        return "hvd::options_from_environment<hvd::timeline_options>() of hvd/settings.hpp";
    return "hvd::options_from_environment() of hvd/settings.hpp";
}

[[gnu::cold]] inline void tell_unknown_variable(std::string_view variable) {
    best_spelling meant(variable);
    for (const std::string_view name : variables_to_ask_for) meant.offer(name);
    for (const std::string_view name : variables_of_tcp) meant.offer(name);
    for (const std::string_view name : variables_read_unasked) meant.offer(name);
    write_line(text("hvd: the environment has ", variable, ", which is no variable of hvd",
                    meant.question()));
}

// Tells, once in a process, which HVD_ variables are set and read by nobody. Rank 0 says it. An
// empty variable is not set.
[[gnu::cold]] inline void tell_unread_variables(int rank) {
    if (rank != 0) return;
    if (unread_variables_are_told().exchange(true)) return;
    for (char** variable = variables(); variable != nullptr && *variable != nullptr; ++variable) {
        const std::string_view all(*variable);
        const std::string_view name = all.substr(0, all.find('='));
        if (!name.starts_with("HVD_") || all.size() - name.size() < 2) continue;
        if (is_named_by(name, variables_read_unasked)) continue;
        const bool is_of_tcp = is_named_by(name, variables_of_tcp);
        if (!is_of_tcp && !is_named_by(name, variables_to_ask_for)) {
            // Whoever reads the environment tells it as well.
            if (!environment_is_read().load()) tell_unknown_variable(name);
        } else if (is_asked_for(name)) {
            continue;
        } else if (is_of_tcp) {
            write_line(text("hvd: ", name, " is set, and nothing has read it: hvd::tcp reads it ",
                            "where its world is given no tcp_options"));
        } else
            write_line(text("hvd: ", name, " is set, and nothing has read it: a program asks for ",
                            "settings of the environment, by ", reader_of(name)));
    }
}

}  // namespace hvd::inline v0::detail
