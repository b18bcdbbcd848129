// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvdrun {

// A host and the number of ranks that it may have.
struct host_slots {
    std::string host;
    int slots = 1;
};
using host_list = std::vector<host_slots>;

// Where a rank runs.
struct placement {
    int rank = 0;
    std::string host;
    int local_rank = 0;
    int local_size = 1;
    bool is_local = false;  // on the host of hvdrun
};

// Reads -H: `host:slots,host:slots`. A host without slots has one; a host that is named again gets
// more of them.
host_list parse_hosts(const std::string& text);

constexpr int most_slots = 1 << 16;
constexpr const char* slots_expected = "slots must be a number from 1 to 65536";

// The parts of the texts that name hosts.
bool is_host(std::string_view name);
bool read_slots(std::string_view text, int& number);
std::vector<std::string_view> words_of(std::string_view line);
// Reads `name`, `name:slots` or `[IPv6]:slots`; slots that are not given are 0. Returns why it is
// none of them, or an empty string.
std::string read_host(std::string_view text, host_slots& result);

// Reads a file of hosts, in the forms of Horovod, Open MPI, MPICH and Slurm: `host slots=2`,
// `host:2`, `host*2`, comments after #.
host_list read_hostfile(const std::string& path);

// Reads what a command of the user prints: lines `host:slots` or `host`, and comments after #. A
// host without slots has `slots_per_host`.
host_list read_discovered(const std::string& text, int slots_per_host);

int number_of_slots(const host_list& hosts);

// Fills the hosts with ranks in their order.
std::vector<placement> place(const host_list& hosts, int ranks);

// Gives a host more slots, or adds it.
void add_slots(host_list& hosts, host_slots more);

// True if this is the full name of this host, which is `own`. Hosts of different domains may have
// the same first label.
bool is_own_name(std::string_view name, std::string_view own);

// Gives each host the first of its names: names of this host, and those with a common address, are
// one host, whose slots add up. `said` gets a message for each name that is not the first one.
host_list with_one_name_each(const host_list& hosts, std::vector<std::string>& said);

// Tells which of them are on this host.
void find_local(std::vector<placement>& places);

// The addresses at which other hosts may reach this one: those of the named interfaces, or all,
// first the one from which packets to the first other host leave. A job that stays on this host has
// the loopback address. Link-local ones have their interface, as in fe80::1%eth0.
std::vector<std::string> own_addresses(const std::vector<placement>& places,
                                       const std::string& interfaces, bool others_may_come);

// The same as others must write it. They have interfaces of their own.
std::string for_others(const std::vector<std::string>& addresses);

}  // namespace hvdrun
