// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hvdrun {

// The number of bytes without a character of UTF-8 whose end is missing. Bytes that are no UTF-8
// count as they are.
inline std::size_t whole_characters(std::string_view bytes) {
    for (std::size_t n = 1; n <= 3 && n <= bytes.size(); ++n) {
        const auto byte = static_cast<unsigned char>(bytes[bytes.size() - n]);
        if ((byte & 0xc0) == 0x80) continue;
        const std::size_t length = byte < 0xc2   ? 1
                                   : byte < 0xe0 ? 2
                                   : byte < 0xf0 ? 3
                                   : byte < 0xf5 ? 4
                                                 : 1;
        return length > n ? bytes.size() - n : bytes.size();
    }
    return bytes.size();
}

// A line of a rank's output, or a part of one that has no end yet.
struct line_part {
    std::string_view bytes;  // with the newline or the carriage return, if it has one
    bool begins = true, ends = true;
};

// Makes lines of the bytes that arrive. A carriage return ends a line, too: a program that shows
// its progress goes on at the beginning of the line. It keeps one line, and at most `most_bytes` of
// it.
class line_splitter {
public:
    static constexpr std::size_t most_bytes = std::size_t(1) << 20;

    // Calls `take(line_part)` for each line that is complete.
    template <class F>
    void add(std::string_view bytes, F&& take) {
        while (!bytes.empty()) {
            const bool after_return = kept_.ends_with('\r');
            if (after_return && bytes.front() != '\n') hand_over_kept(true, take);
            const std::string_view piece = first_piece(bytes);
            bytes.remove_prefix(piece.size());
            // The newline of a return at the end may follow.
            const bool ends = piece.ends_with('\n') || (piece.ends_with('\r') && !bytes.empty());
            // A line that came as a whole is not copied.
            if (ends && kept_.empty()) hand_over(piece, true, take);
            else keep(piece, ends, take);
        }
    }

    // True while a line has no end yet.
    bool has_part() const { return whole_characters(kept_) > 0; }
    std::size_t part_size() const { return kept_.size(); }
    // Calls `take` for the part of a line that has no end yet.
    template <class F>
    void show_part(F&& take) {
        if (has_part()) hand_over_kept(kept_.ends_with('\r'), take);
    }

    // Calls `take` for what is left at the end.
    template <class F>
    void finish(F&& take) {
        if (kept_.empty()) return;
        std::string line;
        line.swap(kept_);
        hand_over(line, true, take);
    }

private:
    // The bytes to the end of the first line.
    static std::string_view first_piece(std::string_view bytes) {
        const std::string_view line = bytes.substr(0, bytes.find('\n'));
        const std::size_t back = line.find('\r');
        if (back != line.npos && back + 1 < line.size()) return bytes.substr(0, back + 1);
        return bytes.substr(0, line.size() + 1);
    }
    template <class F>
    void keep(std::string_view piece, bool ends, F&& take) {
        kept_ += piece;
        if (ends) hand_over_kept(true, take);
        else if (kept_.size() >= most_bytes) hand_over_kept(false, take);
    }
    // A character whose end is missing stays.
    template <class F>
    void hand_over_kept(bool ends, F&& take) {
        std::string line;
        line.swap(kept_);
        const std::size_t whole = ends ? line.size() : whole_characters(line);
        kept_ = line.substr(whole);
        hand_over(std::string_view(line).substr(0, whole), ends, take);
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
