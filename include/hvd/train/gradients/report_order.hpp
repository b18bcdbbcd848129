// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <vector>

#include "../../core/lean/order.hpp"
#include "../../core/op.hpp"
#include "../agreement.hpp"
#include "any_communicator.hpp"
#include "options.hpp"

namespace hvd::inline v0::detail {

// All gradients in the order in which they are expected. Those after the first `reported` may stay
// unreported.
struct expected_reports {
    std::vector<std::size_t> order;
    std::size_t reported = 0;
};

// The order in which gradients are reported. Each rank sees its own. The ranks agree on one: a
// gradient has the latest of its places on the ranks, since its bucket waits for all of them. They
// look at their orders before step 2, 10, 100, 1000, 2000, 3000, … so that no step between costs a
// message.
class report_order {
public:
    explicit report_order(const optimizer_options& o)
        : learns_(o.order != bucket_order::reverse && o.op != hvd::adasum),
          once_(o.order == bucket_order::learnt_once) {}

    // Makes the memory for the reports of this many gradients, so that no step needs any.
    void make_room(std::size_t parameters) {
        if (seen_.capacity() < parameters) seen_.reserve(2 * parameters);
        now_.resize(parameters);
    }

    // Gradient i is complete on this rank.
    void complete(std::size_t i) { now_[i] = ++reported_; }

    void drop_step() {
        now_.assign(now_.size(), 0);
        reported_ = 0;
    }

    // The calls of the step have succeeded, on all ranks.
    void end_step() {
        if (reported_ > 0) seen_ = now_;
        drop_step();
        ++steps_;
        due_ = due_ || (looks() && looks_after(steps_));
    }

    // True if the ranks look at their orders before the next step.
    bool due() const { return due_; }

    // True if the ranks will look again.
    bool looks() const { return learns_ && looks_; }

    // The buckets stay as they are, until parameters change.
    void keep() { due_ = looks_ = false; }

    // True if this rank did not report gradient i in its last step with reports.
    bool missed(std::size_t i) const {
        return !seen_.empty() && (i >= seen_.size() || seen_[i] == 0);
    }

    // Agrees on the order. `anew` says that this rank has to make its buckets anew. Returns true if
    // a rank has to: then all do. **Collective**.
    template <class Calls>
    [[gnu::cold]] bool agree(Calls& calls, std::size_t parameters, bool anew) {
        if (!learns_) return anew;
        const reduce_options o{.name = "order of reports"};
        std::vector<std::int64_t> latest = prepare_call(calls, collective::allreduce, o, [&] {
            places_.reserve(parameters);
            return latest_places(parameters, anew);
        });
        reduce_maxima(calls, std::span(latest), o);
        const bool all_anew = latest[0] != 0;
        places_.assign(latest.begin() + 2, latest.end());
        const bool learnt = parameters > 0 && places_[0] > 0;
        steps_ = all_anew ? 0 : latest[1];
        looks_ = all_anew || !once_ || !learnt;
        due_ = false;
        return all_anew;
    }

    // Returns the order that the ranks agreed on: by registration, from the last to the first,
    // until they have learnt another one. Those in `may_be_unreported` come last.
    [[gnu::cold]] expected_reports expected(
        std::size_t parameters, const std::vector<std::size_t>& may_be_unreported) const {
        std::vector<std::int64_t> place = places_;
        place.resize(parameters);
        const auto last = std::int64_t(parameters) + 1;
        for (const std::size_t i : may_be_unreported) place[i] = last;
        expected_reports all;
        std::vector<std::int64_t> from_last;  // to the first: the order of equal places
        for (std::size_t i = parameters; i-- > 0;) {
            from_last.push_back(place[i]);
            if (place[i] < last) ++all.reported;
        }
        for (const std::size_t k : ascending(from_last)) all.order.push_back(parameters - 1 - k);
        return all;
    }

private:
    [[gnu::cold]] std::vector<std::int64_t> latest_places(std::size_t parameters, bool anew) const {
        std::vector<std::int64_t> latest = {anew ? 1 : 0, steps_};
        for (std::size_t i = 0; i < parameters; ++i)
            latest.push_back(seen_.empty() ? 0
                             : missed(i)   ? std::int64_t(parameters) + 1
                                           : seen_[i]);
        return latest;
    }

    static bool looks_after(std::int64_t steps) {
        return steps == 1 || steps == 9 || steps == 99 || steps % 1000 == 999;
    }

    bool learns_, once_;
    bool looks_ = true, due_ = false;
    std::int64_t steps_ = 0;            // since the parameters changed
    std::int64_t reported_ = 0;         // number of complete gradients in this step
    std::vector<std::int64_t> now_;     // places in this step, from 1 on; 0 is not complete
    std::vector<std::int64_t> seen_;    // those of the last step with reports
    std::vector<std::int64_t> places_;  // those that the ranks agreed on
};

}  // namespace hvd::inline v0::detail
