// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "../../platform/clock.hpp"
#include "outbox.hpp"
#include "rank_tree.hpp"

namespace hvd::inline v0::detail {

// Who has not submitted a tensor: a question goes down the tree, and the answers come back up.
class questions {
public:
    struct answer {
        std::uint64_t id = 0;
        std::string name;
        rank_set missing, silent;

        rank_set ranks() const {
            rank_set all = missing;
            all.add(silent);
            return all;
        }
        std::string text() const {
            message result;
            if (!missing.empty())
                result += detail::text(missing.print(), missing.size() == 1 ? " has" : " have",
                                       " not submitted it");
            if (!silent.empty())
                result += detail::text(result.empty() ? "" : "; ", silent.print(),
                                       silent.size() == 1 ? " does" : " do", " not answer");
            if (result.empty()) result += "all ranks have submitted it meanwhile";
            return std::string(std::string_view(result));
        }
    };

    // `missing` has this rank, if the tensor is missing here.
    void open(std::uint64_t id, std::string_view name, const rank_set& missing,
              const std::vector<child_rank>& children) {
        question& q = open_[id];
        q.answer.id = id;
        q.answer.name = name;
        q.answer.missing = missing;
        for (const child_rank& c : children) q.children.emplace(c.rank, &c.below);
    }
    void note_answer(std::uint64_t id, int child, const rank_set& missing, const rank_set& silent) {
        const auto found = open_.find(id);
        if (found == open_.end()) return;  // it comes too late
        found->second.answer.missing.add(missing);
        found->second.answer.silent.add(silent);
        found->second.children.erase(child);
    }
    // Who has not answered a question so long after the first look at it does not. It returns the
    // time of the next look.
    time_point look(time_point time, std::int64_t patience) {
        time_point next = never;
        for (auto& [id, q] : open_) {
            if (q.end == never) q.end = time + patience;
            if (time < q.end) {
                next = std::min(next, q.end);
                continue;
            }
            for (const auto& [child, below] : q.children) q.answer.silent.add(*below);
            q.children.clear();
        }
        return next;
    }
    // The next question that all have answered.
    bool next(answer& a) {
        for (auto at = open_.begin(); at != open_.end(); ++at)
            if (at->second.children.empty()) {
                a = std::move(at->second.answer);
                open_.erase(at);
                return true;
            }
        return false;
    }

private:
    struct question {
        questions::answer answer;
        std::map<int, const rank_set*> children;  // those that have not answered
        time_point end = never;
    };
    std::map<std::uint64_t, question> open_;
};

}  // namespace hvd::inline v0::detail
