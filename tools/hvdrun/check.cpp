// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <sstream>

#include <poll.h>
#include <time.h>
#include <csignal>

#include "check_service.hpp"
#include "failure.hpp"
#include "mpi_version.hpp"
#include "process.hpp"
#include "remote.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

// Prints lines "name value" for a host, and the time for each line that it reads.
const char* const questions =
    "echo reached yes\n"
    "v=$(mpirun --version 2>/dev/null || mpiexec --version 2>/dev/null)\n"
    "case $v in *HYDRA*) v=\"MPICH $(echo \"$v\" | sed -n 's/.*Version: *//p')\";; esac\n"
    "echo mpi $(echo \"$v\" | head -n 1)\n"
    "echo gpu $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c)\n"
    "echo nccl $({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | "
    "sed -n 's/.*libnccl.so.* => //p' | head -n 1 | xargs -r readlink -f | sed 's/.*so\\.//')\n"
    "k=; for i in /sys/class/net/*; do n=${i##*/}; [ $n = lo ] || "
    "[ \"$(cat $i/operstate 2>/dev/null)\" = down ] || k=\"$k $n\"; done\n"
    "echo missing $(for c in setsid flock mkfifo dd; do command -v $c >/dev/null || echo $c; "
    "done)\n"
    "echo interfaces $k\n"
    "while read -r x; do echo clock $(date +%s%N); done\n";

constexpr int rounds = 5;

double time_of_day() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

struct host_report {
    std::string host, problem, missing, mpi, gpu, nccl, interfaces;
    double offset = 0, uncertainty = -1;  // of the clock, in seconds

    std::string clock() const {
        if (uncertainty < 0) return "?";
        char text[64];
        std::snprintf(text, sizeof text, "%+.1f ms ± %.1f", offset * 1e3, uncertainty * 1e3);
        return text;
    }
};

// A talk with the shell of a host.
class conversation {
public:
    conversation(const options& o, const placement& where) : limit_(seconds() + o.start_timeout) {
        process_ = where.is_local
                       ? start({"/bin/sh", "-c", questions}, own_environment(), true, SIGKILL)
                       : start(remote_command(o.ssh_command, where.host), own_environment(), true,
                               SIGKILL);
        if (!where.is_local) send(script_lines(std::string(questions) + "exit 0\n"));
    }
    conversation(const conversation&) = delete;
    conversation& operator=(const conversation&) = delete;
    ~conversation() {
        process_.input.close();
        ::kill(-process_.id, SIGKILL);
        reap(process_.id);
    }

    void send(const std::string& text) {
        write_all(process_.input.number(), text.data(), text.size());
    }
    // False at the end, or when the time is over.
    bool read_line(std::string& line) {
        std::size_t end = 0;
        while ((end = kept_.find('\n')) == std::string::npos)
            if (!read_some(process_.output, kept_)) return false;
        line = kept_.substr(0, end);
        kept_.erase(0, end + 1);
        return true;
    }
    std::string problem() {
        if (seconds() > limit_) return "no answer in time";
        std::string said;
        while (read_some(process_.errors, said)) {
        }
        while (!said.empty() && (said.back() == '\n' || said.back() == '\r')) said.pop_back();
        const std::size_t last = said.rfind('\n');
        return said.empty() ? "the connection was closed" : said.substr(last + 1);
    }

private:
    bool read_some(const file_descriptor& from, std::string& to) const {
        pollfd ready{from.number(), POLLIN, 0};
        const double left = limit_ - seconds();
        constexpr double longest = 1e6;  // poll takes an int of milliseconds
        const int milliseconds = int(std::min(left, longest) * 1000) + 1;
        if (left <= 0 || ::poll(&ready, 1, milliseconds) <= 0) return false;
        char bytes[4096];
        const ssize_t n = ::read(from.number(), bytes, sizeof bytes);
        if (n > 0) to.append(bytes, std::size_t(n));
        return n > 0;
    }

    double limit_;
    process process_;
    std::string kept_;
};

