// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <poll.h>

#include "connection.hpp"
#include "discovery.hpp"
#include "epochs.hpp"
#include "events.hpp"
#include "failure.hpp"
#include "guard.hpp"
#include "meeting_place.hpp"
#include "options.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "rank.hpp"
#include "restart.hpp"
#include "secret.hpp"
#include "signals.hpp"
#include "slots.hpp"

namespace hvdrun {

// The records of a job. Those of all its runs are in the same files.
struct job_records {
    explicit job_records(const options& o) : events(o.event_log) {}

    event_log events;
    int runs = 0;
    std::set<int> have_files;  // slots
};

// A job that hvdrun starts and watches itself. It ends when all ranks have, or when its slots tell
// that it cannot go on: a static one when a rank has failed.
class job {
public:
    // It begins in these places of the hosts.
    job(const options& o, const host_list& hosts, const std::vector<placement>& places,
        job_records& records);

    // Returns the exit code: 0, or that of the first failure.
    run_end run();

private:
    // A rank that has failed by itself.
    struct failed_rank {
        int exit_code;
        double at;
        std::string text;
    };

    void start_first();
    void start(const placement& where);
    void start_there(rank& one, environment variables);
    connection& connection_to(const placement& where);

    void turn();
    void wait_for_something();
    void take_signals();
    void pass_input();
    void move_bytes();
    void look_at_hosts();
    void start_and_end();
    void show_status();

    // Its events, and the ends of ranks.
    void look_at_events();
    std::vector<const rank*> take_ended();
    void note_start(rank& one);
    void note_end(const rank& one);
    void note(const job_event& one);
    void note_epoch(const job_event& next);
    void tell_loss(const epoch_change& change);
    void note_reset(const epoch_change& change, const std::vector<failed_rank>& lost);
    void note_work(const job_event& one);
    void note_progress(double at);
    void note_job_end(double at);
    void judge(const rank& ended);
    std::string failure_of(const rank& one) const;
    failed_rank failed_of(const rank& one) const;
    std::string why_ended(const rank& one) const;

    // The end of the job.
    void look_at_full();
    void look_at_obstacles();
    void look_at_shortfall();
    void look_at_clock();
    void look_at_start(rank& one);
    bool is_ending() const { return ending_since_ > 0; }
    void end_all(int code, const std::string& why);
    void end_for_good(int code, const std::string& why);
    void finish_ended();
    void leave(rank& one);
    void finish_connections();

    const options& options_;
    const int size_at_start_;
    guard guard_;
    signal_watch signals_;
    job_records& records_;
    event_log& events_;
    screen screen_;
    job_secret secret_;
    std::vector<std::string> addresses_;  // of this host for the ranks
    std::unique_ptr<meeting_place> meeting_place_;
    std::string address_;
    slots slots_;
    epochs epochs_;
    progress progress_;
    double progress_told_at_ = 0;  // 0: nobody has done a step
    std::unique_ptr<discovery> discovery_;
    std::string why_not_discovered_;
    std::list<connection> connections_;  // not more than one of a host is usable
    std::list<rank> ranks_;              // that are not finished
    // Those that have failed since the job could go on, and since the last epoch began.
    std::vector<failed_rank> failed_, missing_;
    std::vector<pollfd> files_;
    double started_at_ = 0, ending_since_ = 0;
    int exit_code_ = 0, resets_ = 0;
    const bool inherits_ = inherits_processes();
    bool takes_input_ = false;  // rank 0 gets the standard input, which has not ended
    bool has_remote_ = false, is_for_good_ = false, is_slow_told_ = false;
    std::string why_, last_event_;
    std::string ended_early_;  // a rank that ended with 0 before the job was done
};

std::string name_of(const placement& where);

// Prints what a job would start where.
void print_job(const options& o, const std::vector<placement>& places);

}  // namespace hvdrun
