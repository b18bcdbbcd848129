// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <string>

#include "../../core/tuning.hpp"
#include "../../platform/clock.hpp"
#include "rank_set.hpp"

namespace hvd::inline v0::detail {

// Decides when a rank asks who has not submitted a tensor, when it tells the answer, and when it
// gives the engine up. It has no thread and no clock.
class stall_watch {
public:
    // The time in which rank 0 answers. It names the ranks that do not answer it, and does not
    // answer itself if it is stopped.
    static constexpr std::int64_t patience = tuning::second;

    struct tensor {
        std::string name;       // empty: there is none
        time_point at = never;  // since when it waits, or until when it may
    };
    enum class verdict { rest, ask, tell, give_up };
    struct finding {
        verdict what = verdict::rest;
        std::string name;
        time_point again = never;  // look again by then
    };

    // The options of an engine: nanoseconds, 0 is never.
    stall_watch(std::int64_t warn, std::int64_t abort) : warn_(warn), abort_(abort) {}

    // `oldest` has waited for the longest time, `urgent` has the timeout that comes first.
    // `may_ask`: the ranks negotiate, so that they know what others have not submitted.
    finding look(const tensor& oldest, const tensor& urgent, time_point time, bool may_ask) {
        finding by_timeout, by_wait;
        if (!urgent.name.empty() && urgent.at != never)
            by_timeout = look_at_end(urgent, urgent.at, time, may_ask);
        const bool awaits_end = is_about(urgent) && question_.ends;
        if (by_timeout.what != verdict::rest || awaits_end) return by_timeout;
        if (!oldest.name.empty()) by_wait = look_at_wait(oldest, time, may_ask);
        if (by_timeout.again < by_wait.again) by_wait.again = by_timeout.again;
        return by_wait;
    }

    // The ranks have answered a question: `who` says which of them have not submitted the tensor.
    // True if this rank tells it.
    bool note_answer(std::string_view name, std::string_view who, const rank_set& missing) {
        if (!is_open() || name != question_.name) return false;
        question_.answer = who;
        question_.missing = missing;
        return !question_.ends;
    }

    // The answer to the last question.
    const std::string& answer() const { return question_.answer; }
    const rank_set& missing() const { return question_.missing; }
    // Since when this rank waits for the tensor that it last asked for.
    time_point since() const { return question_.at; }

private:
    struct question {
        std::string name, answer;
        time_point at = never, asked = never;
        bool ends = false;  // the engine is given up afterwards
        rank_set missing;
    };

    bool is_open() const { return !question_.name.empty() && question_.answer.empty(); }
    bool is_about(const tensor& t) const {
        return question_.name == t.name && question_.at == t.at;
    }

    finding look_at_wait(const tensor& t, time_point time, bool may_ask) {
        finding f;
        if (abort_ > 0) f = look_at_end(t, t.at + abort_, time, may_ask);
        const bool awaits_end = is_about(t) && question_.ends;
        if (f.what != verdict::rest || awaits_end || warn_ <= 0) return f;
        finding warning = look_at_warning(t, time, may_ask);
        if (f.again < warning.again) warning.again = f.again;
        return warning;
    }

    finding look_at_warning(const tensor& t, time_point time, bool may_ask) {
        if (is_about(t)) {
            if (!is_open()) return {};
            return awaits_answer(time) ? finding{verdict::rest, t.name, question_.asked + patience}
                                       : finding{verdict::tell, t.name, never};
        }
        if (time < t.at + warn_ || !may_ask) return {verdict::rest, t.name, t.at + warn_};
        return ask(t, time, false);
    }

    // Asks once more before the end, since other ranks may be missing than before.
    finding look_at_end(const tensor& t, time_point end, time_point time, bool may_ask) {
        if (time < end || !may_ask) return {verdict::rest, t.name, end};
        if (!is_about(t) || !question_.ends) return ask(t, time, true);
        if (is_open() && awaits_answer(time))
            return {verdict::rest, t.name, question_.asked + patience};
        return {verdict::give_up, t.name, never};
    }

    finding ask(const tensor& t, time_point time, bool ends) {
        question_ = {t.name, {}, t.at, time, ends, {}};
        return {verdict::ask, t.name, time + patience};
    }

    // False if rank 0 has not answered in time.
    bool awaits_answer(time_point time) {
        if (time < question_.asked + patience) return true;
        question_.answer = "rank 0 does not answer";
        question_.missing.add(0);
        return false;
    }

    const std::int64_t warn_, abort_;
    question question_;  // the last one
};

}  // namespace hvd::inline v0::detail
