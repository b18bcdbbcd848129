// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <utility>

#include "server.hpp"
#include "service_config.hpp"

namespace hvd::inline v0::detail {

// Sleeps until it is woken, or for some nanoseconds.
inline void sleep_until_woken(wake_up& wakes, std::int64_t nanoseconds) {
    pollfd p{wakes.number(), POLLIN, 0};
    poll_sockets(&p, 1, nanoseconds);
    if (p.revents != 0) wakes.take();
}

constexpr std::int64_t service_rest = 200 * tuning::millisecond;

// The times between tries to find a process that was lost: short at first, since another one may
// be in its place already.
class growing_rest {
public:
    std::int64_t next() { return std::exchange(rest_, std::min(2 * rest_, service_rest)); }
    void begin_again() { rest_ = first; }

private:
    static constexpr std::int64_t first = service_rest / 10;
    std::int64_t rest_ = first;
};

// The config as the file says it now, where it comes from a file: a dispatcher may have been
// replaced by one at another address.
inline data::service_config current_config(const data::service_config& known) {
    if (known.path.empty()) return known;
    try {
        data::service_config written = data::service_config::read(known.path);
        return written.job_id == known.job_id ? written : known;
    } catch (const error&) {
        return known;
    }
}

// The connection of a worker or a trainer to its dispatcher.
class dispatcher_link {
public:
    dispatcher_link(data::service_config config, service_hello mine)
        : config_(std::move(config)),
          mine_(mine),
          secret_(service_secret(config_.key, "the config's key")) {}

    bool is_open() const { return is_open_; }
    service_link& link() { return link_; }
    const message& why() const { return why_; }
    void close() { is_open_ = false; }

    // Connects to the dispatcher that the config names now.
    bool open() {
        link_ = service_link();  // to a host that may be gone
        config_ = current_config(config_);
        if (mine_.dispatcher >= config_.addresses.size()) {
            why_ = text("the config has no address of dispatcher ", mine_.dispatcher);
            return false;
        }
        service_dial dial(secret_, mine_, most_control_bytes);
        is_open_ = dial.to(config_.addresses[mine_.dispatcher], link_);
        if (!is_open_) why_ = text("dispatcher ", mine_.dispatcher, ": ", dial.why());
        return is_open_;
    }

private:
    data::service_config config_;
    service_hello mine_;
    shared_secret secret_;
    service_link link_;
    bool is_open_ = false;
    message why_;
};

}  // namespace hvd::inline v0::detail
