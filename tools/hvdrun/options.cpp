// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "options.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "allocation.hpp"
#include "command_line.hpp"
#include "environment.hpp"
#include "failure.hpp"
#include "manual.hpp"
#include "numbers.hpp"
#include "process.hpp"
#include "settings.hpp"

namespace hvdrun {
namespace {

// The texts that CLI11 reads, before they are looked at.
struct raw_options {
    std::string hosts, hostfile, backend = "tcp", mpi_args;
    std::string ssh_command, ssh_identity, passed_on, file;
    int ssh_port = 0;
    std::vector<std::string> variables;
    std::vector<std::pair<const setting*, std::string>> settings;
    std::vector<double> cooldown;
};

const described_program own_pages = {
    "hvdrun",
    HVDRUN_VERSION,
    "start a program of hvd on several ranks",
    "[options] program [arguments]",
    "0 if all ranks ended with 0; 1 if hvdrun failed; 2 for a wrong command line; 126 or 127 if "
    "the program cannot be started or is not there; 128 and the number of a signal that ended the "
    "job; else that of the first rank that failed.",
    "hvdrun -np 4 ./train\n"
    "hvdrun -H node1:4,node2:4 ./train --epochs 3\n"
    "hvdrun --hostfile hosts --output-filename out ./train\n"
    "hvdrun -np 4 --min-np 2 ./train\n"
    "hvdrun --backend mpi -np 4 ./train_mpi\n"
    "hvdrun --check -H node1,node2",
    "docs/launching.md",
    true};

constexpr int most_elastic_ranks = 4096;

// Refuses a word that is no number, or is out of bounds, and hands it to CLI11 without zeros before
// it, which CLI11 would read as octal.
template <class Number>
CLI::Validator number(Number low, Number high = std::numeric_limits<Number>::max()) {
    const auto check = [=](std::string& word) {
        Number value{};
        if (read_decimal(word, value) && value >= low && value <= high) {
            if constexpr (std::is_integral_v<Number>) word = std::to_string(value);
            return std::string();
        }
        std::string text = "\"" + word + "\" is no " +
                           (std::is_integral_v<Number> ? "whole " : "") + "number from " +
                           decimal(double(low));
        const bool is_open = high == std::numeric_limits<Number>::max();
        return text + (is_open ? " on" : " to " + decimal(double(high)));
    };
    return CLI::Validator(check, "");
}

constexpr double shortest_time = 0.001;  // seconds

void describe_elastic(CLI::App& app, options& o, raw_options& raw) {
    const CLI::Validator of_ranks = number(1, most_elastic_ranks);
    app.add_option("--min-np,--min-num-proc", o.min_np,
                   "elastic: the job goes on with so many ranks (-np)")
        ->transform(of_ranks);
    app.add_option("--max-np,--max-num-proc", o.max_np,
                   "elastic: it grows to so many, as slots come (-np)")
        ->transform(of_ranks);
    app.add_option(
        "--host-discovery-script", o.discovery_script,
        "elastic: a command that prints the hosts: lines host:slots; asked once a second");
    app.add_option("--slots-per-host", o.slots_per_host,
                   "elastic: slots of a host that is printed without a number (1)")
        ->transform(number(1, 1 << 16));
    app.add_option("--reset-limit", o.reset_limit,
                   "elastic: so many times the ranks of the job may change (any number)")
        ->transform(number(0, 1 << 30));
    app.add_option(
           "--blacklist-cooldown-range", raw.cooldown,
           "elastic: LOW HIGH, seconds before a slot whose process has failed gets another; "
           "they double with each failure in a row (1 60)")
        ->expected(2)
        ->transform(number(shortest_time));
    app.add_option("--elastic-timeout", o.elastic_timeout,
                   "elastic: seconds in which enough slots and ranks must come (600)")
        ->transform(number(shortest_time, 2'592'000.0));
}

class help_formatter : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: hvdrun [options] program [arguments]\n";
    }
};

void describe_settings(CLI::App& app, raw_options& raw) {
    for (const setting& one : settings()) {
        const auto take = [&raw, &one](const std::string& value) {
            raw.settings.emplace_back(&one, value);
        };
        const std::string help = std::string(one.help) + " (" + one.variable + ")";
        if (has_value(one.kind)) app.add_option_function<std::string>(one.option, take, help);
        else app.add_flag_callback(one.option, [take] { take(""); }, help);
    }
}