void take(const std::string& line, host_report& report) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "mpi") report.mpi = value;
    if (name == "missing") report.missing = value;
    if (name == "gpu") report.gpu = value;
    if (name == "nccl") report.nccl = value;
    if (name == "interfaces") report.interfaces = value;
}

// The clock there is compared with the middle of the shortest round.
void compare_clocks(conversation& talk, host_report& report) {
    for (int i = 0; i < rounds; ++i) {
        const double before = time_of_day();
        talk.send("time\n");
        std::string line;
        if (!talk.read_line(line) || line.rfind("clock ", 0) != 0) return;
        const double after = time_of_day(), there = std::atof(line.c_str() + 6) * 1e-9;
        const double half = (after - before) / 2;
        if (report.uncertainty >= 0 && half > report.uncertainty) continue;
        report.uncertainty = half;
        report.offset = there - (before + half);
    }
}

host_report ask(const options& o, const placement& where) {
    host_report report;
    report.host = where.host;
    try {
        conversation talk(o, where);
        bool is_reached = false;
        for (std::string line; talk.read_line(line);) {
            is_reached = is_reached || line == "reached yes";
            take(line, report);
            if (line.rfind("interfaces", 0) == 0) {
                if (!where.is_local && o.chosen == backend::tcp && !report.missing.empty())
                    report.problem = "yes, without " + report.missing;
                compare_clocks(talk, report);
                return report;
            }
        }
        report.problem = (is_reached ? "broken off: " : "not reached: ") + talk.problem();
    } catch (const failure& error) {
        report.problem = error.what();
    }
    return report;
}

// The columns of UTF-8 text.
std::size_t width(const std::string& text) {
    return std::size_t(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string or_none(const std::string& text) { return text.empty() ? "-" : text; }

row row_of(const host_report& report) {
    const std::string mpi = bare_version(report.mpi);
    return {report.host,
            report.problem.empty() ? "yes" : report.problem,
            or_none(mpi) + (mpi == HVDRUN_MPI || mpi.empty() ? "" : " (differs)"),
            or_none(report.gpu),
            or_none(report.nccl),
            or_none(report.interfaces),
            report.clock()};
}

// A job of MPI needs the same MPI on all hosts, and one of tcp none.
bool is_good(const host_report& report, backend chosen) {
    const bool needs_mpi = chosen == backend::mpi && *HVDRUN_MPI != 0;
    return report.problem.empty() && (!needs_mpi || bare_version(report.mpi) == HVDRUN_MPI);
}

}  // namespace

void print_table(const std::vector<row>& rows) {
    std::vector<std::size_t> widths(rows[0].size(), 0);
    for (const row& one : rows)
        for (std::size_t i = 0; i < one.size(); ++i) widths[i] = std::max(widths[i], width(one[i]));
    for (const row& one : rows) {
        std::string line;
        for (std::size_t i = 0; i < one.size(); ++i)
            line +=
                one[i] + std::string(i + 1 < one.size() ? widths[i] - width(one[i]) + 2 : 0, ' ');
        std::puts(line.c_str());
    }
}

int check_hosts(const options& o, const host_list& hosts) {
    std::vector<placement> places;
    for (const host_slots& one : hosts) places.push_back({0, one.host});
    find_local(places);
    std::vector<std::future<host_report>> asked;
    for (const placement& where : places)
        asked.push_back(std::async(std::launch::async, ask, std::cref(o), where));
    std::vector<row> rows = {{"host", "reached", "MPI", "GPUs", "NCCL", "interfaces", "clock"}};
    bool are_good = true;
    for (std::future<host_report>& one : asked) {
        const host_report report = one.get();
        rows.push_back(row_of(report));
        are_good = are_good && is_good(report, o.chosen);
    }
    std::printf("compiled with %s\n", *HVDRUN_MPI == 0 ? "no MPI" : HVDRUN_MPI);
    print_table(rows);
    if (!o.data_service.empty()) are_good = check_data_service(o.data_service) && are_good;
    return are_good ? 0 : 1;
}

}  // namespace hvdrun
