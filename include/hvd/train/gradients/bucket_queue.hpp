// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <utility>
#include <vector>

#include "../agreement.hpp"
#include "bucket.hpp"
#include "bucket_members.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Returns true if a rank ran a plan while this rank made another call.
inline bool runs_a_plan(const mismatch_error& e) {
    if (e.field() != "collective") return false;
    for (const auto& [rank, value] : e.table())
        if (value.find(" of plan ") != std::string_view::npos) return true;
    return false;
}

// The buckets of a step. They start in a fixed order, since calls are matched by order. All are
// run, even if one fails, since the peers run them too. Ranks that were in another call made fewer.
template <class Calls>
class bucket_queue {
public:
    std::size_t size() const { return buckets_.size(); }
    std::size_t started() const { return started_; }

    member_lists members() const {
        member_lists all;
        for (const auto& bucket : buckets_) all.push_back(bucket.members());
        return all;
    }

    // **Collective**.
    void add(Calls& comm, std::vector<std::size_t> members, parameter_list& parameters,
             const optimizer_options& options, const reduce_options& scales,
             shared<step_question> question) {
        buckets_.emplace_back(comm, std::move(members), parameters, options, scales,
                              std::move(question));
        place_members(buckets_.size() - 1);
    }

    void begin_epoch(std::uint64_t epoch) {
        for (auto& bucket : buckets_) bucket.begin_epoch(epoch);
    }

    void clear() {
        buckets_.clear();
        places_.clear();
        together_ = true;
    }

    // True if, as far as this rank knows, all ranks have made as many calls. It is false after a
    // failed call that others followed.
    bool together() const { return together_; }

    // Starts buckets in order, while `complete` says that all members of the next are ready.
    template <class Complete>
    void start_while(Complete complete) {
        for (; started_ < buckets_.size() && complete(buckets_[started_].members()); ++started_)
            buckets_[started_].start();
    }

    // For calls that are matched by name, which start in any order: returns the bucket of parameter
    // i, and counts it as started, if `complete` says that all of its members are ready.
    template <class Complete>
    gradient_bucket<Calls>* take(std::size_t i, Complete complete) {
        if (i >= places_.size() || places_[i] >= buckets_.size() || places_[i] < started_)
            return nullptr;
        const std::size_t b = places_[i];
        if (!complete(buckets_[b].members())) return nullptr;
        std::swap(buckets_[b], buckets_[started_]);
        place_members(b);
        place_members(started_);
        return &buckets_[started_++];
    }

    // Calls f with the members of each bucket that is under way.
    template <class F>
    void for_each_under_way(F f) const {
        for (std::size_t b = 0; b < started_; ++b)
            if (buckets_[b].is_under_way()) f(buckets_[b].members());
    }

    // Finishes all started buckets.
    void finish() {
        drop_if(run([](auto& bucket) { bucket.wait(); }));
        const std::exception_ptr first = run([](auto& bucket) { bucket.send_back(); }),
                                 then = run([](auto& bucket) { bucket.finish(); });
        drop_if(first ? first : then);
        started_ = 0;
    }

    // Ends the calls under way without those that would follow them. The peers do the same, since a
    // failed call fails on all ranks.
    void drop() {
        drop_if(run([](auto& bucket) { bucket.wait(); }));
        started_ = 0;
    }

    // The step with the gradients of all buckets was made.
    void commit() {
        for (auto& bucket : buckets_) bucket.commit();
    }

    // Refuses the buckets that have not started, since the peers run them.
    [[gnu::cold]] void refuse_rest(Calls& comm, std::string_view why) {
        for (std::size_t b = started_; b < buckets_.size(); ++b) refuse_one(comm, why);
    }

    // Refuses all buckets but the first, whose call failed. Peers that did not see that this step
    // differs run them.
    [[gnu::cold]] void stand_in(Calls& comm) {
        together_ = buckets_.size() < 2;
        for (std::size_t b = 1; b < buckets_.size(); ++b)
            refuse_one(comm, "this rank's parameters have changed");
    }

    // Refuses one call that the peers make.
    [[gnu::cold]] static void refuse_one(Calls& comm, std::string_view why) {
        constexpr std::string_view hvd = "hvd: ";  // refuse_call adds it again
        if (why.substr(0, hvd.size()) == hvd) why.remove_prefix(hvd.size());
        try {
            refuse_call(comm, why);
        } catch (...) {  // the first failure is the one to throw
        }
    }

private:
    // Calls f with all started buckets, even if it fails for one, since the peers run the others
    // too. It returns the first failure.
    template <class F>
    std::exception_ptr run(F f) {
        std::exception_ptr failure;
        for (std::size_t b = 0; b < started_; ++b) {
            try {
                f(buckets_[b]);
            } catch (...) {
                if (!failure) failure = std::current_exception();
                if (b + 1 < started_) together_ = false;
            }
        }
        return failure;
    }

    void drop_if(const std::exception_ptr& failure) {
        if (!failure) return;
        started_ = 0;
        std::rethrow_exception(failure);
    }

    void place_members(std::size_t b) {
        for (const std::size_t i : buckets_[b].members()) {
            if (places_.size() <= i) places_.resize(i + 1, std::size_t(-1));
            places_[i] = b;
        }
    }

    std::vector<gradient_bucket<Calls>> buckets_;
    std::vector<std::size_t> places_;  // of the buckets of the parameters; -1 has none
    std::size_t started_ = 0;          // the first `started_` buckets have started
    bool together_ = true;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
