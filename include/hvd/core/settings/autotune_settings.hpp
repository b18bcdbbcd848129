// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>
#include <optional>

#include "../engine_options.hpp"
#include "setting.hpp"

namespace hvd::inline v0 {

/// The outcome of `hvd::autotune`.
struct autotune_result {
    engine_tuning chosen;       ///< the thresholds that are in force from now on
    double seconds = 0;         ///< of a step with them, a median; 0 if nothing was measured
    double seconds_before = 0;  ///< of a step with the thresholds of the start, measured in turns
    int steps = 0;              ///< that it took
};

/// Options of `hvd::autotune`. All ranks give the same, but for `log`, `file` and the functions;
/// they compare them. Horovod: `HOROVOD_AUTOTUNE`.
struct autotune_options {
    bool enabled = true;       ///< false leaves all thresholds as they are
    int warmup_steps = 10;     ///< steps at the start that do not count
    int steps_per_sample = 5;  ///< steps whose median is one sample of a candidate
    int max_steps = 2000;      ///< steps after which the search has ended, all of them counted
    /// keys of settings that stay as they are, with commas between them. Horovod: those that the
    /// user has set
    std::string fixed = {};
    std::string log = {};  ///< a file in which rank 0 lists all samples, as CSV; empty: none
    /// a file of results, for `autotune_with_file` of `hvd/interop/autotune_file.hpp`; `autotune`
    /// itself refuses it
    std::string file = {};
    /// thresholds that an earlier search has found: they are taken, and nothing is searched
    std::optional<engine_tuning> known = {};
    /// called on all ranks after each change of thresholds. A trainer makes its optimizer or plan
    /// anew in it. `tuning.bucket_bytes` is searched only if there is such a function
    std::function<void(const engine_tuning&)> changed = {};
    std::function<void(const autotune_result&)> finished = {};  ///< called on all ranks at the end
};

namespace detail {

template <>
struct settings_of<autotune_options> {
    using o = autotune_options;

    static constexpr setting table[] = {
        entry<&o::enabled>("autotune.enabled", "HVD_AUTOTUNE", "HOROVOD_AUTOTUNE",
                           "thresholds are searched for"),
        entry<&o::warmup_steps>("autotune.warmup_steps", "HVD_AUTOTUNE_WARMUP_STEPS",
                                "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
                                "steps at the start that do not count"),
        between(1,
                entry<&o::steps_per_sample>(
                    "autotune.steps_per_sample", "HVD_AUTOTUNE_STEPS_PER_SAMPLE",
                    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "steps whose median is a sample"),
                INT32_MAX),
        between(1,
                entry<&o::max_steps>("autotune.max_steps", "HVD_AUTOTUNE_MAX_STEPS",
                                     "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
                                     "the search ends within so many steps"),
                INT32_MAX),
        needed("Horovod, where settings that a user has set stay",
               entry<&o::fixed>("autotune.fixed", "HVD_AUTOTUNE_FIXED", "",
                                "keys of settings that stay, with commas between them")),
        entry<&o::log>("autotune.log", "HVD_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG",
                       "a file that lists what was tried"),
        needed("further runs, which need no search",
               entry<&o::file>("autotune.file", "HVD_AUTOTUNE_FILE", "",
                               "a file that keeps the results")),
    };
};

}  // namespace detail
}  // namespace hvd::inline v0
