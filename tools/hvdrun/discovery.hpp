// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "cooldowns.hpp"
#include "hosts.hpp"
#include "process.hpp"

namespace hvdrun {

// Asks a command of the user which hosts there are, once a second.
class discovery {
public:
    discovery(const std::string& script, int slots_per_host)
        : script_(script), slots_per_host_(slots_per_host) {}
    discovery(const discovery&) = delete;
    discovery& operator=(const discovery&) = delete;
    ~discovery() { end_process(); }

    // Starts the command when it is time, and takes what it prints. Returns true when it has ended.
    bool look(double now);
    bool is_running() const { return process_.id > 0; }
    pid_t id() const { return process_.id; }
    // Why its last run was a failure, or an empty text, and then the hosts that it has printed.
    const std::string& why() const { return why_; }
    // For how long it has printed no host, or 0. An answer without hosts is a failure, too: that of
    // a pipe whose first command fails.
    double empty_for() const { return is_empty_ ? ended_at_ - empty_since_ : 0; }
    bool is_empty() const { return is_empty_; }
    const host_list& hosts() const { return hosts_; }

private:
    bool begin(double now);
    void end_process();
    void take_result(const ending& how);
    void note_empty(double now);

    const std::string script_;
    const int slots_per_host_;
    process process_;
    std::string printed_, errors_, why_;
    host_list hosts_;
    bool is_empty_ = false;
    double started_at_ = -1e9, ended_at_ = 0, empty_since_ = never;
};

// Says that the command has printed no host for so many seconds.
std::string empty_too_long(const std::string& script, double patience);

// Waits until the command shows enough slots. Its failure is an error, but it may print no host at
// first.
host_list discover(const std::string& script, int slots_per_host, int slots, double patience);

}  // namespace hvdrun
