// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../transport/tcp/tcp_job.hpp"
#include "messages.hpp"

namespace hvd::inline v0::detail {

// One epoch of an elastic job, as one of its processes knows it.
struct elastic_epoch {
    bool has_ended = false;  // there is no further one: all have done their steps
    int rank = 0, size = 0;
    int source = 0;         // the rank whose state all take
    bool is_equal = false;  // all have that state already
    bool has_lost = false;  // a member of this process's last epoch is none any more
    state_stamp stamp;      // of that state
    std::uint64_t number = 0;
    std::uint64_t job_number = 0;         // a random one, which no other epoch has
    std::uint64_t whole_job = 0;          // that of all epochs
    std::vector<elastic_member> members;  // by rank
    shared<tcp_job> job;
};

}  // namespace hvd::inline v0::detail