void describe(CLI::App& app, options& o, raw_options& raw) {
    app.set_help_flag("-h,--help", "print this and end");
    app.set_version_flag("--version", "hvdrun " HVDRUN_VERSION, "print the version and end");
    app.description(
        "hvdrun starts a program of hvd on several ranks, here and on other hosts. -np N is short "
        "for --num-proc N.");
    app.formatter(std::make_shared<help_formatter>());
    app.footer("Examples:\n" + own_pages.examples);
    app.add_option("--generate", raw.file)
        ->check(CLI::IsMember({"manual", "bash", "zsh"}))
        ->group("");  // it is for the build, and --help does not tell it
    app.add_option("-n,--num-proc,--np", o.ranks, "number of ranks (all slots of the hosts)")
        ->transform(number(1, 1 << 20));
    app.add_option("-H,--hosts,--host", raw.hosts, "hosts and their slots: host:slots,host:slots");
    app.add_option("--hostfile,--machinefile", raw.hostfile, "a file of lines \"host slots=N\"");
    app.add_option("--backend", raw.backend, "tcp or mpi (tcp)")
        ->check(CLI::IsMember({"tcp", "mpi"}));
    app.add_option("--output-filename", o.output_folder,
                   "a folder; each rank's output is also written to rank.N/stdout and stderr");
    app.add_flag("--prefix-timestamp,--timestamp,--prefix-output-with-timestamp", o.timestamps,
                 "begin each line of output with the time");
    app.add_option(
           "--start-timeout", o.start_timeout,
           "seconds in which remote hosts must start the program, and lost ranks of elastic "
           "jobs come back (30)")
        ->transform(number(shortest_time));
    app.add_option("--kill-after", o.kill_after,
                   "seconds between SIGTERM and SIGKILL when a job ends (5)")
        ->transform(number(0.0));
    app.add_flag("--stdin", o.takes_input, "rank 0 gets the standard input");
    app.add_option("--forward-signals", raw.passed_on,
                   "USR1,USR2: signals that are passed on to the ranks, and end no job");
    app.add_option("--event-log", o.event_log, "a file for events, one JSON object a line");
    app.add_option("-x", raw.variables, "NAME or NAME=VALUE: a variable for all ranks")
        ->take_all()
        ->allow_extra_args(false);
    app.add_option("--network-interface,--network-interfaces", o.interface,
                   "the interfaces, eth0,ib0, whose addresses the ranks are told");
    app.add_option("--ssh-command", raw.ssh_command,
                   "starts {command} on {host} (ssh -o BatchMode=yes {host} {command})");
    app.add_option("-p,--ssh-port", raw.ssh_port, "the port of ssh")->transform(number(1, 65535));
    app.add_option("-i,--ssh-identity-file", raw.ssh_identity, "the key of ssh");
    app.add_option("--secret-file", o.secret_file,
                   "a file of mode 0600 with the job's secret (a new one is made)");
    app.add_option("--max-restarts", o.max_restarts,
                   "so many times the job is started again when it fails (0)")
        ->transform(number(0, 1 << 30));
    describe_elastic(app, o, raw);
    describe_settings(app, raw);
    app.add_option("--mpi-args", raw.mpi_args, "more arguments for mpirun, mpiexec or srun");
    app.add_option("--mpi-launcher", o.mpi_launcher, "the program that starts MPI jobs");
    app.add_flag("--verbose", o.verbose, "say what is started where");
    app.add_flag("--dry-run", o.dry_run, "print the commands, and start nothing");
    CLI::Option* const check =
        app.add_flag("--check", o.check, "print a table of the hosts, and start nothing");
    app.add_option("--data-service", o.data_service,
                   "with --check: the config file of a data service whose processes are asked, too")
        ->needs(check);
}

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
void add_settings(options& o, const raw_options& raw) {
    for (const auto& [which, given] : raw.settings) {
        const std::string value = value_of(*which, given);
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
        if (found == 0 || found == SIGKILL || found == SIGSTOP || found == SIGCHLD ||
            is_of_fault(found))
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

words ssh_words(const raw_options& raw) {
    if (raw.ssh_command.empty()) {
        words result = {"ssh", "-o", "BatchMode=yes"};
        if (raw.ssh_port > 0) result.insert(result.end(), {"-p", std::to_string(raw.ssh_port)});
        if (!raw.ssh_identity.empty()) result.insert(result.end(), {"-i", raw.ssh_identity});
        result.insert(result.end(), {"{host}", "{command}"});
        return result;
    }
    if (raw.ssh_port > 0 || !raw.ssh_identity.empty())
        throw usage_failure("-p and -i are for ssh: --ssh-command has options of its own");
    words result = split(raw.ssh_command, "--ssh-command");
    for (const std::string& word : result)
        if (word.find("{command}") != std::string::npos) {
            never_ask(result);
            return result;
        }
    throw usage_failure("--ssh-command " + raw.ssh_command + ": it has no {command}");
}

void look_at_elastic(options& o, const CLI::App& app, const raw_options& raw, int asked) {
    const bool is_elastic = o.min_np > 0 || o.max_np > 0 || !o.discovery_script.empty();
    for (const char* name :
         {"--slots-per-host", "--reset-limit", "--blacklist-cooldown-range", "--elastic-timeout"})
        if (!is_elastic && app.count(name) > 0)
            throw usage_failure(std::string(name) +
                                ": only elastic jobs have it; they need --min-np, --max-np or "
                                "--host-discovery-script");
    if (!is_elastic) return;
    if (o.chosen == backend::mpi) {
        for (const char* name : {"--max-np", "--host-discovery-script", "--reset-limit",
                                 "--blacklist-cooldown-range", "--elastic-timeout"})
            if (app.count(name) > 0)
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
    if (o.discovery_script.empty() && app.count("--slots-per-host") > 0)
        throw usage_failure("--slots-per-host needs --host-discovery-script");
    if (!raw.cooldown.empty()) o.cooldown = {raw.cooldown[0], raw.cooldown[1]};
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

void look_at(options& o, const CLI::App& app, const raw_options& raw) {
    if (!raw.hosts.empty() && !raw.hostfile.empty())
        throw usage_failure("-H and --hostfile: only one of them can name the hosts");
    if (!raw.hosts.empty()) o.hosts = parse_hosts(raw.hosts);
    if (!raw.hostfile.empty()) o.hosts = read_hostfile(raw.hostfile);
    o.chosen = raw.backend == "mpi" ? backend::mpi : backend::tcp;
    o.passed_on = signals_of(raw.passed_on);
    o.mpi_args = split(raw.mpi_args, "--mpi-args");
    o.ssh_command = ssh_words(raw);
    o.variables = variables_of(raw.variables);
    add_settings(o, raw);
    if (app.count("--config-file") > 0 && ::access(o.variables["HVD_CONFIG"].c_str(), R_OK) != 0)
        throw usage_failure("--config-file " + o.variables["HVD_CONFIG"] +
                            ": the file cannot be read");
    if (o.hosts.empty() && o.discovery_script.empty()) o.hosts = allocated_hosts();
    const int asked = o.ranks;
    if (o.ranks == 0) o.ranks = number_of_slots(o.hosts);
    look_at_elastic(o, app, raw, asked);
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

// CLI11 begins an error with the first name of the option.
std::string as_spelled(const std::string& text, const std::map<std::string, std::string>& spelled) {
    const std::size_t end = std::min(text.find(": "), text.size());
    const auto found = spelled.find(text.substr(0, end));
    return found == spelled.end() ? text : found->second + text.substr(end);
}

[[noreturn]] void print_and_end(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    flush_output();
    std::exit(0);
}

}  // namespace

options read_options(int argc, char** argv) {
    CLI::App app("", "hvdrun");
    options result;
    raw_options raw;
    command_line line;
    describe(app, result, raw);
    const auto find = [&](const std::string& name, known_option& known) {
        const CLI::Option* const option = app.get_option_no_throw(name);
        if (option != nullptr) known = {option->get_name(), option->get_items_expected_min()};
        return option != nullptr;
    };
    try {
        line = read_words(words(argv + 1, argv + argc), find);
        app.parse(words(line.own.rbegin(), line.own.rend()));
    } catch (const CLI::Success& end) {
        std::ostringstream printed;
        app.exit(end, printed);
        print_and_end(printed.str());
    } catch (const CLI::ParseError& error) {
        throw usage_failure(as_spelled(error.what(), line.spelled));
    }
    if (!raw.file.empty()) print_and_end(installed_file(app, own_pages, raw.file));
    result.program = line.program;
    look_at(result, app, raw);
    return result;
}

}  // namespace hvdrun
