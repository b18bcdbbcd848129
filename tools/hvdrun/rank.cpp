// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "rank.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "agent.hpp"
#include "connection.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

constexpr double time_to_die = 2;

}  // namespace

rank::rank(const placement& where) : where_(where), out_(where.rank, 1), err_(where.rank, 2) {}

void rank::open_files(const std::string& folder, int ranks, bool with_times, bool go_on) {
    const std::string own = make_rank_folder(folder, where_.rank, ranks);
    out_.open_file(own + "/stdout", with_times, go_on);
    err_.open_file(own + "/stderr", with_times, go_on);
}

void rank::start_here(const words& program, const environment& variables, bool with_input) {
    takes_input_ = with_input;
    const double now = seconds();
    process_ = start(program, variables, with_input, SIGKILL);
    started_at_ = now;
    has_started_ = true;
}

void rank::start_there(connection& by, const environment& variables, bool with_input) {
    takes_input_ = with_input;
    connection_ = &by;
    number_ = by.add(*this);
    started_at_ = seconds();
    by.send(start_lines(number_, variables, with_input));
}

bool rank::takes_input() const {
    if (!takes_input_ || has_ended()) return false;
    return is_local() ? process_.input && pending_.empty() : has_started_ && has_room_;
}

std::size_t rank::room_for_input() const { return is_local() ? 4096 : most_input; }

void rank::give_input(std::string_view bytes) {
    if (is_local()) {
        pending_ += bytes;
        return write_input();
    }
    has_room_ = false;
    connection_->send(input_of(bytes));
}

void rank::end_input() {
    takes_input_ = false;
    if (is_local()) process_.input.close();
    else connection_->send(end_of_input_line());
}

bool rank::is_reached() const { return is_local() || connection_->heard_at() > 0; }

bool rank::take_start() {
    if (is_start_told_ || !has_started()) return false;
    if (!is_local()) started_at_ = seconds();
    return is_start_told_ = true;
}

void rank::read_output(screen& to) {
    if (process_.output && !out_.read(output(), to)) process_.output.close();
}

void rank::read_errors(screen& to) {
    if (process_.errors && !err_.read(errors(), to)) process_.errors.close();
}

void rank::take(const frame& told, screen& to) {
    switch (told.what) {
        case frame::kind::output: return out_.add(told.bytes, to);
        case frame::kind::errors: return err_.add(told.bytes, to);
        case frame::kind::has_started:
            has_started_ = true, number_there_ = told.value;
            for (const int number : std::exchange(early_, {})) pass_on(number);
            return;
        case frame::kind::has_ended:
            if (has_ended()) return;
            how_.code = told.value;
            ended_at_ = seconds();
            return;
        case frame::kind::is_gone: return close_output(to);
        case frame::kind::took_input: has_room_ = true; return;
        case frame::kind::takes_no_input: takes_input_ = false; return;
        case frame::kind::said_by_host:
        case frame::kind::is_alive: return;
    }
}

void rank::lose(const ending& how, screen& to) {
    close_output(to);
    if (has_ended()) return;
    how_ = how;
    ended_at_ = seconds();
}

void rank::show_parts(double now, screen& to) {
    out_.show_part(now, to);
    err_.show_part(now, to);
}

void rank::write_input() {
    if (!process_.input || pending_.empty()) return;
    const ssize_t n = ::write(input(), pending_.data(), pending_.size());
    if (n > 0) pending_.erase(0, std::size_t(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR) {  // it has ended, or reads no more
        pending_.clear();
        if (takes_input_) end_input();
    }
}

bool rank::look() {
    if (is_end_told_) return false;
    if (is_local()) {
        if (!hvdrun::has_ended(process_.id, how_)) return false;
        ended_at_ = seconds();
    }
    return is_end_told_ = has_ended();
}

void rank::ask_to_end(const std::string& why) {
    if (is_asked() || is_finished_) return;
    why_asked_ = why;
    asked_at_ = seconds();
    if (!has_ended()) terminate();
}

void rank::give_up(double now) {
    if (given_up_at_ > 0) return;
    given_up_at_ = now;
    if (connection_ != nullptr && connection_->heard_at() == 0) connection_->cut();
    else kill();
}

void rank::insist(double now, double patience, screen& to) {
    if (given_up_at_ > 0 && now > given_up_at_ + time_to_die) cut(given_up_at_, to);
    if (!is_asked()) return;
    if (insisted_ == 0 && now > asked_at_ + patience) {
        kill();
        insisted_ = 1;
    } else if (insisted_ == 1 && now > asked_at_ + patience + time_to_die) {
        cut(asked_at_ + patience, to);
        insisted_ = 2;
    }
}

// A connection that is silent carries nothing for the others of its host either.
void rank::cut(double since, screen& to) {
    if (is_local()) signal(SIGKILL, "KILL");
    else if (has_ended()) return;
    else if (connection_->heard_at() > since) lose({0, SIGKILL}, to);
    else connection_->cut();
}

void rank::terminate() { signal(SIGTERM, "TERM"); }

void rank::kill() { signal(SIGKILL, "KILL"); }

void rank::pass_on(int number) {
    if (has_ended() || !was_begun()) return;
    if (!has_started()) return early_.push_back(number);
    signal(number, sigabbrev_np(number));
}

void rank::signal(int number, std::string_view name) {
    if (is_finished_) return;
    if (connection_ != nullptr) connection_->send(signal_line(number_, name));
    else if (process_.id > 0) ::kill(-process_.id, number);
}

bool rank::has_open_output() const {
    return is_local() ? process_.output || process_.errors : !is_gone_;
}

void rank::close_output(screen& to) {
    out_.finish(to);
    err_.finish(to);
    process_.output.close();
    process_.errors.close();
    is_gone_ = true;
}

void rank::finish() {
    if (connection_ != nullptr) connection_->remove(number_);
    if (process_.id > 0) {
        kill();  // what the rank has left behind
        reap(process_.id);
    }
    process_.input.close();
    is_finished_ = true;
}

}  // namespace hvdrun
