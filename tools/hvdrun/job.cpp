// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "job.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>

#include "environment.hpp"
#include "failure.hpp"
#include "remote.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

constexpr double time_to_hear = 0.2;
constexpr std::size_t most_named = 4;

std::string rendezvous_at(const std::string& address, int port) {
    const bool is_v6 = address.find(':') != std::string::npos;
    return (is_v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

std::string short_time(double s) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", s);
    return text;
}

std::string long_time(double s) {
    const int whole = int(s);
    char text[32];
    std::snprintf(text, sizeof text, "%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

int number_of_hosts(const std::vector<placement>& places) {
    std::set<std::string> hosts;
    for (const placement& place : places) hosts.insert(place.host);
    return int(hosts.size());
}

}  // namespace

// The guard comes first: nothing is open yet that it would hold.
job::job(const options& o, std::vector<placement> places)
    : options_(o),
      guard_(o.kill_after + 2),
      events_(o.event_log),
      screen_(o.timestamps),
      secret_(o.secret_file),
      rendezvous_(int(places.size()), secret_.digits()),
      address_(rendezvous_at(own_address(places, o.interface), rendezvous_.port())),
      hosts_(number_of_hosts(places)) {
    if (secret_.is_temporary()) guard_.watch_file(secret_.path());
    for (const placement& place : places) {
        ranks_.emplace_back(place);
        has_remote_ = has_remote_ || !place.is_local;
    }
}

int job::run() {
    allow_many_files();
    start_all();
    rendezvous_.serve(signals_.wake());
    while (!is_over()) turn();
    events_.add("finished", {{"code", exit_code_}, {"seconds", seconds() - started_at_}});
    screen_.show_status("");
    if (!why_.empty()) screen_.say(why_);
    return exit_code_;
}

void job::start_all() {
    started_at_ = seconds();
    events_.add("job", {{"ranks", int(ranks_.size())},
                        {"hosts", hosts_},
                        {"program", line_of(options_.program)},
                        {"rendezvous", address_}});
    try {
        for (rank& one : ranks_) start(one);
    } catch (const failure&) {
        for (rank& one : ranks_)
            if (one.id() > 0) one.kill_connection(), one.finish();
        throw;
    }
}

void job::start(rank& one) {
    const placement& where = one.where();
    const int ranks = int(ranks_.size());
    if (!options_.output_folder.empty())
        one.open_files(options_.output_folder, ranks, options_.timestamps);
    if (options_.verbose) screen_.say(place_of(one) + ": " + line_of(options_.program));
    environment variables = contract(where, ranks, address_, options_.interface);
    if (where.is_local) {
        variables["HVD_SECRET_FILE"] = secret_.path();
        variables.insert(options_.variables.begin(), options_.variables.end());
        variables.merge(own_environment());
        one.start_here(options_.program, variables);
    } else {
        variables.merge(forwarded(options_));
        one.start_there(
            remote_command(options_.ssh_command, where.host),
            remote_script({variables, secret_.digits(), std::filesystem::current_path().string(),
                           options_.program, options_.kill_after}));
    }
    guard_.watch(one.id());
    signal_watch::kill_at_second(one.id(), one.input());
    note_start(one);
}

bool job::is_over() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const rank& one) { return one.is_finished(); });
}

void job::turn() {
    wait_for_something();
    move_bytes();
    look_at_ranks();
    look_at_rendezvous();
    look_at_clock();
    finish_ended();
    show_status();
}

void job::wait_for_something() {
    files_.clear();
    files_.push_back({signals_.number(), POLLIN, 0});
    for (const rank& one : ranks_) {
        files_.push_back({one.output(), POLLIN, 0});
        files_.push_back({one.errors(), POLLIN, 0});
        files_.push_back({one.wants_to_write() ? one.input() : -1, POLLOUT, 0});
    }
    const bool has_deadlines = ending_step_ > 0 || !failed_.empty() ||
                               std::any_of(ranks_.begin(), ranks_.end(), [](auto& r) {
                                   return !r.has_started() || (r.has_ended() && !r.is_finished());
                               });
    ::poll(files_.data(), nfds_t(files_.size()), has_deadlines ? 50 : 1000);
}

void job::move_bytes() {
    if (files_[0].revents != 0) signals_.take();
    std::size_t i = 1;
    for (rank& one : ranks_) {
        const bool output = files_[i++].revents != 0, errors = files_[i++].revents != 0;
        if (files_[i++].revents != 0) one.write_input();
        try {
            if (output) one.read_output(screen_);
            note_start(one);
            if (errors) one.read_errors(screen_);
        } catch (const failure& full) {
            note_full(full);
        }
    }
}

// A file takes no more output. The screen still gets what was read.
void job::note_full(const failure& full) {
    screen_.flush();
    if (ending_step_ == 0) end_all(full.code(), full.what());
}

void job::look_at_ranks() {
    std::vector<const rank*> ended;
    for (rank& one : ranks_)
        if (!one.is_finished() && one.look()) ended.push_back(&one);
    std::stable_sort(ended.begin(), ended.end(), [](const rank* a, const rank* b) {
        return signal_watch::order_of_end(a->id()) < signal_watch::order_of_end(b->id());
    });
    for (const rank* one : ended) note_end(*one);
    for (const rank* one : ended)
        if (one->how().is_failure() && ending_step_ == 0) failed_.push_back(one);
}

void job::note_start(rank& one) {
    if (!one.take_start()) return;
    events_.add("started",
                {{"rank", one.where().rank}, {"host", one.where().host}, {"pid", int(one.id())}});
}

