// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>

#include "../../core/settings/configuration.hpp"
#include "../../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

// Reads the variables of hvd's launcher, and no others.
template <class Options>
Options launched_options() {
    configuration written;
    for (const setting& s : settings_of<Options>::table)
        if (const char* const value = variable_that_is_set(s.variable))
            written.add(s.key, value, s.variable);
    return written.apply<Options>();
}

// The first name of a list as Slurm writes it: node[07-12,20],other is node07.
inline std::string first_of_node_list(std::string_view list) {
    std::string name;
    for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
        if (list[i] != '[') {
            name += list[i];
            continue;
        }
        const std::size_t end = list.find(']', i);
        const std::string_view numbers = list.substr(i + 1, end - i - 1);
        name += numbers.substr(0, numbers.find_first_of("-,"));
        i = end == std::string_view::npos ? list.size() - 1 : end;
    }
    return name;
}

// Rank 0 of a step of Slurm is on its first node. Its port is below those that systems give to
// outgoing connections, and another one for each step. Empty outside of a step of several tasks.
inline std::string rendezvous_of_step() {
    const char* const nodes = std::getenv("SLURM_STEP_NODELIST");
    const char* const tasks = std::getenv("SLURM_STEP_NUM_TASKS");
    const char* const job = std::getenv("SLURM_JOB_ID");
    const char* const step = std::getenv("SLURM_STEP_ID");
    if (nodes == nullptr || tasks == nullptr || job == nullptr || step == nullptr) return {};
    if (std::string_view(tasks) == "1") return {};
    const std::uint64_t number =
        hash().add(std::string_view(job)).add(std::string_view(step)).value();
    return std::string(text(first_of_node_list(nodes), ":", 20000 + number % 10000));
}

// The place of this process. Where hvd's launcher says nothing, and there is a rendezvous, it is
// that of the innermost of the others: mpirun may itself run in a step of Slurm. A batch script has
// a SLURM_PROCID, too, and is no rank.
inline tcp_options place_from_environment() {
    struct launcher {
        const char *rank, *size;
    };
    constexpr launcher others[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
    tcp_options own = launched_options<tcp_options>();
    if (variable_that_is_set("HVD_RANK") != nullptr || variable_that_is_set("HVD_SIZE") != nullptr)
        return own;
    if (own.rendezvous.empty()) own.rendezvous = rendezvous_of_step();
    if (own.rendezvous.empty()) return own;
    for (const launcher& l : others) {
        const char* const rank = variable_that_is_set(l.rank);
        const char* const size = variable_that_is_set(l.size);
        if (rank == nullptr || size == nullptr) continue;
        configuration place;
        place.add("tcp.rank", rank, l.rank);
        place.add("tcp.size", size, l.size);
        return place.apply(std::move(own));
    }
    return own;
}

}  // namespace hvd::inline v0::detail
