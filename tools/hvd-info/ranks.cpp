// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "ranks.hpp"

#include <map>
#include <set>
#include <sstream>

#include <hvd/tcp.hpp>

#include "../hvdrun/mpi_version.hpp"
#include "mpi_program.hpp"

namespace hvd_info {
namespace {

using namespace std::chrono_literals;

// The first line that hvd-info-mpi prints, and the reports below it.
struct mpi_answer {
    int rank = 0, size = 0;
    std::string level, cuda_aware;
    std::vector<rank_report> reports;
};

mpi_answer read_answer(const std::string& text) {
    mpi_answer result;
    std::istringstream in(text);
    in >> result.rank >> result.size >> result.level >> result.cuda_aware;
    for (std::size_t bytes = 0; in >> bytes && bytes < text.size();) {
        in.get();  // the newline
        std::string one(bytes, ' ');
        in.read(one.data(), std::streamsize(bytes));
        result.reports.push_back(from_text(one));
    }
    return result;
}

const char* launcher_of(const place_in_job& place) {
    return place.launcher == "MPICH" ? "MPICH or Intel MPI" : place.launcher.c_str();
}

void take(const mpi_answer& answer, const context& c, gathered& result) {
    result.meeting.add("MPI thread level", answer.level);
    result.meeting.add("MPI is CUDA-aware", answer.cuda_aware);
    if (answer.level != "multiple")
        result.meeting.note("MPI gives the thread level " + answer.level +
                                ": asynchronous calls go on only inside of hvd's calls",
                            "take an MPI that is built with thread support (MPI_THREAD_MULTIPLE)");
    if (c.place.is_of_mpi() && answer.size == 1) {
        result.have_met = false;
        result.meeting.wrong(
            std::string("each process is rank 0 of 1: the launcher, of ") + launcher_of(c.place) +
                ", says that it started " + std::to_string(c.place.size) + " (" + c.place.variable +
                "), and the MPI of hvd, " + HVD_INFO_MPI + ", knows one",
            pair_of(hvdrun::mpi_of(HVD_INFO_MPI)) +
                (c.place.launcher == "Slurm" ? "; or srun --mpi=pmix, --mpi=pmi2" : ""));
        return;
    }
    if (answer.size > 1) result.all = answer.reports;
}

// MPI also starts without a launcher, as a job of one: that shows whether it can.
void gather_by_mpi(const context& c, const rank_report& own, gathered& result) {
    result.have_met = !c.place.is_of_mpi();
    if (!has_mpi_program(result.meeting)) return;
    const child_end end = run_mpi_program({}, 60, to_text(own));
    if (end.is_good()) {
        result.have_met = true;
        take(read_answer(end.output), c, result);
        return;
    }
    result.meeting.wrong("MPI does not start: " + end.reason(),
                         "look at the checks of disk, network and mpi first; the MPI's own words "
                         "come with: " +
                             std::string(c.place.is_of_mpi() ? "" : "mpiexec -n 1 ") +
                             "hvd-info-mpi < /dev/null");
}

void gather_by_tcp(const rank_report& own, gathered& result) {
    try {
        auto world = hvd::communicator<hvd::tcp>::world({.timeout = 60s});
        const std::string text = to_text(own);
        const auto bytes = world.allgather(std::vector<std::uint8_t>(text.begin(), text.end()));
        for (std::size_t r = 0; world.rank() == 0 && r < bytes.counts.size(); ++r) {
            const auto begin = bytes.values.begin() + std::ptrdiff_t(bytes.displacements[r]);
            result.all.push_back(
                from_text(std::string(begin, begin + std::ptrdiff_t(bytes.counts[r]))));
        }
    } catch (const hvd::error& error) {
        result.have_met = false;
        result.meeting.wrong(std::string("the ranks do not meet: ") + error.what(),
                             "the text names the cause; hvdrun --check looks at each host, and "
                             "--network-interface chooses the way between them");
    }
}

// "rank 1 (host b)", or "ranks 1, 3 (host b)".
std::string names_of(const std::vector<const rank_report*>& ranks) {
    std::string numbers;
    std::set<std::string> hosts;
    for (const rank_report* one : ranks) {
        numbers += (numbers.empty() ? "" : ", ") + std::to_string(one->rank);
        hosts.insert(one->host);
    }
    std::string names;
    for (const std::string& host : hosts) names += (names.empty() ? "" : ", ") + host;
    return (ranks.size() > 1 ? "ranks " : "rank ") + numbers + " (host " + names + ")";
}

using by_value = std::map<std::string, std::vector<const rank_report*>>;

// "rank 1 (host b) has 0.0.9", of a fact that may be missing there.
std::string who_has(const by_value::value_type& one) {
    const bool is_one = one.second.size() == 1;
    if (one.first.empty())
        return names_of(one.second) + (is_one ? " does not have it" : " do not have it");
    return names_of(one.second) + (is_one ? " has " : " have ") + one.first;
}

// The most frequent value is taken for the right one; of equals, that of the lowest rank.
void tell_odd(check_report& report, const std::string& what, const by_value& values,
              bool is_wrong) {
    const auto* most = &*values.begin();
    for (const auto& one : values)
        if (one.second.size() > most->second.size() ||
            (one.second.size() == most->second.size() &&
             one.second.front()->rank < most->second.front()->rank))
            most = &one;
    for (const auto& one : values) {
        if (&one == most) continue;
        const std::string problem = what + ": " + who_has(one) + ", and " + who_has(*most);
        if (is_wrong)
            report.wrong(problem,
                         "make it the same on all ranks: one build of hvd and of the "
                         "program, one MPI, one set of variables (hvdrun -x)");
        else report.note(problem, "check that it is meant so: the slowest rank sets the pace");
    }
}

// Differences by which a job fails or computes something else. Others cost time, and hosts may have
// other names of interfaces.
bool fails_by(const std::string& check, const std::string& name) {
    for (const char* device : {"_IFNAME", "_INTERFACE", "_HCA"})
        if (name.ends_with(device)) return false;
    return check == "mpi" || check == "variables" || (check == "build" && name == "version");
}

void compare_hosts(check_report& report, const std::vector<rank_report>& all) {
    std::map<std::string, std::set<std::string>> machines;  // by name
    std::map<std::string, int> ranks;
    for (const rank_report& one : all) {
        ++ranks[one.host];
        for (const check_report& check : one.checks)
            for (const fact& f : check.facts)
                if (f.name == "machine") machines[one.host].insert(f.value);
    }
    std::string text;
    for (const auto& [host, number] : ranks)
        text += (text.empty() ? "" : ", ") + host + ": " + std::to_string(number);
    report.add("hosts", text);
    for (const auto& [host, numbers] : machines)
        if (numbers.size() > 1)
            report.wrong(std::to_string(numbers.size()) + " machines have the name " + host +
                             ": MPI and NCCL take them for one, and fail to share memory",
                         "give each host a name of its own: hostnamectl hostname NAME, docker run "
                         "--hostname");
}

}  // namespace

// Where MPI brings no ranks together, hvd::tcp may: srun starts its programs, too.
gathered gather(const context& c, const rank_report& own) {
    gathered result;
    result.have_met = true;
    const bool has_mpi = *HVD_INFO_MPI != 0;
    if (has_mpi && (c.place.is_of_mpi() || c.place.is_alone())) {
        gather_by_mpi(c, own, result);
    } else if (c.place.launcher == "hvdrun" ||
               !hvd::detail::is_alone(hvd::detail::place_from_environment())) {
        gather_by_tcp(own, result);
    } else if (!c.place.is_alone()) {
        result.have_met = false;
        result.meeting.wrong("a launcher of MPI has started " + std::to_string(c.place.size) +
                                 " processes, and this hvd was compiled without MPI",
                             "start programs of hvd::tcp by hvdrun, or compile hvd with the MPI");
    }
    return result;
}

void compare(check_report& report, const std::vector<rank_report>& all) {
    if (all.empty()) return;
    report.add("size", std::to_string(all.size()));
    compare_hosts(report, all);
    std::set<std::pair<std::string, std::string>> names;
    for (const rank_report& one : all)
        for (const check_report& check : one.checks)
            for (const fact& f : check.facts)
                if (f.is_same_on_all) names.emplace(check.name, f.name);
    for (const auto& [check_name, name] : names) {
        by_value values;
        for (const rank_report& one : all) {
            std::string value;
            for (const check_report& check : one.checks)
                for (const fact& f : check.facts)
                    if (check.name == check_name && f.name == name) value = f.value;
            values[value].push_back(&one);
        }
        if (values.size() > 1)
            tell_odd(report, check_name + ", " + name, values, fails_by(check_name, name));
    }
}

}  // namespace hvd_info
