// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "discovery.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>

#include <poll.h>

#include "environment.hpp"
#include "failure.hpp"
#include "times.hpp"

namespace hvdrun {
namespace {

constexpr double interval = 1;   // seconds
constexpr double patience = 30;  // with one run
constexpr std::size_t most_bytes = std::size_t(1) << 20;

// Takes what can be read now, and closes the file at its end.
void take_from(file_descriptor& file, std::string& text) {
    char bytes[4096];
    while (file) {
        const ssize_t n = ::read(file.number(), bytes, sizeof bytes);
        if (n > 0 && text.size() < most_bytes) text.append(bytes, std::size_t(n));
        if (n > 0 || (n < 0 && errno == EINTR)) continue;
        if (n < 0 && errno == EAGAIN) return;
        file.close();
    }
}

std::string last_line(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') + 1);
}

}  // namespace

bool discovery::look(double now) {
    if (!is_running()) {
        return now >= started_at_ + interval && !begin(now);
    }
    take_from(process_.output, printed_);
    take_from(process_.errors, errors_);
    ending how;
    if (!has_ended(process_.id, how)) {
        if (now < started_at_ + patience) return false;
        end_process();
        why_ = "it has not ended within " + std::to_string(std::lround(patience)) + " s";
        return true;
    }
    take_from(process_.output, printed_);
    take_from(process_.errors, errors_);
    end_process();
    take_result(how);
    note_empty(now);
    return true;
}

bool discovery::begin(double now) {
    started_at_ = now;
    printed_.clear();
    errors_.clear();
    is_empty_ = false;
    try {
        process_ = start({"/bin/sh", "-c", script_}, own_environment(), false, SIGKILL);
    } catch (const failure& error) {
        why_ = error.what();
    }
    return is_running();
}

void discovery::end_process() {
    if (!is_running()) return;
    ::kill(-process_.id, SIGKILL);
    reap(process_.id);
    process_ = {};
}

void discovery::take_result(const ending& how) {
    why_.clear();
    if (how.is_failure()) {
        const std::string said = last_line(errors_);
        why_ = "it ended with " + how.description() + (said.empty() ? "" : ": " + said);
        return;
    }
    try {
        host_list shown = read_discovered(printed_, slots_per_host_);
        is_empty_ = shown.empty();
        if (is_empty_) why_ = "it has printed no host";
        else hosts_ = std::move(shown);
    } catch (const failure& error) {
        why_ = error.what();
    }
}

void discovery::note_empty(double now) {
    ended_at_ = now;
    if (is_empty_) empty_since_ = std::min(empty_since_, now);
    else if (why_.empty()) empty_since_ = never;
}

std::string empty_too_long(const std::string& script, double patience) {
    return "--host-discovery-script " + script + ": it has printed no host for " +
           short_number(patience) + " s (--elastic-timeout)";
}

host_list discover(const std::string& script, int slots_per_host, int slots, double wait) {
    discovery asked(script, slots_per_host);
    const double begin = seconds();
    for (;;) {
        const bool is_new = asked.look(seconds());
        if (is_new && !asked.why().empty() && !asked.is_empty())
            throw failure(1, "--host-discovery-script " + script + ": " + asked.why());
        const int there = number_of_slots(asked.hosts());
        if (is_new && there >= slots) return asked.hosts();
        if (seconds() <= begin + wait) {
            ::poll(nullptr, 0, 20);
            continue;
        }
        if (asked.is_empty()) throw failure(1, empty_too_long(script, wait));
        throw failure(1, "--host-discovery-script " + script + ": it shows " +
                             std::to_string(there) + " of " + std::to_string(slots) +
                             " slots after " + short_number(wait) + " s (--elastic-timeout)");
    }
}

}  // namespace hvdrun
