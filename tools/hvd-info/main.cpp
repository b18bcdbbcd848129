// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tells what hvd finds here, what is wrong, and what to do about it: hvd-info, or hvdrun -np 2 -H
// a,b hvd-info for all ranks of a job.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "../hvdrun/manual.hpp"
#include "checks.hpp"
#include "ranks.hpp"

namespace hvd_info {
namespace {

struct known_check {
    const char* name;
    check_report (*run)(const context&);
};

constexpr known_check known_checks[] = {{"build", check_build},
                                        {"mpi", check_mpi},
                                        {"cores", check_cores},
                                        {"caches", check_caches},
                                        {"memory", check_memory},
                                        {"disk", check_disk},
                                        {"gpu", check_gpu},
                                        {"network", check_network},
                                        {"variables", check_variables},
                                        {"self-test", check_self_test}};

struct options {
    bool is_json = false;
    std::vector<std::string> only;
    std::string root, file;

    bool wants(const std::string& name) const {
        return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
    }
};

void describe(CLI::App& app, options& o) {
    app.description(
        "Prints facts of hvd, MPI, this host, its GPUs and its network, what is wrong, and what to "
        "do about it. Started on the ranks of a job, it also compares them. The exit code is 1 if "
        "something is wrong.");
    std::vector<std::string> names;
    for (const known_check& one : known_checks) names.emplace_back(one.name);
    names.emplace_back("ranks");
    app.add_flag("--json", o.is_json, "print JSON");
    app.add_option("--only", o.only, "run only these checks, with commas between")
        ->delimiter(',')
        ->check(CLI::IsMember(names));
    app.add_option("--sysroot", o.root, "read /proc and /sys below this folder, as lscpu does");
    app.add_option("--generate", o.file)
        ->check(CLI::IsMember({"manual", "bash", "zsh"}))
        ->group("");
}

const hvdrun::described_program own_pages = {
    "hvd-info",
    HVD_INFO_VERSION,
    "what hvd finds here, and what is wrong",
    "[options]",
    "0 if nothing is wrong; 1 if something is; 2 for a wrong command line.",
    "hvd-info\nhvd-info --json --only gpu,network\nhvdrun -np 4 -H node1:2,node2:2 hvd-info\n"
    "mpiexec -n 2 hvd-info",
    "docs/questions.md"};

rank_report look(const options& o, const context& c) {
    rank_report own{c.place.rank, host_name(), {}};
    for (const known_check& one : known_checks) {
        if (!o.wants(one.name)) continue;
        try {
            own.checks.push_back(one.run(c));
        } catch (const std::exception& error) {
            own.checks.push_back({one.name, {}, {}});
            own.checks.back().wrong(std::string("the check fails: ") + error.what(),
                                    "report it with this output");
        }
    }
    return own;
}

void print_all(const options& o, const std::vector<check_report>& checks,
               const std::vector<rank_report>& ranks) {
    if (!o.is_json) {
        print(checks);
        std::puts(has_wrong(checks) ? "something is WRONG, see above" : "nothing is wrong");
        return;
    }
    nlohmann::json all = {{"good", !has_wrong(checks)}, {"checks", to_json(checks)}};
    for (const rank_report& one : ranks)
        all["ranks"].push_back(
            {{"rank", one.rank}, {"host", one.host}, {"checks", to_json(one.checks)}});
    std::puts(all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// Findings of other ranks. Those that rank 0 has as well are told once.
void add_findings_of(const rank_report& other, const std::vector<check_report>& known,
                     check_report& to) {
    const auto is_known = [&](const finding& f) {
        for (const check_report& check : known)
            for (const finding& k : check.findings)
                if (k.problem == f.problem) return true;
        return false;
    };
    for (const check_report& check : other.checks)
        for (const finding& f : check.findings)
            if (!is_known(f))
                to.findings.push_back({f.level,
                                       "rank " + std::to_string(other.rank) + " (host " +
                                           other.host + "): " + f.problem,
                                       f.remedy});
}

// Rank 0 speaks for all. A launcher ends the others when one ends with an error, so that they end
// with 0.
int run(const options& o) {
    const context c{system_files(o.root), place_in_job::of_environment()};
    rank_report own = look(o, c);
    gathered met;
    met.have_met = true;
    if (o.wants("ranks")) met = gather(c, own);
    if (c.place.rank > 0) {
        if (met.have_met) return 0;
        if (!o.is_json)
            for (const finding& f : met.meeting.findings)
                std::fprintf(stderr, "hvd-info, process %d: %s\n", c.place.rank, f.problem.c_str());
        return 0;
    }
    compare(met.meeting, met.all);
    for (const rank_report& other : met.all)
        if (other.rank != 0) add_findings_of(other, own.checks, met.meeting);
    std::vector<check_report> checks = own.checks;
    if (!met.meeting.facts.empty() || !met.meeting.findings.empty()) checks.push_back(met.meeting);
    print_all(o, checks, met.all);
    return has_wrong(checks) ? 1 : 0;
}

}  // namespace
}  // namespace hvd_info

int main(int argc, char** argv) {
    CLI::App app("", "hvd-info");
    hvd_info::options o;
    hvd_info::describe(app, o);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& end) {
        return app.exit(end);
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "hvd-info: %s\n", error.what());
        return 2;
    }
    if (!o.file.empty()) {
        std::fputs(hvdrun::installed_file(app, hvd_info::own_pages, o.file).c_str(), stdout);
        return 0;
    }
    try {
        return hvd_info::run(o);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "hvd-info: %s\n", error.what());
        return 1;
    }
}
