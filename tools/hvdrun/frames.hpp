// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "numbers.hpp"

namespace hvdrun {

// The agent of a host tells one of these.
struct frame {
    enum class kind {
        said_by_host,  // bytes of the host itself, as a greeting of its login shell
        output,        // bytes of a rank
        errors,
        is_alive,       // after each signal
        has_started,    // with the process's number
        has_ended,      // with the exit code
        is_gone,        // the rank's output and processes, too
        took_input,     // it has room for more
        takes_no_input  // it has closed it
    };

    kind what = kind::said_by_host;
    int rank = 0;  // its number on the connection
    int value = 0;
    std::string_view bytes = {};
};

// Takes the bytes of one connection apart. The lines between the parts begin with the connection's
// key, a random text that no rank knows:
//     KEYo 7    the output of rank 7 follows, up to `KEY.`
//     KEYs 7 4711, KEYx 7 0, KEYg 7, KEYf 7 0, KEYa    events
class frame_reader {
public:
    explicit frame_reader(std::string key) : key_(std::move(key)) {}

    // Calls `take(frame)` for each part that is there. False if a line behind a key is none of
    // these: nothing that follows can be relied on.
    template <class F>
    bool add(std::string_view bytes, F&& take) {
        kept_ += bytes;
        std::string_view rest = kept_;
        for (;;) {
            const std::size_t at = rest.find(key_);
            const std::size_t size = at == rest.npos ? without_part_of_key(rest) : at;
            if (size > 0) take(frame{now_, rank_, 0, rest.substr(0, size)});
            rest.remove_prefix(size);
            if (at == rest.npos) break;
            const std::string_view line = rest.substr(key_.size(), longest_line);
            const std::size_t end = line.find('\n');
            if (end == line.npos && line.size() == longest_line) return false;
            if (end == line.npos) break;
            if (!read_line(line.substr(0, end), take)) return false;
            rest.remove_prefix(key_.size() + end + 1);
        }
        kept_.erase(0, kept_.size() - rest.size());
        return true;
    }

private:
    static constexpr std::size_t longest_line = 40;

    template <class F>
    bool read_line(std::string_view line, F&& take) {
        if (line.empty()) return false;
        const char what = line[0];
        line.remove_prefix(1);
        if (what == '.' || what == 'a') {
            now_ = frame::kind::said_by_host;
            if (what == 'a') take(frame{frame::kind::is_alive});
            return line.empty();
        }
        frame told;
        const bool has_value = what == 's' || what == 'x' || what == 'f';
        if (!read_number(line, told.rank) || (has_value && !read_number(line, told.value)) ||
            !line.empty() || told.value < 0)
            return false;
        switch (what) {
            case 'o':
            case 'e':
                now_ = what == 'o' ? frame::kind::output : frame::kind::errors;
                rank_ = told.rank;
                return true;
            case 's': told.what = frame::kind::has_started; break;
            case 'x': told.what = frame::kind::has_ended; break;
            case 'g': told.what = frame::kind::is_gone; break;
            case 'f':
                told.what = told.value == 0 ? frame::kind::took_input : frame::kind::takes_no_input;
                break;
            default: return false;
        }
        take(told);
        return true;
    }

    // Takes " 7" from the line.
    static bool read_number(std::string_view& line, int& number) {
        if (!line.starts_with(' ')) return false;
        const std::size_t end = line.find(' ', 1);
        const std::string_view text = line.substr(1, end == line.npos ? end : end - 1);
        line.remove_prefix(1 + text.size());
        return read_decimal(text, number);
    }

    // The size without an end with which a key may begin.
    std::size_t without_part_of_key(std::string_view bytes) const {
        for (std::size_t n = std::min(bytes.size(), key_.size() - 1); n > 0; --n)
            if (std::string_view(key_).starts_with(bytes.substr(bytes.size() - n)))
                return bytes.size() - n;
        return bytes.size();
    }

    std::string key_, kept_;
    frame::kind now_ = frame::kind::said_by_host;
    int rank_ = 0;
};

}  // namespace hvdrun
