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

// Whether a rank ran a plan where this one did something else.
inline bool runs_a_plan(const mismatch_error& e) {
    if (e.field() != "collective") return false;
    for (const auto& [rank, value] : e.table())
        if (value.find(" of plan ") != std::string_view::npos) return true;
    return false;
}

// The buckets of a step, which start in their order: calls are matched by it. All are run, whatever
// fails, since the peers run them, too; but ranks that were in another call made fewer.
template <class Comm, class T>
class bucket_queue {
public:
    std::size_t size() const { return buckets_.size(); }
    std::size_t started() const { return started_; }

    // **Collective**.
    void add(Comm& comm, std::vector<std::size_t> members, parameter_list<T>& parameters,
             const optimizer_options& options, const reduce_options& scales) {
        buckets_.emplace_back(comm, std::move(members), parameters, options, scales);
    }

    void clear() {
        buckets_.clear();
        together_ = true;
    }

    // Whether all ranks have made as many calls as this one, as far as it can tell: nothing came
    // after a call that failed.
    bool together() const { return together_; }

    // Those in front of which `complete` says that all their members are ready.
    template <class Complete>
    void start_while(Complete complete) {
        for (; started_ < buckets_.size() && complete(buckets_[started_].members()); ++started_)
            buckets_[started_].start();
    }

    // To the end of all, though one may fail: the peers run the others, too.
    void finish() {
        std::exception_ptr failure;
        for (std::size_t b = 0; b < started_; ++b) {
            try {
                buckets_[b].finish();
            } catch (...) {
                if (!failure) failure = std::current_exception();
                if (b + 1 < started_) together_ = false;
            }
        }
        started_ = 0;
        if (failure) std::rethrow_exception(failure);
    }

    // Refuses those that have not started: the peers run them.
    [[gnu::cold]] void refuse_rest(Comm& comm, std::string_view why) {
        for (std::size_t b = started_; b < buckets_.size(); ++b) refuse_one(comm, why);
    }

    // Instead of running them, where the first one's call failed: peers that did not see that this
    // step is another one run them.
    [[gnu::cold]] void stand_in(Comm& comm) {
        together_ = buckets_.size() < 2;
        for (std::size_t b = 1; b < buckets_.size(); ++b)
            refuse_one(comm, "this rank's parameters have changed");
    }

    // A call that the peers make.
    [[gnu::cold]] static void refuse_one(Comm& comm, std::string_view why) {
        constexpr std::string_view hvd = "hvd: ";  // is said again
        if (why.substr(0, hvd.size()) == hvd) why.remove_prefix(hvd.size());
        try {
            post_refusal(comm, why);
        } catch (...) {  // what failed before is what is thrown
        }
    }

private:
    std::vector<gradient_bucket<Comm, T>> buckets_;
    std::size_t started_ = 0;  // the first ones
    bool together_ = true;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
