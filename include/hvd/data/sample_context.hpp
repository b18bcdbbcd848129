// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include "errors.hpp"
#include "random.hpp"

namespace hvd::inline v0::detail {

class stage_run;

}  // namespace hvd::inline v0::detail

namespace hvd::inline v0::data {

/// A sample that is being made, and the stage that it has reached. It passes through all stages of
/// a pipeline.
class sample_context {
public:
    sample_context(std::uint64_t seed, std::uint64_t epoch) : seed_(seed), epoch_(epoch) {}

    void begin(std::uint64_t sample, std::uint64_t place = 0) {
        sample_ = sample;
        place_ = place;
    }
    void enter(int stage, const char* name) {
        stage_ = stage;
        name_ = name;
    }
    void skip(const std::exception_ptr& failure) {
        ++skipped_;
        last_failure_ = described(failure);
    }

    std::uint64_t sample() const { return sample_; }
    // Its place among the samples of the batch.
    std::uint64_t place() const { return place_; }
    // The batch in the stages that have threads of their own.
    void use(hvd::detail::stage_run* const* runs) { runs_ = runs; }
    hvd::detail::stage_run* run(std::size_t queue) const { return runs_[queue]; }
    // The time for which it waited for samples of such a stage.
    void wait_for(std::int64_t time) { waited_ += time; }
    std::int64_t waited() const { return waited_; }
    // Goes on where another thread has ended with the same sample.
    void take_over(sample_context other) {
        stage_ = other.stage_;
        name_ = other.name_;
        if (other.skipped_ == 0) return;
        skipped_ += other.skipped_;
        last_failure_ = std::move(other.last_failure_);
    }
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

    std::uint64_t seed_, epoch_, sample_ = 0, place_ = 0;
    int stage_ = 0;
    const char* name_ = "from";
    std::uint64_t skipped_ = 0;
    hvd::detail::stage_run* const* runs_ = nullptr;
    std::int64_t waited_ = 0;  // nanoseconds
    hvd::detail::message last_failure_;
};

}  // namespace hvd::inline v0::data
