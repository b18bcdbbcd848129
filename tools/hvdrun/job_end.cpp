// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "job.hpp"
#include "times.hpp"

// How a job hears of the ends of its ranks, and how it ends itself.

namespace hvdrun {
namespace {

constexpr double time_to_learn = 0.2;
constexpr double time_to_ask = 3;  // a rank that does not start may wait for an answer
constexpr double time_between_progress = 5;
constexpr std::size_t most_named = 4;

std::string short_time(double s) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", s);
    return text;
}

// 255 is the exit code of ssh itself.
std::string remedy_of_ssh(const std::string& host) {
    return "'ssh " + host + " true' must work without a question: ssh-copy-id " + host +
           " brings a key there, and a first login knows the host's";
}

}  // namespace

// The ends of ranks explain events that came before: they are noted first. An event of the job's
// end tell how the end of a rank is to be judged.
void job::look_at_events() {
    const std::vector<job_event> events = meeting_place_->take_events();
    const std::vector<const rank*> ended = take_ended();
    for (const rank* one : ended) note_end(*one);
    for (const job_event& one : events) note(one);
    for (const rank* one : ended) judge(*one);
}

// Returns those that have ended since, in their order.
std::vector<const rank*> job::take_ended() {
    for (connection& one : connections_) one.look(screen_);
    std::vector<const rank*> ended;
    for (rank& one : ranks_)
        if (one.look()) ended.push_back(&one);
    std::stable_sort(ended.begin(), ended.end(), [](const rank* a, const rank* b) {
        const auto first = signal_watch::order_of_end(a->id());
        const auto second = signal_watch::order_of_end(b->id());
        return first != second ? first < second : a->ended_at() < b->ended_at();
    });
    return ended;
}

void job::note_start(rank& one) {
    if (!one.take_start()) return;
    events_.add(
        "started",
        {{"rank", one.where().rank}, {"host", one.where().host}, {"pid", int(one.number_there())}});
}

std::string job::why_ended(const rank& one) const {
    return is_ending() ? why_ : one.is_asked() ? one.why_asked() : one.how().description();
}

void job::note_end(const rank& one) {
    const bool was_ended = is_ending() || one.is_asked();
    const char* event = was_ended ? "ended" : one.how().is_failure() ? "failed" : "exited";
    events_.add(event, {{"rank", one.where().rank},
                        {"host", one.where().host},
                        {one.how().signal != 0 ? "signal" : "code",
                         one.how().signal != 0 ? one.how().signal : one.how().code},
                        {"seconds", one.ended_at() - one.started_at()},
                        {"why", why_ended(one)}});
    last_event_ = "rank " + std::to_string(one.where().rank) + ": " + one.how().description();
    epochs_.note_end(one.where().rank, one.ended_at(), why_ended(one), was_ended);
    // An epoch that is noted next may be without this rank.
    if (!was_ended && one.how().is_failure()) missing_.push_back(failed_of(one));
}

void job::note(const job_event& one) {
    switch (one.what) {
        case job_event::kind::has_met:
            last_event_ = "all ranks have met";
            return events_.add("met", {{"seconds", one.at - started_at_}});
        case job_event::kind::has_not_met:
            events_.add("not_met", {{"why", one.why}});
            return screen_.say(one.why);
        case job_event::kind::epoch_begins: return note_epoch(one);
        case job_event::kind::works: return note_work(one);
        case job_event::kind::is_lost:
            progress_.forget(one.slot);
            if (!slots_.is_closed()) epochs_.note_lost_connection(one.slot, one.at);
            return;
        case job_event::kind::job_ends: return note_job_end(one.at);
    }
}

void job::note_epoch(const job_event& next) {
    const bool is_first = epochs_.number() == 0;
    const std::optional<epoch_change> begun = epochs_.begin(next);
    if (!begun) return;
    const epoch_change& change = *begun;
    const std::vector<failed_rank> lost = missing_;
    // The epoch has enough ranks without those that failed before.
    std::erase_if(missing_, [&](const failed_rank& one) { return one.at < next.at; });
    std::vector<std::pair<const char*, json_value>> values = {
        {"epoch", next.epoch},     {"size", epochs_.size()},  {"step", epochs_.step()},
        {"ranks", change.members}, {"joined", change.joined}, {"left", change.left},
        {"lost", change.lost}};
    if (!change.why.empty()) {
        values.push_back({"why", change.why});
        values.push_back({"recovery_seconds", change.recovery});
    }
    events_.add("epoch", values);
    if (is_first) return;
    if (!change.why.empty()) tell_loss(change);
    note_reset(change, lost);
}

