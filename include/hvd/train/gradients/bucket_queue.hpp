// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "bucket_members.hpp"

namespace hvd::inline v0::detail {

// The buckets of a step. They start in a fixed order, since calls are matched by order. All are
// run, even if one fails, since the peers run them too. Ranks that were in another call made fewer.
// A `place` is what a bucket comes behind or before, as reducers have it.
template <class Bucket>
class bucket_queue {
public:
    std::size_t size() const { return buckets_.size(); }
    std::size_t started() const { return started_; }

    [[gnu::cold]] member_lists members() const {
        member_lists all;
        for (const auto& bucket : buckets_) all.push_back(bucket.members());
        return all;
    }

    [[gnu::cold]] void add(Bucket&& bucket) {
        buckets_.push_back(std::move(bucket));
        place_members(buckets_.size() - 1);
    }

    void begin_epoch(std::uint64_t epoch) {
        for (auto& bucket : buckets_) bucket.begin_epoch(epoch);
    }

    [[gnu::cold]] void clear() {
        buckets_.clear();
        places_.clear();
        started_ = 0;
        together_ = true;
    }

    // True if, as far as this rank knows, all ranks have made as many calls. It is false after a
    // failed call that others followed.
    bool together() const { return together_; }
    void come_apart() { together_ = false; }

    // The bucket of parameter i, if it has one.
    Bucket* find(std::size_t i) {
        return i < places_.size() && places_[i] < buckets_.size() ? &buckets_[places_[i]] : nullptr;
    }

    // Starts buckets in order, while `complete` says that all members of the next are ready.
    template <class Complete>
    void start_while(Complete complete) {
        for (; started_ < buckets_.size() && complete(buckets_[started_].members()); ++started_)
            buckets_[started_].start();
    }
    // Those that have not started come behind the place.
    template <class Place>
    void follow(Place behind) {
        for (std::size_t b = started_; b < buckets_.size(); ++b) buckets_[b].follow(behind);
    }

    // For calls that are matched by name, which start in any order: returns the bucket of parameter
    // i, and counts it as started, if `complete` says that all of its members are ready.
    template <class Complete>
    Bucket* take(std::size_t i, Complete complete) {
        const Bucket* const found = find(i);
        if (found == nullptr || places_[i] < started_ || !complete(found->members()))
            return nullptr;
        const std::size_t b = places_[i];
        std::swap(buckets_[b], buckets_[started_]);
        place_members(b);
        place_members(started_);
        return &buckets_[started_++];
    }

    template <class F>
    void for_each(F f) {
        for (auto& bucket : buckets_) f(bucket);
    }
    // Calls f with the members of each bucket that is under way.
    template <class F>
    void for_each_under_way(F f) const {
        for (std::size_t b = 0; b < started_; ++b)
            if (buckets_[b].is_under_way()) f(buckets_[b].members());
    }

    // Finishes all started buckets.
    template <class Place>
    void finish(Place before) {
        drop_if(run([](auto& bucket) { bucket.wait(); }));
        const std::exception_ptr first = run([](auto& bucket) { bucket.send_back(); }),
                                 then = run([&](auto& bucket) { bucket.finish(before); });
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
                if (b + 1 < started_) come_apart();
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

    std::vector<Bucket> buckets_;
    std::vector<std::size_t> places_;  // of the buckets of the parameters; -1 has none
    std::size_t started_ = 0;          // the first `started_` buckets have started
    bool together_ = true;
};

}  // namespace hvd::inline v0::detail
