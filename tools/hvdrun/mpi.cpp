// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "mpi.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocation.hpp"
#include "environment.hpp"
#include "failure.hpp"
#include "guard.hpp"
#include "mpi_version.hpp"
#include "output.hpp"
#include "process.hpp"

namespace hvdrun {
namespace {

// From this number of hosts on, mpirun connects to all of them itself.
constexpr std::size_t many_hosts = 64;

mpi_kind kind_of(const std::string& program, const std::string& version) {
    const std::string mpi = mpi_of(version);
    if (mpi == "Slurm") return mpi_kind::slurm;
    if (mpi == "Intel MPI") return mpi_kind::intel;
    if (mpi == "MPICH") return mpi_kind::mpich;
    if (mpi == "Open MPI") {
        const std::size_t digit = version.find_first_of("0123456789");
        const int major = digit == std::string::npos ? 4 : std::atoi(version.c_str() + digit);
        return major >= 5 ? mpi_kind::open_mpi_5 : mpi_kind::open_mpi_4;
    }
    throw failure(1, program +
                         ": this is no launcher of an MPI that hvdrun knows (Open MPI, MPICH, "
                         "Intel MPI, Slurm); its version is \"" +
                         version + "\"");
}

// The parts of a command line that is being made.
struct parts {
    const options& o;
    const host_list hosts;
    words command;

