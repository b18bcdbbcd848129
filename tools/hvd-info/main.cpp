// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Tells what hvd finds here, what is wrong, and what to do about it: hvd-info, or hvdrun -np 2 -H
// a,b hvd-info for all ranks of a job.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks.hpp"
#include "options.hpp"
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
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw std::runtime_error(std::string("the report cannot be written: ") + strerror(errno));
    return has_wrong(checks) ? 1 : 0;
}

}  // namespace
}  // namespace hvd_info

int main(int argc, char** argv) {
    std::signal(SIGCHLD, SIG_DFL);  // where it was ignored, every child seems to have ended well
    std::vector<std::string> checks;
    for (const hvd_info::known_check& one : hvd_info::known_checks) checks.emplace_back(one.name);
    checks.emplace_back("ranks");
    const hvd_info::options o = hvd_info::read_options(argc, argv, checks);
    try {
        return hvd_info::run(o);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "hvd-info: %s\n", error.what());
        return 1;
    }
}
