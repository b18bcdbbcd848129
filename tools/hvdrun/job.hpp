// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <deque>
#include <string>
#include <vector>

#include <poll.h>

#include "events.hpp"
#include "failure.hpp"
#include "guard.hpp"
#include "options.hpp"
#include "output.hpp"
#include "rank.hpp"
#include "rendezvous.hpp"
#include "secret.hpp"
#include "signals.hpp"

namespace hvdrun {

// A static job that hvdrun starts and watches itself: it ends when all ranks have, or when one has
// failed.
class job {
public:
    job(const options& o, std::vector<placement> places);

    // Returns the exit code: 0, or that of the first failure.
    int run();

private:
    void start_all();
    void start(rank& one);
    bool is_over() const;

    void turn();
    void wait_for_something();
    void move_bytes();
    void note_full(const failure& full);
    void look_at_ranks();
    void look_at_rendezvous();
    void look_at_clock();
    void note_start(rank& one);
    void note_end(const rank& one);
    void look_at_failures();
    std::string failure_of(const rank& one) const;
    void end_all(int code, const std::string& why);
    void finish_ended();
    void leave(rank& one);
    void show_status();
    std::string place_of(const rank& one) const;

    const options& options_;
    guard guard_;
    signal_watch signals_;
    event_log events_;
    screen screen_;
    job_secret secret_;
    rendezvous rendezvous_;
    std::string address_;
    std::deque<rank> ranks_;
    std::vector<const rank*> failed_;  // before hvdrun has ended any, in their order
    std::vector<pollfd> files_;
    double started_at_ = 0, ending_since_ = 0;
    int exit_code_ = 0, hosts_ = 0;
    int ending_step_ = 0;  // 1: TERM has been sent, 2: KILL, 3: connections are closed
    bool has_told_rendezvous_ = false, has_remote_ = false;
    std::string why_, last_event_;
};

// Prints what a job would start where.
void print_job(const options& o, const std::vector<placement>& places);

}  // namespace hvdrun