void job::tell_loss(const epoch_change& change) {
    const int size = epochs_.size();
    screen_.say(change.why + "; " + std::to_string(size) +
                (size == 1 ? " rank goes" : " ranks go") + " on from step " +
                std::to_string(epochs_.step()));
}

// As in Horovod each change of the ranks is a reset.
void job::note_reset(const epoch_change& change, const std::vector<failed_rank>& lost) {
    ++resets_;
    const int most = options_.reset_limit;
    if (is_ending() || slots_.is_closed() || most < 0 || resets_ <= most) return;
    std::string joined;
    for (const int slot : change.joined)
        joined += (joined.empty() ? "rank " : ", rank ") + std::to_string(slot);
    if (!joined.empty()) joined += " joined";
    end_all(lost.empty() ? 1 : lost[0].exit_code,
            "the ranks of the job have changed more than " + std::to_string(most) +
                (most == 1 ? " time" : " times") + " (--reset-limit): " + change.why +
                (change.why.empty() || joined.empty() ? "" : "; ") + joined);
}

void job::note_work(const job_event& one) {
    progress_.note(one.slot, one.at, one.step, one.samples);
    if (progress_told_at_ == 0) progress_told_at_ = one.at;
    if (one.at >= progress_told_at_ + time_between_progress) note_progress(one.at);
}

void job::note_progress(double at) {
    progress_told_at_ = at;
    std::vector<std::pair<const char*, json_value>> values = {{"step", progress_.step()}};
    if (const auto rate = progress_.samples_per_second(at))
        values.push_back({"samples_per_second", *rate});
    events_.add("progress", values);
}

// Processes that have not joined cannot do so any more.
void job::note_job_end(double at) {
    slots_.close();
    ended_early_.clear();
    if (progress_told_at_ > 0) note_progress(at);
    events_.add("job_done", {{"epoch", epochs_.number()}});
    for (rank& one : ranks_)
        if (!epochs_.has(one.where().rank)) one.ask_to_end("the job ended before it joined");
}

// While the job ends by itself, a rank that was lost before counts no more, and another failure
// ends none of the others.
void job::judge(const rank& ended) {
    if (is_ending()) return;
    const int slot = ended.where().rank;
    const bool was_closed = slots_.is_closed();
    const process_end how = ended.is_asked()           ? process_end::by_hvdrun
                            : ended.how().is_failure() ? process_end::by_failure
                                                       : process_end::well;
    slots_.end_process(slot, how, ended.ended_at() - ended.started_at(), ended.ended_at());
    meeting_place_->has_died(slot);
    if (slots_.is_closed()) meeting_place_->expect(slots_.living());
    if (slots_.is_closed() && !was_closed) ended_early_ = name_of(ended.where());
    if (how != process_end::by_failure) return;
    const failed_rank failed = failed_of(ended);
    if (!was_closed) {
        failed_.push_back(failed);
    } else if (epochs_.takes_part(slot) && exit_code_ == 0) {
        exit_code_ = failed.exit_code;
        why_ = failed.text;
    }
}

job::failed_rank job::failed_of(const rank& one) const {
    return {one.how().exit_code(), one.ended_at(), failure_of(one)};
}

std::string job::failure_of(const rank& one) const {
    if (!one.has_started())
        return name_of(one.where()) + " was not started: " + for_shell(options_.ssh_command[0]) +
               " ended with " + one.how().description() +
               (one.how().exit_code() == 255 ? "; " + remedy_of_ssh(one.where().host) : "");
    return name_of(one.where()) + " failed with " + one.how().description() + ", " +
           short_time(one.ended_at() - one.started_at()) + " after its start";
}

// The ends of ranks on other hosts are heard of late, perhaps after those of ranks that noticed
// them: all that come within a short time are named.
void job::look_at_obstacles() {
    if (is_ending() || slots_.is_closed()) return;
    std::optional<std::string> obstacle = slots_.obstacle(seconds());
    if (!obstacle && epochs_.all_have_ended())
        obstacle = "no rank is left that has the job's state";
    if (!obstacle) return failed_.clear();
    const bool is_over =
        std::all_of(ranks_.begin(), ranks_.end(), [](const rank& one) { return one.has_ended(); });
    if (has_remote_ && !is_over && !failed_.empty() && seconds() < failed_[0].at + time_to_learn)
        return;
    std::string why;
    for (std::size_t i = 0; i < failed_.size() && i < (has_remote_ ? most_named : 1); ++i)
        why += (why.empty() ? "" : "; ") + failed_[i].text;
    if (!obstacle->empty()) why += (why.empty() ? "" : "; ") + *obstacle;
    end_all(failed_.empty() ? 1 : failed_[0].exit_code, why);
}

