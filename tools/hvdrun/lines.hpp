// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hvdrun {

// A line of a rank's output, or a part of one that is too long to be kept.
struct line_part {
    std::string_view bytes;  // with the newline, if it has one
    bool begins = true, ends = true;
};

// Makes lines of the bytes that arrive. It keeps one line, and at most `most_bytes` of it.
class line_splitter {
public:
    static constexpr std::size_t most_bytes = std::size_t(1) << 20;

    // Calls `take(line_part)` for each line that is complete.
    template <class F>
    void add(std::string_view bytes, F&& take) {
        while (!bytes.empty()) {
            const std::size_t newline = bytes.find('\n');
            const bool ends = newline != bytes.npos;
            std::string_view piece = bytes.substr(0, ends ? newline + 1 : newline);
            bytes.remove_prefix(piece.size());
            // A line that came as a whole is not copied.
            if (ends && kept_.empty()) hand_over(piece, true, take);
            else keep(piece, ends, take);
        }
    }

    // Calls `take` for what is left at the end.
    template <class F>
    void finish(F&& take) {
        if (!kept_.empty()) hand_over_kept(true, take);
    }

private:
    template <class F>
    void keep(std::string_view piece, bool ends, F&& take) {
        kept_ += piece;
        if (ends) hand_over_kept(true, take);
        else if (kept_.size() >= most_bytes) hand_over_kept(false, take);
    }
    template <class F>
    void hand_over_kept(bool ends, F&& take) {
        std::string line;
        line.swap(kept_);
        hand_over(line, ends, take);
    }
    template <class F>
    void hand_over(std::string_view bytes, bool ends, F&& take) {
        take(line_part{bytes, !is_inside_, ends});
        is_inside_ = !ends;
    }

    std::string kept_;
    bool is_inside_ = false;  // the beginning of the line has been handed over
};

}  // namespace hvdrun
