// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "options.hpp"

namespace hvdrun {

// Something that a meeting place has to tell.
struct job_event {
    enum class kind { has_met, has_not_met, epoch_begins, works, is_lost, job_ends };
    // A process by the number of its slot, and its own random number.
    struct member {
        int slot;
        std::uint64_t id;
    };

    kind what;
    double at = 0;
    std::string why = {};  // the ranks have not met
    int epoch = 0;
    std::int64_t step = 0;             // from which the epoch goes on, or that is committed
    std::vector<member> members = {};  // of the epoch, by rank
    int slot = -1;                     // of the process that works, or whose connection has ended
    std::int64_t samples = 0;          // of the process so far
};

// The place where the ranks of a job find each other, in a thread of hvdrun.
class meeting_place {
public:
    meeting_place(const meeting_place&) = delete;
    meeting_place& operator=(const meeting_place&) = delete;
    virtual ~meeting_place() = default;

    virtual int port() const = 0;
    // Begins to serve. Ranks that came before wait.
    virtual void serve() = 0;
    // Nothing is started any more, and so many ranks live.
    virtual void expect(int) {}
    // The process of this slot has ended.
    virtual void has_died(int) {}
    std::vector<job_event> take_events();

protected:
    // The file of this number gets a byte with each of the job_event.
    explicit meeting_place(int told) : told_(told) {}
    void tell(job_event what);

private:
    const int told_;
    std::mutex mutex_;
    std::vector<job_event> news_;
};

// For a static job, which meets once. It listens at these addresses of this host,
// or at all where none is named.
std::unique_ptr<meeting_place> make_rendezvous(int ranks, const std::string& secret_digits,
                                               int told, const std::vector<std::string>& at);

// For an elastic job, which begins with so many ranks.
std::unique_ptr<meeting_place> make_coordinator(const options& o, int ranks,
                                                const std::string& secret_digits, int told,
                                                const std::vector<std::string>& at);

// Signals are for the main thread: those that are started meanwhile get none.
class signals_blocked {
public:
    signals_blocked();
    signals_blocked(const signals_blocked&) = delete;
    signals_blocked& operator=(const signals_blocked&) = delete;
    ~signals_blocked();

private:
    sigset_t before_;
};

}  // namespace hvdrun
