// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "options.hpp"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>

#include "failure.hpp"

namespace hvdrun {
namespace {

// The texts that CLI11 reads, before they are looked at.
struct raw_options {
    std::string hosts, hostfile, backend = "tcp", mpi_args;
    std::string ssh_command = "ssh -o BatchMode=yes {host} {command}";
    std::vector<std::string> variables;
    std::vector<double> cooldown;
};

constexpr int most_elastic_ranks = 4096;

// Refuses a word that is no number, or is out of bounds. CLI11's own bounds tell only of the
// latter.
template <class Number>
CLI::Validator number(Number low, Number high = std::numeric_limits<Number>::max()) {
    const auto check = [=](const std::string& word) {
        Number value{};
        if (CLI::detail::lexical_cast(word, value) && value >= low && value <= high)
            return std::string();
        std::ostringstream text;
        text << std::setprecision(10) << '"' << word << "\" is no "
             << (std::is_integral_v<Number> ? "whole " : "") << "number from " << low;
        if (high < std::numeric_limits<Number>::max()) text << " to " << high;
        else text << " on";
        return text.str();
    };
    return CLI::Validator(check, "");
}

constexpr double shortest_time = 0.001;  // seconds

void describe_elastic(CLI::App& app, options& o, raw_options& raw) {
    const CLI::Validator of_ranks = number(1, most_elastic_ranks);
    app.add_option("--min-np,--min-num-proc", o.min_np,
                   "elastic: the job goes on with so many ranks (-np)")
        ->check(of_ranks);
    app.add_option("--max-np,--max-num-proc", o.max_np,
                   "elastic: it grows to so many, as slots come (-np)")
        ->check(of_ranks);
    app.add_option(
        "--host-discovery-script", o.discovery_script,
        "elastic: a command that prints the hosts: lines host:slots; asked once a second");
    app.add_option("--slots-per-host", o.slots_per_host,
                   "elastic: slots of a host that is printed without a number (1)")
        ->check(number(1, 1 << 16));
    app.add_option("--reset-limit", o.reset_limit,
                   "elastic: so many processes may fail before the job does (any number)")
        ->check(number(0, 1 << 30));
    app.add_option(
           "--blacklist-cooldown-range", raw.cooldown,
           "elastic: LOW HIGH, seconds before a slot whose process has failed gets another; "
           "they double with each failure in a row (1 60)")
        ->expected(2)
        ->check(number(shortest_time));
    app.add_option("--elastic-timeout", o.elastic_timeout,
                   "elastic: seconds in which enough slots and ranks must come (600)")
        ->check(number(shortest_time, 2'592'000.0));
}

void describe(CLI::App& app, options& o, raw_options& raw) {
    app.set_help_flag("-h,--help", "print this and end");
    app.set_version_flag("--version", "hvdrun " HVDRUN_VERSION);
    app.description(
        "Starts a program of hvd on several ranks: hvdrun [options] program [arguments]. "
        "-np N is short for --num-proc N.");
    app.add_option("--num-proc,--np", o.ranks, "number of ranks (all slots of the hosts)")
        ->check(number(1, 1 << 20));
    app.add_option("-H,--hosts", raw.hosts, "hosts and their slots: host:slots,host:slots");
    app.add_option("--hostfile", raw.hostfile, "a file of lines \"host slots=N\"");
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
        ->check(number(shortest_time));
    app.add_option("--kill-after", o.kill_after,
                   "seconds between SIGTERM and SIGKILL when a job ends (5)")
        ->check(number(0.0));
    app.add_option("--event-log", o.event_log, "a file for events, one JSON object a line");
    app.add_option("-x", raw.variables, "NAME or NAME=VALUE: a variable for all ranks")
        ->take_all()
        ->allow_extra_args(false);
    app.add_option("--network-interface,--network-interfaces", o.interface,
                   "the interface whose address the ranks are told");
    app.add_option("--ssh-command", raw.ssh_command,
                   "starts {command} on {host} (ssh -o BatchMode=yes {host} {command})");
    app.add_option("--secret-file", o.secret_file,
                   "a file of mode 0600 with the job's secret (a new one is made)");
    app.add_option("--restart", o.restarts,
                   "so many times the job is started again when it fails (0)")
        ->check(number(0, 1 << 30));
    describe_elastic(app, o, raw);
    app.add_option("--mpi-args", raw.mpi_args, "more arguments for mpirun, mpiexec or srun");
    app.add_option("--mpi-launcher", o.mpi_launcher, "the program that starts MPI jobs");
    app.add_flag("--verbose", o.verbose, "say what is started where");
    app.add_flag("--dry-run", o.dry_run, "print the commands, and start nothing");
    app.add_flag("--check", o.check, "print a table of the hosts, and start nothing");
}

// Separates hvdrun's own arguments from the program, which is the first word that is no option.
// Horovod's and mpirun's -np is no option in POSIX's form. `spelled` tells how the user has spelled
// an option that CLI11 knows by this name.
words own_arguments(const CLI::App& app, const words& all, words& program,
                    std::map<std::string, std::string>& spelled) {
    words own;
    std::size_t i = 0;
    for (; i < all.size(); ++i) {
        const std::string given = all[i];
        std::string word = given;
        if (word == "--") {
            ++i;
            break;
        }
        if (word.size() < 2 || word[0] != '-') break;
        if (word == "-np") word = "--num-proc";
        if (word == "-hostfile") word = "--hostfile";
        const bool is_long = word[1] == '-';
        const std::string name = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
        const CLI::Option* option = app.get_option_no_throw(name);
        if (option == nullptr)
            throw usage_failure(name + ": there is no such option (hvdrun --help lists them)");
        spelled[option->get_name()] = word == given ? name : given;
        own.push_back(word);
        // The first value may be a part of the word.
        for (int n = word.size() > name.size() ? 1 : 0; n < option->get_items_expected_min(); ++n) {
            if (++i == all.size()) throw usage_failure(given + ": a value is missing");
            own.push_back(all[i]);
        }
    }
    program.assign(all.begin() + std::ptrdiff_t(i), all.end());
    return own;
}

bool is_name(const std::string& name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    for (const char c : name)
        if (!(c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c >= '0' && c <= '9')))
            return false;
    return true;
}

std::map<std::string, std::string> variables_of(const std::vector<std::string>& given) {
    std::map<std::string, std::string> result;
    for (const std::string& one : given) {
        const std::size_t equals = one.find('=');
        const std::string name = one.substr(0, equals);
        if (!is_name(name)) throw usage_failure("-x " + one + ": this is no name of a variable");
        const char* here = std::getenv(name.c_str());
        if (equals != std::string::npos) result[name] = one.substr(equals + 1);
        else if (here != nullptr) result[name] = here;
        else throw usage_failure("-x " + one + ": the variable is not set");
    }
    return result;
}

words ssh_words(const std::string& text) {
    words result = split(text, "--ssh-command");
    for (const std::string& word : result)
        if (word.find("{command}") != std::string::npos) return result;
    throw usage_failure("--ssh-command " + text + ": it has no {command}");
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
        if (o.restarts > 0)
            throw usage_failure(
                "--min-np and --restart: a launcher that bears the loss of ranks tells of no "
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
    o.mpi_args = split(raw.mpi_args, "--mpi-args");
    o.ssh_command = ssh_words(raw.ssh_command);
    o.variables = variables_of(raw.variables);
    const int asked = o.ranks;
    if (o.ranks == 0) o.ranks = number_of_slots(o.hosts);
    look_at_elastic(o, app, raw, asked);
    if (o.check) return;
    if (o.ranks == 0) throw usage_failure("give the number of ranks (-np) or hosts (-H)");
    if (o.program.empty()) throw usage_failure("give the program that is to be started");
    if (o.chosen == backend::mpi && !o.event_log.empty())
        throw usage_failure(
            "--event-log: the MPI's launcher starts and ends the ranks of an MPI "
            "job, so that hvdrun sees no events");
    if (o.chosen != backend::mpi && !(o.mpi_args.empty() && o.mpi_launcher.empty()))
        throw usage_failure("--mpi-args and --mpi-launcher need --backend mpi");
}

// CLI11 begins an error with the first name of the option.
std::string as_spelled(const std::string& text, const std::map<std::string, std::string>& spelled) {
    const std::size_t end = std::min(text.find(": "), text.size());
    const auto found = spelled.find(text.substr(0, end));
    return found == spelled.end() ? text : found->second + text.substr(end);
}

}  // namespace

options read_options(int argc, char** argv) {
    CLI::App app("", "hvdrun");
    options result;
    raw_options raw;
    std::map<std::string, std::string> spelled;
    describe(app, result, raw);
    try {
        words own = own_arguments(app, words(argv + 1, argv + argc), result.program, spelled);
        app.parse(words(own.rbegin(), own.rend()));
    } catch (const CLI::Success& end) {
        std::exit(app.exit(end));
    } catch (const CLI::ParseError& error) {
        throw usage_failure(as_spelled(error.what(), spelled));
    }
    look_at(result, app, raw);
    return result;
}

}  // namespace hvdrun