void job::note_end(const rank& one) {
    const bool was_ended = ending_step_ > 0;
    const char* event = was_ended ? "ended" : one.how().is_failure() ? "failed" : "exited";
    events_.add(event, {{"rank", one.where().rank},
                        {"host", one.where().host},
                        {one.how().signal != 0 ? "signal" : "code",
                         one.how().signal != 0 ? one.how().signal : one.how().code},
                        {"seconds", one.ended_at() - one.started_at()},
                        {"why", was_ended ? why_ : one.how().description()}});
    last_event_ = "rank " + std::to_string(one.where().rank) + ": " + one.how().description();
}

std::string job::failure_of(const rank& one) const {
    if (!one.has_started())
        return place_of(one) + " was not started: " + for_shell(options_.ssh_command[0]) +
               " ended with " + one.how().description();
    return place_of(one) + " failed with " + one.how().description() + ", " +
           short_time(one.ended_at() - one.started_at()) + " after its start";
}

// The ends of ranks on other hosts are heard of late, perhaps after those of ranks that noticed
// them: all that come within a short time are named.
void job::look_at_failures() {
    if (failed_.empty() || ending_step_ > 0) return;
    const bool is_over =
        std::all_of(ranks_.begin(), ranks_.end(), [](const rank& one) { return one.has_ended(); });
    if (has_remote_ && !is_over && seconds() < failed_.front()->ended_at() + time_to_hear) return;
    std::string why = failure_of(*failed_.front());
    for (std::size_t i = 1; has_remote_ && i < failed_.size() && i < most_named; ++i)
        why += "; " + failure_of(*failed_[i]);
    end_all(failed_.front()->how().exit_code(), why);
}

void job::end_all(int code, const std::string& why) {
    exit_code_ = code;
    why_ = why;
    int others = 0;
    for (rank& one : ranks_) {
        if (one.is_finished() || one.has_ended()) continue;
        one.terminate();
        ++others;
    }
    if (others > 0)
        why_ += "; " + std::to_string(others) +
                (others == 1 ? " other rank was" : " other ranks were") + " ended";
    ending_since_ = seconds();
    ending_step_ = 1;
}

void job::look_at_rendezvous() {
    if (has_told_rendezvous_ || rendezvous_.now() == rendezvous::state::waits) return;
    has_told_rendezvous_ = true;
    if (rendezvous_.now() == rendezvous::state::has_met) {
        last_event_ = "all ranks have met";
        events_.add("met", {{"seconds", seconds() - started_at_}});
    } else {
        events_.add("not_met", {{"why", rendezvous_.reason()}});
        screen_.say(rendezvous_.reason());
    }
}

void job::look_at_clock() {
    const double now = seconds();
    look_at_failures();
    if (ending_step_ == 0) {
        if (const int signal = signal_watch::asked_to_end(); signal != 0) {
            end_all(128 + signal, "ended by " + ending{0, signal}.description());
        } else if (screen_.is_closed()) {
            end_all(128 + SIGPIPE, "ended, since nobody reads the output any more");
        }
        for (const rank& one : ranks_)
            if (ending_step_ == 0 && !one.has_started() && !one.has_ended() &&
                now > started_at_ + options_.start_timeout)
                end_all(1, place_of(one) + " was not started within " +
                               short_time(options_.start_timeout) + " (--start-timeout)");
        return;
    }
    if (ending_step_ == 1 && now > ending_since_ + options_.kill_after) {
        for (rank& one : ranks_) one.kill();
        ending_step_ = 2;
    } else if (ending_step_ == 2 && now > ending_since_ + options_.kill_after + 2) {
        for (rank& one : ranks_) one.kill_connection();
        ending_step_ = 3;
    }
}

// Processes that a rank has left behind may hold its output open. They get the time of the others.
void job::finish_ended() {
    const double now = seconds();
    for (rank& one : ranks_) {
        if (one.is_finished() || !one.has_ended()) continue;
        if (!one.has_open_output()) {
            leave(one);
        } else if (now > one.ended_at() + 2 * options_.kill_after + 1) {
            try {
                one.close_output(screen_);
            } catch (const failure& full) {
                note_full(full);
            }
        } else if (now > one.ended_at() + options_.kill_after) {
            one.terminate();
        }
    }
}

void job::leave(rank& one) {
    const pid_t group = one.id();
    signal_watch::forget(group);
    one.finish();
    guard_.forget(group);
}

void job::show_status() {
    if (!screen_.has_status()) return;
    int running = 0;
    for (const rank& one : ranks_) running += one.has_ended() ? 0 : 1;
    std::string text = "hvdrun: " + std::to_string(running) + " of " +
                       std::to_string(ranks_.size()) + " ranks running on " +
                       std::to_string(hosts_) + (hosts_ == 1 ? " host, " : " hosts, ") +
                       long_time(seconds() - started_at_);
    if (!last_event_.empty()) text += ", " + last_event_;
    screen_.show_status(text);
}

std::string job::place_of(const rank& one) const {
    return "rank " + std::to_string(one.where().rank) + " on " + one.where().host;
}

void print_job(const options& o, const std::vector<placement>& places) {
    const std::string address = own_address(places, o.interface) + ":PORT";
    for (const placement& place : places) {
        environment variables = contract(place, int(places.size()), address, o.interface);
        variables.merge(forwarded(o));
        std::string line = "[" + std::to_string(place.rank) + "] ";
        if (!place.is_local) line += readable_command(o.ssh_command, place.host) + ": ";
        for (const auto& [name, value] : variables) line += name + "=" + for_shell(value) + " ";
        std::printf("%s%s\n", line.c_str(), line_of(o.program).c_str());
    }
}

}  // namespace hvdrun
