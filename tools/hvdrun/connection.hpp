// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "frames.hpp"
#include "output.hpp"
#include "process.hpp"
#include "shell.hpp"

namespace hvdrun {

class rank;

// The one connection to another host: ssh, or what stands for it, with the host's agent behind it.
// It carries the output, the input, the signals and the exit codes of all ranks of the host.
class connection {
public:
    // Messages of ssh itself and greetings of the host are shown as those of rank `first`.
    connection(const std::string& host, int first, std::string key);
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;

    // Starts ssh. The script is the agent's.
    void open(const words& command, const std::string& script);

    const std::string& host() const { return host_; }
    pid_t id() const { return process_.id; }
    int input() const { return process_.input.number(); }
    int output() const { return process_.output.number(); }
    int errors() const { return process_.errors.number(); }
    bool wants_to_write() const { return process_.input && !pending_.empty(); }
    // True while ranks can be started by it.
    bool is_usable() const { return closed_at_ == 0 && !has_ended(); }
    bool has_ranks() const { return !ranks_.empty(); }
    bool has_ended() const { return ended_at_ > 0; }
    // The time of the last sign of the agent's life, or 0.
    double heard_at() const { return heard_at_; }
    bool has_parts() const { return own_output_.has_part() || own_errors_.has_part(); }

    // Returns the number by which the agent knows the rank.
    int add(rank& one);
    void remove(int number) { ranks_.erase(number); }

    void send(std::string_view lines);
    void write_input();
    void read_output(screen& to);
    void read_errors(screen& to);
    void show_parts(double now, screen& to);

    // Sees whether the connection has ended, and so have its ranks then.
    void look(screen& to);
    // The agent is to end. Returns how long ago it was told first.
    double close_since(double now);
    // Asks ssh to end, as long as there is no agent behind it.
    void give_up();
    // It ends at once, and its ranks with it.
    void cut();
    // True when nothing is left of it but the process's number.
    bool is_over(double now, double patience) const;
    void finish(screen& to);

private:
    // Returns false when there is nothing more to read now.
    bool read_some(screen& to);
    void take(const frame& told, screen& to);

    std::string host_;
    process process_;
    frame_reader frames_;
    std::string pending_;  // for the agent
    std::map<int, rank*> ranks_;
    rank_stream own_output_, own_errors_;
    int last_number_ = 0;
    double heard_at_ = 0, asked_at_ = 0, closed_at_ = 0, ended_at_ = 0;
};

}  // namespace hvdrun
