// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

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
    const host_list& hosts() const { return hosts_; }

private:
    bool begin(double now);
    void end_process();
    void take_result(const ending& how);

    const std::string script_;
    const int slots_per_host_;
    process process_;
    std::string printed_, errors_, why_;
    host_list hosts_;
    double started_at_ = -1e9;
};

// Waits until the command shows enough slots. Its failure is an error.
host_list discover(const std::string& script, int slots_per_host, int slots, double patience);

}  // namespace hvdrun
