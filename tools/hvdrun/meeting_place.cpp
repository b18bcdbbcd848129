// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "meeting_place.hpp"

#include <utility>

#include <unistd.h>

#include "times.hpp"

namespace hvdrun {

std::vector<job_event> meeting_place::take_events() {
    const std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
}

void meeting_place::tell(job_event what) {
    what.at = seconds();
    {
        const std::lock_guard lock(mutex_);
        news_.push_back(std::move(what));
    }
    const char byte = 'r';
    [[maybe_unused]] const ssize_t n = ::write(told_, &byte, 1);
}

signals_blocked::signals_blocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
}

signals_blocked::~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace hvdrun
