// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frames.hpp"
#include "output.hpp"
#include "process.hpp"

namespace hvdrun {

class connection;

// A rank of a job: its process, or what the agent of another host tells of it.
class rank {
public:
    explicit rank(const placement& where);

    const placement& where() const { return where_; }
    // The process here, or -1.
    pid_t id() const { return process_.id; }
    // The process's number on its host.
    pid_t number_there() const { return is_local() ? process_.id : number_there_; }
    const ending& how() const { return how_; }
    double started_at() const { return started_at_; }
    double ended_at() const { return ended_at_; }
    int input() const { return process_.input.number(); }
    int output() const { return process_.output.number(); }
    int errors() const { return process_.errors.number(); }
    bool wants_to_write() const { return process_.input && !pending_.empty(); }

    void start_here(const words& program, const environment& variables, bool with_input);
    // The connection has been opened.
    void start_there(connection& by, const environment& variables, bool with_input);
    void open_files(const std::string& folder, int ranks, bool with_times, bool go_on);
    // False if it could not even be tried.
    bool was_begun() const { return started_at_ > 0; }

    bool has_started() const { return has_started_; }  // as far as hvdrun knows
    // False while its host has not answered.
    bool is_reached() const;
    // Returns true once, when it has.
    bool take_start();
    bool has_ended() const { return ended_at_ > 0; }
    bool is_finished() const { return is_finished_; }

    void read_output(screen& to);
    void read_errors(screen& to);
    // Takes what the agent tells.
    void take(const frame& told, screen& to);
    // The connection has ended in this way.
    void lose(const ending& how, screen& to);
    // Lines without their end.
    bool has_parts() const { return out_.has_part() || err_.has_part(); }
    void show_parts(double now, screen& to);
    // The standard input, where it is asked for.
    bool takes_input() const;
    std::size_t room_for_input() const;
    void give_input(std::string_view bytes);
    void end_input();
    void write_input();

    // Returns true once, when the process has ended.
    bool look();
    // Asks it to end, once.
    void ask_to_end(const std::string& why);
    bool is_asked() const { return asked_at_ > 0; }
    // hvdrun's reason.
    const std::string& why_asked() const { return why_asked_; }
    // Gives it up as failed: the other ranks have lost it, or it does not start.
    void give_up(double now);
    // Ends it in the end: it is killed after the patience, and then counts as ended.
    void insist(double now, double patience, screen& to);
    void terminate();
    // Gives a signal to the rank and its processes: once it has started, if it is about to.
    void pass_on(int signal);
    void kill();
    // Gives up output that others hold open, and lets go of the process.
    void close_output(screen& to);
    bool has_open_output() const;
    void finish();

private:
    bool is_local() const { return connection_ == nullptr; }
    void cut(double since, screen& to);
    void signal(int number, std::string_view name);

    placement where_;
    process process_;
    connection* connection_ = nullptr;  // or of another host
    int number_ = 0;                    // on the connection
    pid_t number_there_ = 0;
    rank_stream out_, err_;
    std::string pending_;  // for the program
    ending how_;
    double started_at_ = 0, ended_at_ = 0, asked_at_ = 0, given_up_at_ = 0;
    int insisted_ = 0;  // times
    std::string why_asked_;
    std::vector<int> early_;  // signals for a rank that may run, of which hvdrun has not heard
    bool has_started_ = false, is_start_told_ = false, is_end_told_ = false;
    bool is_finished_ = false, is_gone_ = false, takes_input_ = false, has_room_ = true;
};

}  // namespace hvdrun
