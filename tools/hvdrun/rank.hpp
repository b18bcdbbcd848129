// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <string_view>

#include "output.hpp"
#include "process.hpp"

namespace hvdrun {

// A rank of a job: its process, or the local end of the shell that started it on another host.
class rank {
public:
    explicit rank(const placement& where);

    const placement& where() const { return where_; }
    pid_t id() const { return process_.id; }
    const ending& how() const { return how_; }
    double started_at() const { return started_at_; }
    double ended_at() const { return ended_at_; }
    int input() const { return process_.input.number(); }
    int output() const { return process_.output.number(); }
    int errors() const { return process_.errors.number(); }
    bool wants_to_write() const { return process_.input && !pending_.empty(); }

    void start_here(const words& program, const environment& variables, bool with_input);
    void start_there(const words& command, const std::string& script);
    void open_files(const std::string& folder, int ranks, bool with_times, bool go_on);

    bool has_started() const { return out_.has_greeted(); }  // as far as hvdrun knows
    // Returns true once, when it has.
    bool take_start();
    bool has_ended() const { return ended_at_ > 0; }
    bool is_finished() const { return is_finished_; }

    void read_output(screen& to);
    void read_errors(screen& to);
    // Lines without their end.
    bool has_parts() const { return out_.has_part() || err_.has_part(); }
    void show_parts(double now, screen& to);
    // The standard input, where it is asked for.
    bool takes_input() const { return takes_input_ && process_.input && pending_.empty(); }
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
    // Ends it in the end: it is killed after the patience, and then the local end of a connection.
    void insist(double now, double patience);
    void terminate();
    // Gives a signal to the rank and its processes.
    void pass_on(int signal);
    void kill_connection();
    // Gives up output that others hold open, and lets go of the process.
    void close_output(screen& to);
    bool has_open_output() const { return process_.output || process_.errors; }
    void finish();

private:
    void kill();
    void send_word(const char* word);
    void signal_group(int signal);

    placement where_;
    process process_;
    rank_stream out_, err_;
    std::string pending_;  // for the shell on the other host, or for the program
    ending how_;
    double started_at_ = 0, ended_at_ = 0, asked_at_ = 0;
    int insisted_ = 0;  // times
    std::string why_asked_;
    bool is_finished_ = false, is_start_told_ = false, takes_input_ = false;
};

}  // namespace hvdrun
