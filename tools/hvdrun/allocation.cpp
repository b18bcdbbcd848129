// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "allocation.hpp"

#include <cstdlib>
#include <fstream>

#include "failure.hpp"

namespace hvdrun {
namespace {

std::string value_of(const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? "" : value;
}

usage_failure wrong(const std::string& where, const std::string& text, const char* expected) {
    return usage_failure(where + ": \"" + text + "\": " + expected);
}

// Calls `take(words)` for each line, which returns what it has expected if it is wrong.
template <class F>
host_list read_lines(const char* variable, F&& take) {
    const std::string path = value_of(variable);
    std::ifstream file(path);
    if (!file)
        throw usage_failure(std::string(variable) + "=" + path + ": the file cannot be read");
    host_list result;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        const auto all = words_of(line);
        const char* const expected = all.empty() ? nullptr : take(all, result);
        if (expected != nullptr)
            throw wrong(std::string(variable) + "=" + path + ":" + std::to_string(number), line,
                        expected);
    }
    if (result.empty())
        throw usage_failure(std::string(variable) + "=" + path + ": the file names no host");
    return result;
}

using line_words = std::vector<std::string_view>;

// LSF's LSB_DJOB_HOSTFILE and PBS's PBS_NODEFILE name a host once for each slot.
const char* take_name(const line_words& all, host_list& hosts) {
    if (all.size() != 1 || !is_host(all[0])) return "the name of a host was expected";
    add_slots(hosts, {std::string(all[0]), 1});
    return nullptr;
}

// SGE's PE_HOSTFILE has host, slots, queue and processors.
const char* take_sge(const line_words& all, host_list& hosts) {
    host_slots one;
    if (all.size() < 2 || !is_host(all[0]) || !read_slots(all[1], one.slots))
        return "a host and its slots were expected";
    one.host = all[0];
    add_slots(hosts, one);
    return nullptr;
}

// LSF's LSB_MCPU_HOSTS is "host slots host slots".
host_list read_pairs(const char* variable) {
    const std::string text = value_of(variable);
    const auto all = words_of(text);
    host_list result;
    for (std::size_t i = 0; i < all.size(); i += 2) {
        host_slots one;
        if (i + 1 == all.size() || !is_host(all[i]) || !read_slots(all[i + 1], one.slots))
            throw wrong(variable, text, "hosts, each with its slots, were expected");
        one.host = all[i];
        add_slots(result, one);
    }
    return result;
}

}  // namespace

// A shell in a step of one task, as of srun --pty, is no rank.
std::string launched_by() {
    for (const char* variable : {"HVD_RENDEZVOUS_SERVED", "OMPI_COMM_WORLD_RANK"})
        if (std::getenv(variable) != nullptr) return variable;
    for (const char* variable : {"PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (std::atoi(value_of(variable).c_str()) > 1) return variable;
    return "";
}

host_list allocated_hosts() {
    if (!launched_by().empty()) return {};
    if (!value_of("LSB_DJOB_HOSTFILE").empty()) return read_lines("LSB_DJOB_HOSTFILE", take_name);
    if (!value_of("LSB_MCPU_HOSTS").empty()) return read_pairs("LSB_MCPU_HOSTS");
    if (!value_of("PBS_NODEFILE").empty()) return read_lines("PBS_NODEFILE", take_name);
    if (!value_of("PE_HOSTFILE").empty()) return read_lines("PE_HOSTFILE", take_sge);
    return {};
}

}  // namespace hvdrun
