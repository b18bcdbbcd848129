// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "given_options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>

#include "command_line.hpp"
#include "failure.hpp"
#include "manual.hpp"
#include "numbers.hpp"

namespace hvdrun {
namespace {

const described_program own_pages = {
    "hvdrun",
    HVD_TOOLS_VERSION,
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

constexpr double shortest_time = 0.001, longest_time = 2'592'000;  // seconds

void describe_elastic(CLI::App& app, options& o, given_options& given) {
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
           "--blacklist-cooldown-range", given.cooldown,
           "elastic: LOW HIGH, seconds before a slot whose process has failed gets another; "
           "they double with each failure in a row (1 60)")
        ->expected(2)
        ->transform(number(shortest_time));
    app.add_option("--elastic-timeout", o.elastic_timeout,
                   "elastic: seconds in which enough slots and ranks must come (600)")
        ->transform(number(shortest_time, longest_time));
}

class help_formatter : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string) const override {
        return "Usage: hvdrun [options] program [arguments]\n";
    }
};

void describe_settings(CLI::App& app, given_options& given) {
    for (const setting& one : settings()) {
        const auto take = [&given, &one](const std::string& value) {
            given.settings.emplace_back(&one, value);
        };
        const std::string help = std::string(one.help) + " (" + one.variable + ")";
        if (has_value(one.kind)) app.add_option_function<std::string>(one.option, take, help);
        else app.add_flag_callback(one.option, [take] { take(""); }, help);
    }
}

void describe(CLI::App& app, options& o, given_options& given) {
    app.set_help_flag("-h,--help", "print this and end");
    app.set_version_flag("--version", "hvdrun " HVD_TOOLS_VERSION, "print the version and end");
    app.description(
        "hvdrun starts a program of hvd on several ranks, here and on other hosts. -np N is short "
        "for --num-proc N.");
    app.formatter(std::make_shared<help_formatter>());
    app.footer("Examples:\n" + own_pages.examples);
    app.add_option("--generate", given.file)
        ->check(CLI::IsMember({"manual", "bash", "zsh"}))
        ->group("");  // it is for the build, and --help does not tell it
    app.add_option("-n,--num-proc,--np", o.ranks, "number of ranks (all slots of the hosts)")
        ->transform(number(1, 1 << 20));
    app.add_option("-H,--hosts,--host", given.hosts,
                   "hosts and their slots: host:slots,host:slots");
    app.add_option("--hostfile,--machinefile", given.hostfile, "a file of lines \"host slots=N\"");
    app.add_option("--backend", given.backend, "tcp or mpi (tcp)")
        ->check(CLI::IsMember({"tcp", "mpi"}));
    app.add_option("--output-filename", o.output_folder,
                   "a folder; each rank's output is also written to rank.N/stdout and stderr");
    app.add_flag("--prefix-timestamp,--timestamp,--prefix-output-with-timestamp", o.timestamps,
                 "begin each line of output with the time");
    app.add_option(
           "--start-timeout", o.start_timeout,
           "seconds in which remote hosts must start the program, and lost ranks of elastic "
           "jobs come back (30)")
        ->transform(number(shortest_time, longest_time));
    app.add_option("--kill-after", o.kill_after,
                   "seconds between SIGTERM and SIGKILL when a job ends (5)")
        ->transform(number(0.0, longest_time));
    app.add_flag("--stdin", o.takes_input, "rank 0 gets the standard input");
    app.add_option("--forward-signals", given.passed_on,
                   "USR1,USR2: signals that are passed on to the ranks, and end no job");
    app.add_option("--event-log", o.event_log, "a file for events, one JSON object a line");
    app.add_option("-x", given.variables, "NAME or NAME=VALUE: a variable for all ranks")
        ->take_all()
        ->allow_extra_args(false);
    app.add_option("--network-interface,--network-interfaces", o.interface,
                   "the interfaces, eth0,ib0, whose addresses the ranks are told");
    app.add_option("--ssh-command", given.ssh_command,
                   "starts {command} on {host} (ssh -o BatchMode=yes {host} {command})");
    app.add_option("-p,--ssh-port", given.ssh_port, "the port of ssh")->transform(number(1, 65535));
    app.add_option("-i,--ssh-identity-file", given.ssh_identity, "the key of ssh");
    app.add_option("--secret-file", o.secret_file,
                   "a file of mode 0600 with the job's secret (a new one is made)");
    app.add_option("--max-restarts", o.max_restarts,
                   "so many times the job is started again when it fails (0)")
        ->transform(number(0, 1 << 30));
    describe_elastic(app, o, given);
    describe_settings(app, given);
    app.add_option("--mpi-args", given.mpi_args, "more arguments for mpirun, mpiexec or srun");
    app.add_option("--mpi-launcher", o.mpi_launcher, "the program that starts MPI jobs");
    app.add_flag("--verbose", o.verbose, "say what is started where");
    app.add_flag("--dry-run", o.dry_run, "print the commands, and start nothing");
    CLI::Option* const check =
        app.add_flag("--check", o.check, "print a table of the hosts, and start nothing");
    app.add_option("--data-service", o.data_service,
                   "with --check: the config file of a data service whose processes are asked, too")
        ->needs(check);
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

given_options read_given(int argc, char** argv) {
    CLI::App app("", "hvdrun");
    given_options given;
    command_line line;
    describe(app, given.own, given);
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
    if (!given.file.empty()) print_and_end(installed_file(app, own_pages, given.file));
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames())
            if (option->count() > 0) given.names.insert("--" + name);
    given.own.program = line.program;
    return given;
}

}  // namespace hvdrun
