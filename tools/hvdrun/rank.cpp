// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "rank.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>

#include "remote.hpp"
#include "times.hpp"

namespace hvdrun {

rank::rank(const placement& where) : where_(where), out_(where.rank, 1), err_(where.rank, 2) {}

void rank::open_files(const std::string& folder, int ranks, bool with_times, bool go_on) {
    const std::string own = make_rank_folder(folder, where_.rank, ranks);
    out_.open_file(own + "/stdout", with_times, go_on);
    err_.open_file(own + "/stderr", with_times, go_on);
}

void rank::start_here(const words& program, const environment& variables, bool with_input) {
    started_at_ = seconds();
    takes_input_ = with_input;
    process_ = start(program, variables, with_input, SIGKILL);
}

void rank::give_input(std::string_view bytes) {
    pending_ += bytes;
    write_input();
}

void rank::end_input() { process_.input.close(); }

void rank::start_there(const words& command, const std::string& script) {
    out_.expect(remote_greeting);
    // ssh ends by it, and srun also ends the rank.
    process_ = start(command, own_environment(), true, SIGTERM);
    started_at_ = seconds();
    pending_ = script;
    write_input();
}

bool rank::take_start() {
    if (is_start_told_ || !has_started()) return false;
    if (!where_.is_local) started_at_ = seconds();
    return is_start_told_ = true;
}

void rank::read_output(screen& to) {
    if (process_.output && !out_.read(output(), to)) process_.output.close();
}

void rank::read_errors(screen& to) {
    if (process_.errors && !err_.read(errors(), to)) process_.errors.close();
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
    if (has_ended() || !hvdrun::has_ended(process_.id, how_)) return false;
    ended_at_ = seconds();
    return true;
}

void rank::ask_to_end(const std::string& why) {
    if (is_asked() || is_finished_) return;
    why_asked_ = why;
    asked_at_ = seconds();
    if (!has_ended()) terminate();
}

void rank::insist(double now, double patience) {
    if (!is_asked()) return;
    if (insisted_ == 0 && now > asked_at_ + patience) {
        kill();
        insisted_ = 1;
    } else if (insisted_ == 1 && now > asked_at_ + patience + 2) {
        kill_connection();
        insisted_ = 2;
    }
}

void rank::terminate() {
    if (where_.is_local || !has_started() || has_ended()) signal_group(SIGTERM);
    else send_word("TERM\n");
}

void rank::kill() {
    if (where_.is_local || !has_started() || has_ended()) signal_group(SIGKILL);
    else send_word("KILL\n");
}

void rank::pass_on(int signal) {
    if (has_ended() || !has_started()) return;
    if (where_.is_local) signal_group(signal);
    else send_word((std::string(sigabbrev_np(signal)) + "\n").c_str());
}

void rank::kill_connection() { signal_group(SIGKILL); }

void rank::send_word(const char* word) {
    pending_ += word;
    write_input();
}

void rank::signal_group(int signal) {
    if (!is_finished_) ::kill(-process_.id, signal);
}

void rank::close_output(screen& to) {
    out_.finish(to);
    err_.finish(to);
    process_.output.close();
    process_.errors.close();
}

void rank::finish() {
    signal_group(SIGKILL);  // what the rank has left behind
    reap(process_.id);
    process_.input.close();
    is_finished_ = true;
}

}  // namespace hvdrun
