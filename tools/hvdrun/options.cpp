// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "options.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include <unistd.h>

#include "allocation.hpp"
#include "environment.hpp"
#include "failure.hpp"
#include "given_options.hpp"
#include "process.hpp"
#include "settings.hpp"

namespace hvdrun {
namespace {

std::map<std::string, std::string> variables_of(const std::vector<std::string>& given) {
    std::map<std::string, std::string> result;
    for (const std::string& one : given) {
        const std::size_t equals = one.find('=');
        const std::string name = one.substr(0, equals);
        if (!is_name(name)) throw usage_failure("-x " + one + ": this is no name of a variable");
        const char* here = std::getenv(name.c_str());
        if (equals == std::string::npos && here == nullptr)
            throw usage_failure("-x " + one + ": the variable is not set");
        const std::string value = equals != std::string::npos ? one.substr(equals + 1) : here;
        if (result.emplace(name, value).first->second != value)
            throw usage_failure("-x " + name + ": it is given twice, with different values");
    }
    return result;
}

// Options are variables for all ranks. One that -x sets to another value is refused; one of the
// environment gives way, and that is said.
void add_settings(options& o, const given_options& given) {
    for (const auto& [which, text] : given.settings) {
        const std::string value = value_of(*which, text);
        const std::string name = which->variable;
        const auto [place, is_new] = o.variables.emplace(name, value);
        if (place->second != value)
            throw usage_failure(std::string(which->option) + " sets " + name + "=" + value +
                                ", and another option sets " + name + "=" + place->second);
        const char* const here = is_new ? std::getenv(name.c_str()) : nullptr;
        if (here != nullptr && value != here)
            o.remarks.push_back(std::string(which->option) + " sets " + name + "=" + value +
                                " in the place of " + here + ", which the environment has");
    }
}

void look_at_variables(const options& o) {
    for (const auto& [name, value] : o.variables)
        if (const std::string setter = setter_of(name, o); !setter.empty())
            throw usage_failure("-x " + name + ": " + setter);
}

// Reads names with commas between them, with or without SIG.
std::set<int> signals_of(const std::string& names) {
    std::set<int> result;
    std::istringstream text(names);
    for (std::string name; std::getline(text, name, ',');) {
        const std::string bare = name.rfind("SIG", 0) == 0 ? name.substr(3) : name;
        int found = 0;
        for (int signal = 1; signal < SIGRTMIN; ++signal)
            if (const char* known = sigabbrev_np(signal); known != nullptr && bare == known)
                found = signal;
        // hvdrun itself gets SIGPIPE when nobody reads its output.
        if (found == 0 || found == SIGKILL || found == SIGSTOP || found == SIGCHLD ||
            found == SIGPIPE || is_of_fault(found))
            throw usage_failure("--forward-signals " + names + ": \"" + name +
                                "\" is no signal that can be passed on");
        result.insert(found);
    }
    return result;
}

bool is_ssh(const std::string& program) { return program.substr(program.rfind('/') + 1) == "ssh"; }

// Nobody answers the questions of ssh: it fails instead, unless the user has it otherwise.
void never_ask(words& ssh) {
    for (const std::string& word : ssh)
        if (word.find("BatchMode") != std::string::npos) return;
    if (is_ssh(ssh[0])) ssh.insert(ssh.begin() + 1, {"-o", "BatchMode=yes"});
}

words ssh_words(const given_options& given) {
    if (given.ssh_command.empty()) {
        words result = {"ssh", "-o", "BatchMode=yes"};
        if (given.ssh_port > 0) result.insert(result.end(), {"-p", std::to_string(given.ssh_port)});
        if (!given.ssh_identity.empty()) result.insert(result.end(), {"-i", given.ssh_identity});
        result.insert(result.end(), {"{host}", "{command}"});
        return result;
    }
    if (given.ssh_port > 0 || !given.ssh_identity.empty())
        throw usage_failure("-p and -i are for ssh: --ssh-command has options of its own");
    words result = split(given.ssh_command, "--ssh-command");
    for (const std::string& word : result)
        if (word.find("{command}") != std::string::npos) {
            never_ask(result);
            return result;
        }
    throw usage_failure("--ssh-command " + given.ssh_command + ": it has no {command}");
}

void look_at_elastic(options& o, const given_options& given, int asked) {
    const bool is_elastic = o.min_np > 0 || o.max_np > 0 || !o.discovery_script.empty();
    for (const char* name :
         {"--slots-per-host", "--reset-limit", "--blacklist-cooldown-range", "--elastic-timeout"})
        if (!is_elastic && given.has(name))
            throw usage_failure(std::string(name) +
                                ": only elastic jobs have it; they need --min-np, --max-np or "
                                "--host-discovery-script");
    if (!is_elastic) return;
    if (o.chosen == backend::mpi) {
        for (const char* name : {"--max-np", "--host-discovery-script", "--reset-limit",
                                 "--blacklist-cooldown-range", "--elastic-timeout"})
            if (given.has(name))
                throw usage_failure(std::string(name) +
                                    ": MPI takes no new ranks; its elastic jobs have --min-np");
        if (o.max_restarts > 0)
            throw usage_failure(
                "--min-np and --max-restarts: a launcher that bears the loss of ranks tells of no "
                "failure, so that only one of them can be given");
    }
    if (!o.discovery_script.empty() && !o.hosts.empty())
        throw usage_failure(
            "-H, --hostfile and --host-discovery-script: only one of them can name the hosts");
    if (o.discovery_script.empty() && given.has("--slots-per-host"))
        throw usage_failure("--slots-per-host needs --host-discovery-script");
    if (!given.cooldown.empty()) o.cooldown = {given.cooldown[0], given.cooldown[1]};
    if (o.cooldown.low > o.cooldown.high)
        throw usage_failure("--blacklist-cooldown-range: the lower bound is above the upper one");
    const bool is_open = asked == 0 && !o.discovery_script.empty();
    if (o.ranks == 0) o.ranks = std::max(1, o.min_np);
    if (o.min_np == 0) o.min_np = std::min(o.ranks, o.max_np > 0 ? o.max_np : o.ranks);
    if (o.max_np == 0) o.max_np = is_open ? most_elastic_ranks : o.ranks;
    if (asked == 0) o.ranks = std::min(o.ranks, o.max_np);
    if (o.min_np > o.ranks || o.ranks > o.max_np)
        throw usage_failure("--min-np " + std::to_string(o.min_np) + ", -np " +
                            std::to_string(o.ranks) + ", --max-np " + std::to_string(o.max_np) +
                            ": each must be at most the next");
}

void look_at(options& o, const given_options& given) {
    if (!given.hosts.empty() && !given.hostfile.empty())
        throw usage_failure("-H and --hostfile: only one of them can name the hosts");
    if (!given.hosts.empty()) o.hosts = parse_hosts(given.hosts);
    if (!given.hostfile.empty()) o.hosts = read_hostfile(given.hostfile);
    o.chosen = given.backend == "mpi" ? backend::mpi : backend::tcp;
    o.passed_on = signals_of(given.passed_on);
    o.mpi_args = split(given.mpi_args, "--mpi-args");
    o.ssh_command = ssh_words(given);
    o.variables = variables_of(given.variables);
    add_settings(o, given);
    if (given.has("--config-file") && ::access(o.variables["HVD_CONFIG"].c_str(), R_OK) != 0)
        throw usage_failure("--config-file " + o.variables["HVD_CONFIG"] +
                            ": the file cannot be read");
    if (o.hosts.empty() && o.discovery_script.empty()) o.hosts = allocated_hosts();
    const int asked = o.ranks;
    if (o.ranks == 0) o.ranks = number_of_slots(o.hosts);
    look_at_elastic(o, given, asked);
    look_at_variables(o);
    if (o.check) return;
    for (std::string& text : replaced(o)) o.remarks.push_back(std::move(text));
    if (o.ranks == 0) throw usage_failure("give the number of ranks (-np) or hosts (-H)");
    if (o.program.empty()) throw usage_failure("give the program that is to be started");
    if (o.chosen == backend::mpi && !o.event_log.empty())
        throw usage_failure(
            "--event-log: the MPI's launcher starts and ends the ranks of an MPI "
            "job, so that hvdrun sees no events");
    if (o.chosen == backend::mpi && o.takes_input)
        throw usage_failure("--stdin: the MPI's launcher says who gets the standard input");
    if (o.chosen == backend::mpi && !o.passed_on.empty())
        throw usage_failure("--forward-signals: the MPI's launcher passes signals on by itself");
    if (o.chosen != backend::mpi && !(o.mpi_args.empty() && o.mpi_launcher.empty()))
        throw usage_failure("--mpi-args and --mpi-launcher need --backend mpi");
}

}  // namespace

options read_options(int argc, char** argv) {
    given_options given = read_given(argc, argv);
    options result = std::move(given.own);
    look_at(result, given);
    return result;
}

}  // namespace hvdrun
