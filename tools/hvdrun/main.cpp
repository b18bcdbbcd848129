// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <csignal>
#include <cstdio>

#include <fcntl.h>

#include "check.hpp"
#include "discovery.hpp"
#include "failure.hpp"
#include "job.hpp"
#include "mpi.hpp"
#include "options.hpp"
#include "process.hpp"
#include "signals.hpp"

namespace hvdrun {
namespace {

// The number of a stream that is closed would be that of a pipe or a file of hvdrun's own.
void open_streams() {
    for (int stream = 0; stream < 3; ++stream)
        if (fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
}

void say(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) std::fprintf(stderr, "hvdrun: %s\n", text.c_str());
}

host_list hosts_of(const options& o) {
    if (!o.discovery_script.empty())
        return discover(o.discovery_script, o.slots_per_host, o.ranks, o.elastic_timeout);
    if (!o.hosts.empty()) return o.hosts;
    return {{"localhost", std::max({o.ranks, o.max_np, 1})}};
}

// The hosts for ranks that hvdrun starts itself.
host_list distinct_hosts(const options& o) {
    std::vector<std::string> said;
    const host_list hosts = with_one_name_each(hosts_of(o), said);
    say(said);
    return hosts;
}

// An elastic job begins with as many ranks as there is room for.
std::vector<placement> places_of(const options& o, const host_list& hosts) {
    return place(hosts, std::max(o.ranks, std::min(o.max_np, number_of_slots(hosts))));
}

int run_by_mpi(const options& o) {
    const mpi_launch launch = launch_by_mpi(o, places_of(o, hosts_of(o)));
    if (o.dry_run) std::puts(launch.line().c_str());
    else if (o.max_restarts == 0 && !inherits_processes()) become(launch, o.verbose);
    else return run_again(o.max_restarts, [&] { return run_once(launch, o); });
    return 0;
}

// Each run asks for the hosts that are there. A signal that comes between two runs ends hvdrun, as
// it does before the first.
run_end run_job(const options& o, job_records& records) {
    const host_list hosts = distinct_hosts(o);
    std::vector<placement> places = places_of(o, hosts);
    find_local(places);
    const run_end ended = job(o, hosts, places, records).run();
    // It came after the end of the ranks.
    if (const int signal = signal_watch::asked_to_end(); signal != 0 && !ended.is_for_good)
        return {128 + signal, true};
    return ended;
}

int run(const options& o) {
    if (!o.check) say(o.remarks);
    if (o.check) return check_hosts(o, hosts_of(o));
    if (o.chosen == backend::mpi) return run_by_mpi(o);
    if (o.dry_run) {
        std::vector<placement> places = places_of(o, distinct_hosts(o));
        find_local(places);
        print_job(o, places);
        return 0;
    }
    ignore_without_ranks(o.passed_on);
    job_records records(o);
    return run_again(o.max_restarts, [&] { return run_job(o, records); });
}

}  // namespace
}  // namespace hvdrun

int main(int argc, char** argv) {
    hvdrun::open_streams();
    hvdrun::note_ignored_signals();
    hvdrun::end_at_signals();
    std::signal(SIGPIPE, SIG_IGN);  // whose end is closed is told by write()
    try {
        const int code = hvdrun::run(hvdrun::read_options(argc, argv));
        hvdrun::flush_output();
        return code;
    } catch (const hvdrun::failure& end) {
        std::fprintf(stderr, "hvdrun: %s\n", end.what());
        return end.code();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "hvdrun: %s\n", error.what());
        return 1;
    }
}