// The other ranks finish the job without those that have failed, if they are enough.
void job::look_at_shortfall() {
    const std::optional<std::string> shortfall = slots_.shortfall();
    const bool is_early = !ended_early_.empty() && !is_ending();
    if (exit_code_ == 0 && !missing_.empty() && shortfall) {
        exit_code_ = missing_[0].exit_code;
        why_ = missing_[0].text + "; " + *shortfall;
    } else if (exit_code_ != 0 && is_early) {
        why_ += "; " + ended_early_ + " ended with 0 before the job was done";
        if (shortfall) why_ += "; " + *shortfall;
    }
}

// A file or the standard output takes no more.
void job::look_at_full() {
    if (is_ending()) return;
    if (!screen_.full_file().empty()) return end_for_good(1, screen_.full_file());
    if (screen_.error() == 0) return;
    const failure full = output_failure(screen_.error());
    end_for_good(full.code(), full.what());
}

void job::look_at_clock() {
    const double now = seconds();
    if (!is_ending()) {
        if (const int signal = signal_watch::asked_to_end(); signal != 0)
            end_for_good(128 + signal, "ended by " + ending{0, signal}.description());
        look_at_full();
    }
    for (rank& one : ranks_) {
        look_at_start(one);
        one.insist(now, options_.kill_after, screen_);
    }
}

// An elastic job starts another one, also for one that the others have lost and that does not come
// back: its host may be silent.
void job::look_at_start(rank& one) {
    if (!one.is_reached() && !one.has_ended() && !is_slow_told_ && !is_ending() &&
        seconds() > one.started_at() + time_to_ask) {
        is_slow_told_ = true;
        screen_.say(name_of(one.where()) + " has not started for " + short_time(time_to_ask) +
                    ". If " + for_shell(options_.ssh_command[0]) +
                    " waits for a password or a host key: nobody can answer; " +
                    remedy_of_ssh(one.where().host));
    }
    const double since =
        one.has_started() ? epochs_.missed_since(one.where().rank) : one.started_at();
    if (is_ending() || one.has_ended() || one.is_asked() ||
        seconds() < since + options_.start_timeout)
        return;
    if (options_.is_elastic()) return one.give_up(seconds());
    end_all(1, name_of(one.where()) + " was not started within " +
                   short_time(options_.start_timeout) + " (--start-timeout)");
}

void job::end_all(int code, const std::string& why) {
    exit_code_ = code;
    int others = 0;
    for (rank& one : ranks_) {
        others += one.has_ended() ? 0 : 1;
        one.ask_to_end(why);
    }
    for (connection& one : connections_) one.give_up();
    why_ = why;
    if (others > 0)
        why_ += "; " + std::to_string(others) +
                (others == 1 ? " other rank was" : " other ranks were") + " ended";
    ending_since_ = seconds();
}

void job::end_for_good(int code, const std::string& why) {
    is_for_good_ = true;
    end_all(code, why);
}

// Processes that a rank has left behind may hold its output open. They get the time of the others.
void job::finish_ended() {
    const double now = seconds();
    for (rank& one : ranks_) {
        if (!one.has_ended()) continue;
        if (!one.has_open_output()) {
            leave(one);
        } else if (now > one.ended_at() + 2 * options_.kill_after + 1) {
            one.close_output(screen_);
        } else if (now > one.ended_at() + options_.kill_after) {
            one.terminate();
        }
    }
    ranks_.remove_if([](const rank& one) { return one.is_finished(); });
    finish_connections();
}

// A connection without ranks is closed. Its agent has time to end.
void job::finish_connections() {
    const double now = seconds();
    for (connection& one : connections_) {
        if (!one.has_ranks()) {
            signal_watch::forget(one.id());  // its input is closed
            if (one.close_since(now) > options_.kill_after + 2) one.cut();
        }
        if (!one.is_over(now, options_.kill_after)) continue;
        signal_watch::forget(one.id());
        guard_.forget(one.id());
        one.finish(screen_);
    }
    connections_.remove_if([](const connection& one) { return one.id() < 0; });
}

void job::leave(rank& one) {
    const pid_t group = one.id();
    if (group > 0) signal_watch::forget(group);
    one.finish();
    if (group > 0) guard_.forget(group);
}

}  // namespace hvdrun
