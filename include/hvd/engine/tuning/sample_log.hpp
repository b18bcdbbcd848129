// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <charconv>
#include <cstdio>
#include <utility>

#include "../../core/settings/read_setting.hpp"
#include "../../core/settings/tuned_settings.hpp"

namespace hvd::inline v0::detail {

// A file with a line for each sample of a search: step, stage, seconds, and each threshold.
class sample_log {
public:
    sample_log() = default;
    // @throws hvd::usage_error if the file can't be written.
    sample_log(const std::string& path, int rank) : file_(std::fopen(path.c_str(), "w")) {
        if (file_ == nullptr)
            throw usage_error(rank,
                              text("hvd: the log of an autotune, '", path, "', can't be written"));
        std::fputs("step,stage,seconds", file_);
        for (const setting& s : settings_of<engine_tuning>::table)
            std::fprintf(file_, ",%s", s.key);
        end_line();
    }
    sample_log(sample_log&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
    sample_log& operator=(sample_log&& other) noexcept {
        std::swap(file_, other.file_);
        return *this;
    }
    ~sample_log() { close(); }

    void add(int step, const char* stage, double seconds, const engine_tuning& values) {
        if (file_ == nullptr) return;
        char number[32];  // with a point in every locale: a comma would begin another field
        const char* const end =
            std::to_chars(number, number + sizeof number, seconds, std::chars_format::general, 9)
                .ptr;
        std::fprintf(file_, "%d,%s,%.*s", step, stage, int(end - number), number);
        for (const setting& s : settings_of<engine_tuning>::table)
            std::fprintf(file_, ",%s", value_text(s, &values).c_str());
        end_line();
    }
    void close() {
        if (file_ != nullptr) std::fclose(std::exchange(file_, nullptr));
    }

private:
    // Somebody may look at the file while the search goes on.
    void end_line() {
        std::fputc('\n', file_);
        std::fflush(file_);
    }

    std::FILE* file_ = nullptr;
};

}  // namespace hvd::inline v0::detail
