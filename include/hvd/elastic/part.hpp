// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/tcp.hpp"
#include "../comm/communicator.hpp"
#include "../protocol/outside_news.hpp"
#include "../protocol/step_question.hpp"
#include "members/membership.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Tells calls of the end of an epoch, as the membership hears it. Once the epoch is over, it asks
// the membership no more.
class epoch_news final : public outside_news {
public:
    explicit epoch_news(membership& own)
        : outside_news([](outside_news& self) {
              return static_cast<epoch_news&>(self).ask(&membership::epoch_ends);
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

// Ends the news with the epoch.
class heard_epoch {
public:
    explicit heard_epoch(membership& own) : news_(shared<epoch_news>::make(own)) {}
    heard_epoch(const heard_epoch&) = delete;
    ~heard_epoch() { news_->forget_membership(); }
    const shared<epoch_news>& news() const { return news_; }

private:
    shared<epoch_news> news_;
};

// The part of this process in an elastic job over a backend. A backend is elastic if it has one,
// with these functions. The calls of a communicator throw peer_error within milliseconds once the
// news tell of an end, or a rank that they wait for is dead.
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
    elastic_part(const tcp_options& own, const elastic_options& bounds)
        : membership_(checked(own), bounds) {}

    membership& own() { return membership_; }

    // Makes the communicator of an epoch, with all its members.
    // @throws peer_error if one of them is lost meanwhile
    static communicator<Backend> communicator_of(const elastic_epoch& epoch,
                                                 const shared<outside_news>& news,
                                                 const communicator_options& options) {
        epoch.job->give_up_when(news);
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

}  // namespace detail
}  // namespace v0
}  // namespace hvd
