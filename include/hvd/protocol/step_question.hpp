// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "../core/lean/handles.hpp"

namespace hvd::inline v0::detail {

// A question to all ranks of a communicator, which the steps of training take along, so that it
// needs no call of its own. The answer is yes if that of one rank is. A call succeeds or fails on
// all ranks, so that they all have an answer, or none has.
class step_question : public counted {
public:
    // In a message of floats no scale, mean or codec of 16 bits makes a zero of it.
    static constexpr float yes = std::numeric_limits<float>::infinity();
    enum class answer : std::uint8_t { none, no, yes };

    // The answer of this rank.
    bool ask() { return ask_(*this); }
    // A call has brought the answer of all ranks.
    void settle(bool is_yes) {
        if (answer_ != answer::yes) answer_ = is_yes ? answer::yes : answer::no;
    }
    // Returns what calls have brought since it was asked for the last time.
    answer take_answer() { return std::exchange(answer_, answer::none); }

protected:
    explicit step_question(bool (*own_answer)(step_question&)) : ask_(own_answer) {}
    ~step_question() = default;

private:
    bool (*const ask_)(step_question&);
    answer answer_ = answer::none;
};

}  // namespace hvd::inline v0::detail
