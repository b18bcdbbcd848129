// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "connection.hpp"

#include <cerrno>
#include <csignal>

#include "agent.hpp"
#include "rank.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

constexpr std::size_t most_at_once = 1 << 17;
constexpr double look_interval = 2;  // seconds

}  // namespace

connection::connection(const std::string& host, int first, std::string key)
    : host_(host), frames_(std::move(key)), own_output_(first, 1), own_errors_(first, 2) {}

void connection::open(const words& command, const std::string& script) {
    // ssh ends by it, and srun also ends the ranks.
    process_ = start(command, own_environment(), true, SIGTERM);
    send(script);
}

int connection::add(rank& one) {
    ranks_[++last_number_] = &one;
    return last_number_;
}

void connection::send(std::string_view lines) {
    pending_ += lines;
    write_input();
}

void connection::write_input() {
    if (!process_.input || pending_.empty()) return;
    const ssize_t n = ::write(input(), pending_.data(), pending_.size());
    if (n > 0) pending_.erase(0, std::size_t(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR) pending_.clear();  // it has ended
    if (closed_at_ > 0 && pending_.empty()) process_.input.close();
}

void connection::read_output(screen& to) { read_some(to); }

bool connection::read_some(screen& to) {
    if (!process_.output) return false;
    static char bytes[most_at_once];
    const ssize_t n = ::read(output(), bytes, sizeof bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        process_.output.close();
        own_output_.finish(to);
        return false;
    }
    if (!frames_.add({bytes, std::size_t(n)}, [&](const frame& told) { take(told, to); })) {
        to.say("the connection to " + host_ + " brings what no agent of hvdrun sends");
        cut();
    }
    return true;
}

void connection::take(const frame& told, screen& to) {
    if (told.what == frame::kind::said_by_host) return own_output_.add(told.bytes, to);
    if (heard_at_ == 0) own_output_.finish(to);
    heard_at_ = seconds();
    const auto found = ranks_.find(told.rank);
    if (found != ranks_.end()) found->second->take(told, to);
}

void connection::read_errors(screen& to) {
    if (process_.errors && !own_errors_.read(errors(), to)) process_.errors.close();
}

void connection::show_parts(double now, screen& to) {
    own_output_.show_part(now, to);
    own_errors_.show_part(now, to);
}

// Reads all that it has brought before.
void connection::look(screen& to) {
    ending how;
    if (has_ranks() && is_usable() && heard_at_ > 0 && pending_.empty() &&
        seconds() > asked_at_ + look_interval) {
        asked_at_ = seconds();
        send(look_line());
    }
    if (has_ended() || process_.id < 0 || !hvdrun::has_ended(process_.id, how)) return;
    ended_at_ = seconds();
    while (read_some(to)) {
    }
    read_errors(to);
    how.is_cut_off = true;
    const std::map<int, rank*> left = ranks_;
    for (const auto& [number, one] : left) one->lose(how, to);
}

double connection::close_since(double now) {
    if (closed_at_ == 0) {
        closed_at_ = now;
        if (pending_.empty()) process_.input.close();
    }
    return now - closed_at_;
}

void connection::give_up() {
    if (process_.id > 0 && heard_at_ == 0) ::kill(-process_.id, SIGTERM);
}

void connection::cut() {
    if (process_.id > 0) ::kill(-process_.id, SIGKILL);
}

// Processes of the host may hold it open.
bool connection::is_over(double now, double patience) const {
    return has_ended() && ((!process_.output && !process_.errors) || now > ended_at_ + patience);
}

void connection::finish(screen& to) {
    own_output_.finish(to);
    own_errors_.finish(to);
    cut();
    reap(process_.id);
    process_.id = -1;
}

}  // namespace hvdrun
