// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/tcp.hpp"
#include "../comm/communicator.hpp"
#include "../protocol/failure_detector.hpp"
#include "../protocol/step_question.hpp"
#include "members/membership.hpp"

namespace hvd::inline v0::detail {

// Tells calls of the end of an epoch, as the membership learns it. Once the epoch is over, it asks
// the membership no more.
class epoch_monitor final : public failure_detector {
public:
    explicit epoch_monitor(membership& own)
        : failure_detector([](failure_detector& self) {
              return static_cast<epoch_monitor&>(self).ask(&membership::epoch_ends);
          }),
          own_(&own) {}

    bool should_join() { return ask(&membership::should_join); }
    void tell_work(std::int64_t step, std::int64_t samples) {
        const lock_guard lock(mutex_);
        if (own_ != nullptr) own_->tell_work(step, samples);
    }
    void forget_membership() {
        const lock_guard lock(mutex_);
        own_ = nullptr;
    }

private:
    bool ask(bool (membership::*question)()) {
        const lock_guard lock(mutex_);
        return own_ == nullptr || (own_->*question)();
    }

    mutex mutex_;
    membership* own_;
};

// Ends the monitor with the epoch.
class monitored_epoch {
public:
    explicit monitored_epoch(membership& own) : monitor_(shared<epoch_monitor>::make(own)) {}
    monitored_epoch(const monitored_epoch&) = delete;
    ~monitored_epoch() { monitor_->forget_membership(); }
    const shared<epoch_monitor>& monitor() const { return monitor_; }

private:
    shared<epoch_monitor> monitor_;
};

// The part of this process in an elastic job over a backend. A backend is elastic if it has one,
// with these functions. The calls of a communicator throw peer_error within milliseconds once the
// the failure detector tells of an end, or a rank that they wait for is dead.
template <class Backend>
class elastic_part;

template <class Endpoint>
concept made_of_a_job = requires(const shared<tcp_job>& job, const communicator_options& options) {
    Endpoint::world(job, options);
};

template <class Backend>
    requires made_of_a_job<typename Backend::endpoint_type>
class elastic_part<Backend> {
public:
    // @throws usage_error for options that say too little or contradict each other
    elastic_part(const tcp_options& own, const elastic::bounds& bounds)
        : membership_(checked(own), bounds) {}

    membership& own() { return membership_; }

    // Makes the communicator of an epoch, with all its members.
    // @throws peer_error if one of them is lost meanwhile
    static communicator<Backend> communicator_of(const elastic_epoch& epoch,
                                                 const shared<failure_detector>& detector,
                                                 const communicator_options& options) {
        epoch.job->give_up_when(detector);
        return communicator<Backend>::world(epoch.job, options);
    }

private:
    static const tcp_options& checked(const tcp_options& own) {
        require_tcp_ranks(own);
        return own;
    }

    membership membership_;
};

// The communicator of an epoch is what fn takes, and its calls are over when it returns. Parts with
// others have functions of these names for them. If the ranks have to agree before they hold a step
// they also settle a question then.
template <class F, class Comm>
void call_with(F& fn, Comm& comm) {
    fn(comm);
}
template <class Comm>
void begin_step(Comm&) {}
template <class Comm>
void end_step(Comm&, step_question* = nullptr) {}

template <class Backend>
constexpr bool is_elastic = requires { sizeof(elastic_part<Backend>); };

}  // namespace hvd::inline v0::detail
