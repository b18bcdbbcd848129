// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <deque>
#include <map>

#include "message.hpp"

namespace hvd::inline v0::detail {

// The words that a rank has for its neighbours. All words for one neighbour that are said between
// two looks at the outbox go in one message.
class outbox {
public:
    // The generation of words that hold in all of them.
    static constexpr std::uint32_t always = UINT32_MAX;

    struct outgoing {
        int to = -1;
        std::vector<std::byte> bytes;
    };

    message_writer& to(int neighbour, std::uint32_t generation) {
        auto& writers = generation == always ? lasting_ : writers_;
        return writers.try_emplace(neighbour, generation).first->second;
    }

    // The words up to now are messages of their own.
    void close() {
        for (auto* writers : {&writers_, &lasting_}) {
            for (auto& [neighbour, words] : *writers) closed_.push_back({neighbour, words.take()});
            writers->clear();
        }
    }

    bool next(outgoing& out) {
        if (closed_.empty()) close();
        if (closed_.empty()) return false;
        out = std::move(closed_.front());
        closed_.pop_front();
        return true;
    }

private:
    std::map<int, message_writer> writers_, lasting_;
    std::deque<outgoing> closed_;
};

}  // namespace hvd::inline v0::detail
