// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include "../core/error.hpp"

namespace hvd::inline v0::data {

/// A stage of a pipeline threw. `what()` names the stage, the sample and the exception's text.
class stage_error : public error {
public:
    stage_error(int rank, std::string_view what, int stage, std::uint64_t sample,
                std::exception_ptr cause)
        : error(rank, what), stage_(stage), sample_(sample), cause_(std::move(cause)) {}

    /// The stage's place in the pipeline. That of `from` is 0.
    int stage() const noexcept { return stage_; }
    /// The number of `sample()` where this rank's part of a batch has none.
    static constexpr std::uint64_t no_sample = UINT64_MAX;
    /// The sample's number in its source. For a stage of batches it is that of the
    /// first sample in this rank's part, or `no_sample`.
    std::uint64_t sample() const noexcept { return sample_; }
    /// The exception that the stage threw. It is null where too many samples were skipped.
    const std::exception_ptr& cause() const noexcept { return cause_; }

private:
    int stage_;
    std::uint64_t sample_;
    std::exception_ptr cause_;
};

/// A file of samples can't be read, or its contents are wrong. `what()` begins with its path and,
/// where one byte is to blame, that byte's offset.
class file_error : public error {
public:
    using error::error;
};

}  // namespace hvd::inline v0::data
