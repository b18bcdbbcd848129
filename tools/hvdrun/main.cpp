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

namespace hvdrun {
namespace {

// The number of a stream that is closed would be that of a pipe or a file of hvdrun's own.
void open_streams() {
    for (int stream = 0; stream < 3; ++stream)
        if (fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
}

host_list hosts_of(const options& o) {
    if (!o.discovery_script.empty())
        return discover(o.discovery_script, o.slots_per_host, o.ranks, o.elastic_timeout);
    if (!o.hosts.empty()) return o.hosts;
    return {{"localhost", std::max({o.ranks, o.max_np, 1})}};
}

int run(const options& o) {
    const host_list hosts = hosts_of(o);
    if (o.check) return check_hosts(o, hosts);
    // An elastic job begins with as many ranks as there is room for.
    const int ranks = std::max(o.ranks, std::min(o.max_np, number_of_slots(hosts)));
    std::vector<placement> places = place(hosts, ranks);
    if (o.chosen == backend::mpi) {
        const mpi_launch launch = launch_by_mpi(o, places);
        if (!o.dry_run && o.restarts > 0) return run_again(launch, o.restarts, o.verbose);
        if (o.dry_run) std::puts(launch.line().c_str());
        else become(launch, o.verbose);
        return 0;
    }
    find_local(places);
    if (o.dry_run) {
        print_job(o, places);
        return 0;
    }
    return job(o, hosts, places).run();
}

}  // namespace
}  // namespace hvdrun

int main(int argc, char** argv) {
    hvdrun::open_streams();
    std::signal(SIGPIPE, SIG_IGN);  // whose end is closed is told by write()
    try {
        return hvdrun::run(hvdrun::read_options(argc, argv));
    } catch (const hvdrun::failure& end) {
        std::fprintf(stderr, "hvdrun: %s\n", end.what());
        return end.code();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "hvdrun: %s\n", error.what());
        return 1;
    }
}