    void add(std::initializer_list<std::string> more) {
        command.insert(command.end(), more.begin(), more.end());
    }
    bool has_hosts() const { return !o.hosts.empty(); }
    std::string ranks() const { return std::to_string(o.ranks); }
    // a:2,b:4
    std::string hosts_with_slots() const {
        std::string result;
        for (const host_slots& one : hosts)
            result += (result.empty() ? "" : ",") + one.host + ":" + std::to_string(one.slots);
        return result;
    }
    // a,a,b,b,b,b
    std::string host_of_each_rank() const {
        std::string result;
        for (const host_slots& one : hosts)
            for (int i = 0; i < one.slots; ++i) result += (result.empty() ? "" : ",") + one.host;
        return result;
    }
    std::string names() const {
        std::string result;
        for (const host_slots& one : hosts) result += (result.empty() ? "" : ",") + one.host;
        return result;
    }
};

// The hosts with the numbers of ranks that they get.
host_list used_hosts(const std::vector<placement>& places) {
    host_list result;
    for (const placement& place : places)
        if (place.local_rank == 0) result.push_back({place.host, place.local_size});
    return result;
}

std::string joined(const std::map<std::string, std::string>& variables) {
    std::string result;
    for (const auto& [name, value] : variables) result += (result.empty() ? "" : ",") + name;
    return result;
}

// A rank has threads of its own, so that it is bound to no core. With one connection Open MPI 4 and
// 5 get half of an Ethernet's rate.
void add_open_mpi(parts& p, bool is_5, const std::map<std::string, std::string>& variables) {
    const auto mca = [&](const char* name, const std::string& value) {
        p.add({"--mca", name, value});
    };
    if (::geteuid() == 0) p.add({"--allow-run-as-root"});
    p.add({is_5 ? "-n" : "-np", p.ranks()});
    if (p.has_hosts()) p.add({is_5 ? "--host" : "-H", p.hosts_with_slots()});
    else p.add({is_5 ? "--host" : "-H", "localhost:" + p.ranks()});
    p.add({"--bind-to", "none", "--map-by", "slot"});
    if (p.hosts.size() > 1) mca("btl_tcp_links", "2");
    if (!is_5) mca("btl", "^openib");
    // The ranks of a job that has failed are gone at once, and not after a second.
    if (!is_5 && p.o.max_restarts > 0) mca("odls_base_sigkill_timeout", "0");
    if (!p.o.interface.empty()) {
        mca("btl_tcp_if_include", p.o.interface);
        if (is_5) p.add({"--prtemca", "prte_if_include", p.o.interface});
        else mca("oob_tcp_if_include", p.o.interface);
    }
    if (p.o.is_elastic()) {
        p.add({"--enable-recovery"});
        // Else the next rank that is lost ends the job after one has left with an exit code.
        if (is_5) p.add({"--runtime-options", "error-nonzero-status=0"});
        p.add({"-x", "HVD_ELASTIC_MIN_SIZE=" + std::to_string(p.o.min_np)});
    }
    if (!is_5 && p.hosts.size() >= many_hosts) {
        mca("plm_rsh_no_tree_spawn", "true");
        mca("plm_rsh_num_concurrent", std::to_string(p.hosts.size()));
    }
    for (const auto& [name, value] : variables) p.add({"-x", name});
}

void add_output_of_open_mpi_4(parts& p) {
    p.add({"--tag-output"});
    if (p.o.timestamps) p.add({"--timestamp-output"});
    if (!p.o.output_folder.empty()) p.add({"--output-filename", p.o.output_folder});
}

void add_output_of_open_mpi_5(parts& p) {
    std::string how = "tag";
    if (p.o.timestamps) how += ",timestamp";
    if (!p.o.output_folder.empty()) how += ",dir=" + p.o.output_folder;
    p.add({"--output", how});
}

bool has_equal_slots(const host_list& hosts) {
    for (const host_slots& one : hosts)
        if (one.slots != hosts.front().slots) return false;
    return true;
}

// Hydra, the launcher of MPICH and Intel MPI. Intel's takes one number of ranks for all hosts.
void add_hydra(parts& p, bool is_intel, const std::map<std::string, std::string>& variables) {
    if (is_intel && !has_equal_slots(p.hosts))
        throw usage_failure(
            "Intel MPI's launcher takes hosts with equal numbers of ranks, and "
            "they have " +
            p.hosts_with_slots());
    p.add({"-n", p.ranks()});
    if (p.has_hosts() && is_intel)
        p.add({"-hosts", p.names(), "-ppn", std::to_string(p.hosts.front().slots)});
    else if (p.has_hosts()) p.add({"-hosts", p.hosts_with_slots()});
    if (!is_intel) p.add({"-bind-to", "none"});
    if (p.o.interface.find(',') != std::string::npos)
        throw usage_failure("--network-interface " + p.o.interface +
                            ": MPICH's and Intel MPI's launchers take one interface");
    if (!p.o.interface.empty()) p.add({"-iface", p.o.interface});
    p.add({"-prepend-rank"});
    if (p.o.timestamps)
        throw usage_failure("--timestamp: MPICH's and Intel MPI's launchers print no times");
    if (!p.o.output_folder.empty())
        p.add({"-outfile-pattern", p.o.output_folder + "/rank.%r.stdout", "-errfile-pattern",
               p.o.output_folder + "/rank.%r.stderr"});
    if (!variables.empty()) p.add({"-genvlist", joined(variables)});
}

// srun ends the job when a rank fails, and leaves the choice of cores to the program.
void add_srun(parts& p, const std::map<std::string, std::string>& variables) {
    p.add({"--ntasks=" + p.ranks()});
    if (p.has_hosts()) p.add({"--nodelist=" + p.host_of_each_rank(), "--distribution=arbitrary"});
    p.add({"--kill-on-bad-exit=1", "--cpu-bind=none", "--label"});
    if (p.o.timestamps) throw usage_failure("--timestamp: srun prints no times");
    if (!p.o.output_folder.empty())
        p.add({"--output=" + p.o.output_folder + "/rank.%t.stdout",
               "--error=" + p.o.output_folder + "/rank.%t.stderr"});
    p.add({"--export=ALL" + (variables.empty() ? "" : "," + joined(variables))});
}

void add_launcher(parts& p, mpi_kind kind, const std::map<std::string, std::string>& variables) {
    if (p.o.is_elastic() && kind != mpi_kind::open_mpi_4 && kind != mpi_kind::open_mpi_5)
        throw usage_failure(
            "--min-np: this launcher ends the job when a rank dies; --max-restarts starts it "
            "again");
    switch (kind) {
        case mpi_kind::open_mpi_4:
            add_open_mpi(p, false, variables);
            return add_output_of_open_mpi_4(p);
        case mpi_kind::open_mpi_5:
            add_open_mpi(p, true, variables);
            return add_output_of_open_mpi_5(p);
        case mpi_kind::mpich: return add_hydra(p, false, variables);
        case mpi_kind::intel: return add_hydra(p, true, variables);
        case mpi_kind::slurm: return add_srun(p, variables);
    }
}

}  // namespace

mpi_launcher find_mpi_launcher(const std::string& wanted) {
    words candidates = {"mpirun", "mpiexec", "mpiexec.hydra"};
    if (std::getenv("SLURM_JOB_ID") != nullptr) candidates.insert(candidates.begin(), "srun");
    if (!wanted.empty()) candidates = {wanted};
    for (const std::string& name : candidates) {
        if (find_program(name).empty()) continue;
        return {kind_of(name, version_of(name)), name};
    }
    throw failure(127, "no launcher of MPI was found: " + line_of(candidates) +
                           " (--mpi-launcher names another one)");
}

std::string mpi_launch::line() const {
    std::string result;
    for (const auto& [name, value] : variables) result += name + "=" + for_shell(value) + " ";
    return result + line_of(command);
}

mpi_launch launch_by_mpi(const options& o, const std::vector<placement>& places) {
    if (const std::string outer = launched_by(); !outer.empty() && outer != "HVD_RENDEZVOUS_SERVED")
        throw usage_failure("--backend mpi: this is a rank of another job (" + outer +
                            " is set), and no launcher of MPI starts inside of one");
    const mpi_launcher launcher = find_mpi_launcher(o.mpi_launcher);
    parts p{o, used_hosts(places), {launcher.program}};
    environment variables = forwarded(o), own = secret_of_user(o);
    own.insert(o.variables.begin(), o.variables.end());
    variables.insert(own.begin(), own.end());
    add_launcher(p, launcher.kind, variables);
    p.command.insert(p.command.end(), o.mpi_args.begin(), o.mpi_args.end());
    p.command.insert(p.command.end(), o.program.begin(), o.program.end());
    return {p.command, own, o.output_folder};
}

void become(const mpi_launch& launch, bool verbose) {
    if (verbose) std::fprintf(stderr, "hvdrun: %s\n", launch.line().c_str());
    if (!launch.folder.empty()) make_folder(launch.folder);
    for (const auto& [name, value] : launch.variables) ::setenv(name.c_str(), value.c_str(), 1);
    for (const auto& [name, value] : contract({}, {}, 0, "")) ::unsetenv(name.c_str());
    std::vector<char*> arguments;
    for (const std::string& word : launch.command)
        arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    reset_signals();
    ::execvp(arguments[0], arguments.data());
    throw failure(127, launch.command[0] + ": it cannot be started: " + strerror(errno));
}

namespace {

volatile sig_atomic_t asked_to_end = 0;
volatile sig_atomic_t running = 0;  // the process of the command

// A launcher ends its job by these three, and passes others on.
void pass_on(int number) {
    const bool is_for_ranks = number == SIGUSR1 || number == SIGUSR2;
    const bool is_known = number == SIGINT || number == SIGTERM || number == SIGHUP;
    if (!is_for_ranks) asked_to_end = number;
    if (running > 0) ::kill(-pid_t(running), is_for_ranks || is_known ? number : SIGTERM);
}

// The child of a fork becomes the launcher, of a process group that the guard knows. It may not
// read from a terminal then.
[[noreturn]] void become_group(const mpi_launch& launch, bool verbose, pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) ::_exit(1);
    if (::isatty(0) == 1) ::dup2(::open("/dev/null", O_RDONLY), 0);
    try {
        become(launch, verbose);
    } catch (const failure& end) {
        std::fprintf(stderr, "hvdrun: %s\n", end.what());
        ::_exit(end.code());
    }
}

// Returns the status of the process, and reaps others that this one inherits.
int wait_for(pid_t child) {
    for (;;) {
        int status = 0;
        const pid_t ended = ::waitpid(inherits_processes() ? -1 : child, &status, 0);
        if (ended == child) return status;
        if (ended < 0 && errno != EINTR) return 0;
    }
}

}  // namespace

// Signals wait until the number of the process is known.
run_end run_once(const mpi_launch& launch, const options& o) {
    guard watched(o.kill_after + 2);
    sigset_t all, before;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, &before);
    for (const int number : ending_signals())
        if (!is_of_fault(number)) ::signal(number, pass_on);
    if (asked_to_end != 0) return {128 + asked_to_end, true};
    const pid_t parent = ::getpid(), child = ::fork();
    if (child < 0) throw failure(1, std::string("fork: ") + strerror(errno));
    if (child == 0) become_group(launch, o.verbose, parent);
    setpgid(child, child);  // whoever comes first
    watched.watch(child);
    running = child;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    const int status = wait_for(child);
    running = 0;
    watched.forget(child);
    if (asked_to_end != 0) return {128 + asked_to_end, true};
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), false};
}

}  // namespace hvdrun
