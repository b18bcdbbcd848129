// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "job.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "agent.hpp"
#include "environment.hpp"
#include "failure.hpp"
#include "remote.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

std::string rendezvous_at(const std::vector<std::string>& addresses, int port) {
    return for_others(addresses) + ":" + std::to_string(port);
}

std::string long_time(double s) {
    const int whole = int(s);
    char text[32];
    std::snprintf(text, sizeof text, "%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

std::string whole_number(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%.0f", number);
    return text;
}

std::string counted(int number, const char* what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

int number_of_hosts(const std::vector<placement>& places) {
    std::set<std::string> hosts;
    for (const placement& place : places) hosts.insert(place.host);
    return int(hosts.size());
}

// It listens at these addresses, or at all where none is named.
std::unique_ptr<meeting_place> make_meeting_place(const options& o, int ranks,
                                                  const std::string& secret_digits, int told,
                                                  const std::vector<std::string>& at) {
    return o.is_elastic() ? make_coordinator(o, ranks, secret_digits, told, at)
                          : make_rendezvous(ranks, secret_digits, told, at);
}

slot_rules slot_rules_of(const options& o, int ranks) {
    if (!o.is_elastic()) return {.least = ranks, .most = ranks};
    return {.least = o.min_np,
            .most = o.max_np,
            .is_elastic = true,
            .has_discovery = !o.discovery_script.empty(),
            .patience = o.elastic_timeout,
            .cooldown = o.cooldown};
}

// Ranks elsewhere run in the folder of the same name.
std::string own_folder() {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::current_path(error);
    if (error) throw failure(1, "the folder of hvdrun cannot be named: " + error.message());
    return path.string();
}

// The beginning of each frame of a connection.
std::string new_key() { return "hvd-" + random_digits() + ":"; }

std::function<double()> random_numbers() {
    return [engine = std::minstd_rand(std::random_device()())]() mutable {
        return std::uniform_real_distribution<double>()(engine);
    };
}

}  // namespace

// The guard comes first: nothing is open yet that it would hold.
job::job(const options& o, const host_list& hosts, const std::vector<placement>& places,
         job_records& records)
    : options_(o),
      size_at_start_(int(places.size())),
      guard_(o.kill_after + 2),
      signals_(o.passed_on),
      records_(records),
      events_(records.events),
      screen_(o.timestamps),
      secret_(o.secret_file),
      addresses_(own_addresses(places, o.interface, o.may_win_hosts())),
      meeting_place_(make_meeting_place(
          o, size_at_start_, secret_.digits(), signals_.wake(),
          o.may_win_hosts() && o.interface.empty() ? std::vector<std::string>() : addresses_)),
      address_(rendezvous_at(addresses_, meeting_place_->port())),
      slots_(slot_rules_of(o, size_at_start_), random_numbers()) {
    slots_.set_hosts(hosts);
    takes_input_ = o.takes_input;
    for (const placement& place : places) has_remote_ = has_remote_ || !place.is_local;
    if (secret_.is_temporary()) guard_.watch_file(secret_.path());
    if (!o.discovery_script.empty())
        discovery_ = std::make_unique<discovery>(o.discovery_script, o.slots_per_host);
}

run_end job::run() {
    allow_many_files();
    start_first();
    meeting_place_->serve();
    while (!ranks_.empty() || !connections_.empty()) turn();
    look_at_full();
    look_at_shortfall();
    events_.add("finished", {{"code", exit_code_}, {"seconds", seconds() - started_at_}});
    if (exit_code_ == 0 && events_.is_cut_off()) {  // another run would write none either
        exit_code_ = 1;
        is_for_good_ = true;
        why_ = "the event log is not complete";
    }
    screen_.show_status("");
    if (!why_.empty()) screen_.say(why_);
    return {exit_code_, is_for_good_};
}

void job::start_first() {
    started_at_ = seconds();
    const std::vector<placement> places = slots_.take_starts(started_at_);
    events_.add("job", {{"run", ++records_.runs},
                        {"ranks", size_at_start_},
                        {"hosts", number_of_hosts(places)},
                        {"program", line_of(options_.program)},
                        {"rendezvous", address_}});
    try {
        for (const placement& where : places) start(where);
    } catch (const failure&) {
        for (rank& one : ranks_) one.kill(), one.finish();
        for (connection& one : connections_)
            if (one.id() > 0) one.finish(screen_);
        throw;
    }
}

void job::start(const placement& where) {
    std::vector<placement> place = {where};
    find_local(place);
    rank& one = ranks_.emplace_back(place[0]);
    if (!place[0].is_local && !has_remote_) {
        has_remote_ = true;
        addresses_ = own_addresses(place, options_.interface, true);
        address_ = rendezvous_at(addresses_, meeting_place_->port());
    }
    if (!options_.output_folder.empty()) {
        const bool is_again = !records_.have_files.insert(where.rank).second;
        one.open_files(options_.output_folder, std::max(size_at_start_, options_.max_np),
                       options_.timestamps, is_again);
    }
    if (options_.verbose) screen_.say(name_of(where) + ": " + line_of(options_.program));
    environment variables = contract(options_, where, size_at_start_, address_);
    if (one.where().is_local) {
        variables["HVD_SECRET_FILE"] = secret_.path();
        variables.insert(options_.variables.begin(), options_.variables.end());
        variables.merge(own_environment());
        one.start_here(options_.program, variables, takes_input_ && where.rank == 0);
        guard_.watch(one.id());
        signal_watch::kill_at_second(one.id(), -1);
        note_start(one);
    } else {
        start_there(one, std::move(variables));
    }
}

void job::start_there(rank& one, environment variables) {
    connection& by = connection_to(one.where());
    one.start_there(by, variables, takes_input_ && one.where().rank == 0);
}

// The agent gets what is the same for all ranks, and each rank its own place.
connection& job::connection_to(const placement& where) {
    for (connection& one : connections_)
        if (one.host() == where.host && one.is_usable()) return one;
    const std::string key = new_key();
    connection& made = connections_.emplace_back(where.host, where.rank, key);
    made.open(remote_command(options_.ssh_command, where.host),
              agent_script({key, secret_.digits(), random_digits(), forwarded(options_),
                            own_folder(), options_.program, options_.kill_after}));
    guard_.watch(made.id());
    signal_watch::kill_at_second(made.id(), made.input());
    return made;
}

void job::turn() {
    wait_for_something();
    move_bytes();
    look_at_events();
    look_at_hosts();
    look_at_obstacles();
    start_and_end();
    look_at_clock();
    finish_ended();
    show_status();
}

void job::wait_for_something() {
    files_.clear();
    files_.push_back({signals_.number(), POLLIN, 0});
    const bool is_input_wanted =
        takes_input_ && std::any_of(ranks_.begin(), ranks_.end(),
                                    [](const rank& one) { return one.takes_input(); });
    files_.push_back({is_input_wanted ? 0 : -1, POLLIN, 0});
    for (const rank& one : ranks_) {
        files_.push_back({one.output(), POLLIN, 0});
        files_.push_back({one.errors(), POLLIN, 0});
        files_.push_back({one.wants_to_write() ? one.input() : -1, POLLOUT, 0});
    }
    for (const connection& one : connections_) {
        files_.push_back({one.output(), POLLIN, 0});
        files_.push_back({one.errors(), POLLIN, 0});
        files_.push_back({one.wants_to_write() ? one.input() : -1, POLLOUT, 0});
    }
    const bool has_timeouts =
        is_ending() || !failed_.empty() || slots_.awaits_time(seconds()) ||
        (discovery_ != nullptr && discovery_->is_running()) ||
        std::any_of(ranks_.begin(), ranks_.end(),
                    [](const rank& one) {
                        return !one.has_started() || one.has_ended() || one.is_asked() ||
                               one.has_parts();
                    }) ||
        std::any_of(connections_.begin(), connections_.end(),
                    [](const connection& one) { return !one.has_ranks() || one.has_parts(); });
    ::poll(files_.data(), nfds_t(files_.size()), has_timeouts ? 50 : 1000);
}

void job::move_bytes() {
    if (files_[0].revents != 0) take_signals();
    if (files_[1].revents != 0) pass_input();
    std::size_t i = 2;
    const auto move = [&](auto& one) {
        const bool output = files_[i++].revents != 0, errors = files_[i++].revents != 0;
        if (files_[i++].revents != 0) one.write_input();
        if (output) one.read_output(screen_);
        if (errors) one.read_errors(screen_);
        one.show_parts(seconds(), screen_);
    };
    for (rank& one : ranks_) move(one);
    for (connection& one : connections_) move(one);
    look_at_full();
    for (rank& one : ranks_) note_start(one);
}

void job::take_signals() {
    signals_.take();
    for (const int signal : signal_watch::take_passed_on())
        for (rank& one : ranks_) one.pass_on(signal);
    if (!inherits_) return;
    std::set<pid_t> own = {guard_.id(), secret_.remover(), discovery_ ? discovery_->id() : -1};
    for (const rank& one : ranks_) own.insert(one.id());
    for (const connection& one : connections_) own.insert(one.id());
    reap_inherited(own);
}

// Rank 0 gets what it has room for, and hvdrun reads no further. An error is no end of the input.
void job::pass_input() {
    char bytes[most_input];
    std::size_t room = sizeof bytes;
    for (const rank& one : ranks_)
        if (one.takes_input()) room = std::min(room, one.room_for_input());
    const ssize_t n = ::read(0, bytes, room);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) {
        takes_input_ = false;
        if (!is_ending())
            end_for_good(
                1, std::string("--stdin: the standard input cannot be read: ") + strerror(errno));
        return;
    }
    for (rank& one : ranks_) {
        if (!one.takes_input()) continue;
        if (n > 0) one.give_input({bytes, std::size_t(n)});
        else one.end_input();
    }
    if (n == 0) takes_input_ = false;
}

// A failure of the command changes nothing: the hosts stay as they were. Only answers without hosts
// end the job in the end.
void job::look_at_hosts() {
    if (discovery_ == nullptr || is_ending() || slots_.is_closed()) return;
    const pid_t before = discovery_->id();
    const bool has_ended = discovery_->look(seconds());
    if (before > 0 && before != discovery_->id()) guard_.forget(before);
    if (before <= 0 && discovery_->is_running()) guard_.watch(discovery_->id());
    if (!has_ended) return;
    if (discovery_->why().empty()) {
        std::vector<std::string> said;
        slots_.set_hosts(with_one_name_each(discovery_->hosts(), said));
        for (const std::string& text : said) screen_.say(text);
    } else if (discovery_->why() != why_not_discovered_) {
        events_.add("not_discovered", {{"why", discovery_->why()}});
        screen_.say("--host-discovery-script " + options_.discovery_script + ": " +
                    discovery_->why());
    }
    why_not_discovered_ = discovery_->why();
    if (discovery_->empty_for() > options_.elastic_timeout)
        end_all(1, empty_too_long(options_.discovery_script, options_.elastic_timeout));
}

void job::start_and_end() {
    if (is_ending()) return;
    for (rank& one : ranks_)
        if (!slots_.is_there(one.where().rank)) one.ask_to_end("its slot is no longer there");
    try {
        for (const placement& where : slots_.take_starts(seconds())) start(where);
    } catch (const failure& error) {
        ranks_.remove_if([](const rank& one) { return !one.was_begun(); });
        connections_.remove_if([](const connection& one) { return one.id() < 0; });
        end_all(error.code(), error.what());
    }
}

void job::show_status() {
    if (!screen_.has_status()) return;
    std::vector<placement> running;
    for (const rank& one : ranks_)
        if (!one.has_ended()) running.push_back(one.where());
    const int ranks = int(running.size());
    std::string text = "hvdrun: ";
    if (options_.is_elastic()) text += counted(ranks, "rank");
    else text += std::to_string(ranks) + " of " + counted(size_at_start_, "rank");
    text += " running on " + counted(number_of_hosts(running), "host") + ", " +
            long_time(seconds() - started_at_);
    if (epochs_.number() > 0)
        text += ", epoch " + std::to_string(epochs_.number()) + ", step " +
                std::to_string(std::max(epochs_.step(), progress_.step()));
    if (const auto rate = progress_.samples_per_second(seconds()))
        text += ", " + whole_number(*rate) + " samples/s";
    if (!last_event_.empty()) text += ", " + last_event_;
    screen_.show_status(text);
}

std::string name_of(const placement& where) {
    return "rank " + std::to_string(where.rank) + " on " + where.host;
}

void print_job(const options& o, const std::vector<placement>& places) {
    const std::string address =
        for_others(own_addresses(places, o.interface, o.may_win_hosts())) + ":PORT";
    for (const placement& place : places) {
        environment variables = contract(o, place, int(places.size()), address);
        variables.merge(forwarded(o));
        std::string line = "[" + std::to_string(place.rank) + "] ";
        if (!place.is_local) line += readable_command(o.ssh_command, place.host) + ": ";
        for (const auto& [name, value] : variables) line += name + "=" + for_shell(value) + " ";
        std::printf("%s%s\n", line.c_str(), line_of(o.program).c_str());
    }
}

}  // namespace hvdrun
