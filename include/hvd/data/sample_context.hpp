// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include "errors.hpp"
#include "random.hpp"

namespace hvd::inline v0::data {

/// A sample that is being made, and the stage that it has reached. It passes through all stages of
/// a pipeline.
class sample_context {
public:
    sample_context(std::uint64_t seed, std::uint64_t epoch) : seed_(seed), epoch_(epoch) {}

    void begin(std::uint64_t sample) { sample_ = sample; }
    void enter(int stage, const char* name) {
        stage_ = stage;
        name_ = name;
    }
    void skip(const std::exception_ptr& failure) {
        ++skipped_;
        last_failure_ = described(failure);
    }

    std::uint64_t sample() const { return sample_; }
    random draws() const {
        return random(hvd::detail::mixed_key(seed_, epoch_, sample_, std::uint64_t(stage_)));
    }

    // The samples that were skipped, and why the last one was.
    std::uint64_t skipped() const { return skipped_; }
    std::string_view last_failure() const { return last_failure_; }

    [[gnu::cold, noreturn]] void fail(int rank, const std::exception_ptr& failure) const {
        throw stage_error(rank, described(failure), stage_, sample_, failure);
    }

private:
    [[gnu::cold]] hvd::detail::message described(const std::exception_ptr& failure) const {
        hvd::detail::message all = hvd::detail::text("stage ", stage_, " (", name_, "), ");
        if (sample_ == stage_error::no_sample) all += "no sample of epoch ";
        else all += hvd::detail::text("sample ", sample_, " of epoch ");
        all += hvd::detail::text(epoch_, ": ", hvd::detail::what_of(failure));
        return all;
    }

    std::uint64_t seed_, epoch_, sample_ = 0;
    int stage_ = 0;
    const char* name_ = "from";
    std::uint64_t skipped_ = 0;
    hvd::detail::message last_failure_;
};

}  // namespace hvd::inline v0::data
