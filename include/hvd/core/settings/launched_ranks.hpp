// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>

#include "../error.hpp"

namespace hvd::inline v0::detail {

// The number of ranks that a launcher says it has started, and the variable that says so.
struct launched_ranks {
    const char* variable = nullptr;
    int count = 1;
};

inline int number_in(const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? 0 : std::atoi(value);
}

// Every shell of a batch job of Slurm has SLURM_NTASKS and SLURM_PROCID: they say nothing.
[[gnu::cold]] inline launched_ranks ranks_of_launcher(bool also_of_hvdrun) {
    for (const char* variable : {"HVD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
        if ((also_of_hvdrun || variable[0] != 'H') && number_in(variable) > 1)
            return {variable, number_in(variable)};
    constexpr const char* tasks = "SLURM_STEP_NUM_TASKS";
    if (std::getenv("SLURM_PROCID") != nullptr && number_in(tasks) > 1)
        return {tasks, number_in(tasks)};
    return {};
}

// A world of one rank, where a launcher has started several: each of them would compute alone, and
// write the same files. HVD_ALONE=1 switches the check off.
// @throws hvd::usage_error with what `remedy(launched)` returns
template <class Remedy>
[[gnu::cold]] void refuse_to_be_alone(const char* backend, bool also_of_hvdrun, Remedy remedy) {
    if (number_in("HVD_ALONE") != 0) return;
    const launched_ranks launched = ranks_of_launcher(also_of_hvdrun);
    if (launched.count <= 1) return;
    throw usage_error(0, text("hvd: the world of hvd::", backend, " has one rank, but ",
                              launched.variable, " says that ", launched.count,
                              " were started, and each would work alone: ", remedy(launched),
                              " (HVD_ALONE=1 lets a program that a rank starts work alone)"));
}

}  // namespace hvd::inline v0::detail
