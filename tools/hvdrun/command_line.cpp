// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "command_line.hpp"

#include <optional>

#include "failure.hpp"

namespace hvdrun {
namespace {

struct spelling {
    const char* theirs;
    const char* ours;
};

// Long options with one dash.
constexpr spelling with_one_dash[] = {
    {"-np", "--num-proc"},          {"-hostfile", "--hostfile"},
    {"-machinefile", "--hostfile"}, {"-host", "--hosts"},
    {"-hosts", "--hosts"},          {"-output-filename", "--output-filename"},
    {"-verbose", "--verbose"},      {"-help", "--help"},
    {"-version", "--version"}};

// Options of other launchers, with what hvdrun has in their place. They may begin with one dash or
// two.
constexpr spelling elsewhere[] = {
    {"c", "-np N is the number of ranks"},
    {"N", "-H host:slots says how many ranks a host has"},
    {"ppn", "-H host:slots says how many ranks a host has"},
    {"perhost", "-H host:slots says how many ranks a host has"},
    {"npernode", "-H host:slots says how many ranks a host has"},
    {"map-by", "--mpi-args passes it on, with --backend mpi"},
    {"bind-to", "--mpi-args passes it on, with --backend mpi"},
    {"binding-args", "--mpi-args passes it on, with --backend mpi"},
    {"mca", "--mpi-args passes it on, with --backend mpi"},
    {"gmca", "--mpi-args passes it on, with --backend mpi"},
    {"oversubscribe", "-np may be any number without -H"},
    {"nooversubscribe", "-np is at most the slots that -H gives"},
    {"allow-run-as-root", "hvdrun needs no leave"},
    {"env", "-x NAME=VALUE sets a variable"},
    {"genv", "-x NAME=VALUE sets a variable"},
    {"envlist", "-x NAME passes a variable on"},
    {"genvlist", "-x NAME passes a variable on"},
    {"envall", "-x NAME passes a variable on"},
    {"genvall", "-x NAME passes a variable on"},
    {"wdir", "start hvdrun in that folder"},
    {"wd", "start hvdrun in that folder"},
    {"iface", "--network-interface NAME chooses it"},
    {"tag-output", "each line says its rank"},
    {"prepend-rank", "each line says its rank"},
    {"timestamp-output", "--timestamp begins lines with the time"},
    {"outfile-pattern", "--output-filename FOLDER has files of each rank"},
    {"gloo", "--backend tcp is the default"},
    {"tcp", "--backend tcp is the default"},
    {"mpi", "--backend mpi"},
    {"js", "--backend mpi --mpi-launcher jsrun"},
    {"check-build", "--check asks each host"},
    {"log-level", "hvd has no levels; --verbose says what is started where"},
    {"gloo-timeout-seconds", "--start-timeout, and -x HVD_TIMEOUT=30s for calls"},
    {"hierarchical-allreduce", "hvd reduces in nodes first by itself"},
    {"no-hierarchical-allreduce", "-x HVD_NODE_SIZE=1"},
    {"hierarchical-allgather", "hvd gathers in nodes first by itself"},
    {"num-nccl-streams", "the program chooses its streams"},
    {"mpi-threads-disable", "the program chooses its level of threads"}};

[[noreturn]] void refuse(const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    const std::string bare = name.substr(name.find_first_not_of('-'));
    for (const spelling& one : elsewhere)
        if (bare == one.theirs)
            throw usage_failure(name + ": there is no such option; " + one.ours);
    throw usage_failure(name + ": there is no such option (hvdrun --help lists them)");
}

// An option as a word tells it.
struct told_option {
    std::string name;
    std::optional<std::string> value;  // in the same word
};

bool is_attachable(const std::string& name, char next) {
    return name == "-H" || name == "-x" || (next >= '0' && next <= '9');
}

told_option read_word(const std::string& word) {
    const std::size_t equals = word.find('=');
    const bool has_equals = equals != std::string::npos;
    told_option whole{word.substr(0, equals), std::nullopt};
    if (has_equals) whole.value = word.substr(equals + 1);
    if (word[1] == '-' || word.size() == 2) return whole;
    for (const spelling& one : with_one_dash)
        if (whole.name == one.theirs) return {one.ours, whole.value};
    const std::string letter = word.substr(0, 2);
    if (!is_attachable(letter, word[2])) refuse(word);
    return {letter, word.substr(2)};
}

}  // namespace

command_line read_words(const words& all,
                        const std::function<bool(const std::string&, known_option&)>& find) {
    command_line result;
    std::size_t i = 0;
    for (; i < all.size(); ++i) {
        const std::string& given = all[i];
        if (given == "--") {
            ++i;
            break;
        }
        if (given.size() < 2 || given[0] != '-') break;
        const told_option told = read_word(given);
        known_option known;
        if (!find(told.name, known)) refuse(given);
        result.spelled[known.name] =
            given.substr(0, told.value && given[1] == '-' ? given.find('=') : given.npos);
        if (known.values == 0 && told.value)
            throw usage_failure(given + ": this option takes no value");
        result.own.push_back(told.name);
        if (told.value) result.own.push_back(*told.value);
        for (int n = told.value ? 1 : 0; n < known.values; ++n) {
            if (++i == all.size()) throw usage_failure(given + ": a value is missing");
            result.own.push_back(all[i]);
        }
    }
    result.program.assign(all.begin() + std::ptrdiff_t(i), all.end());
    return result;
}

}  // namespace hvdrun
