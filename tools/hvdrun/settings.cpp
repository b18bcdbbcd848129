// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "settings.hpp"

#include <cmath>

#include "failure.hpp"
#include "numbers.hpp"

namespace hvdrun {
namespace {

[[noreturn]] void refuse(const setting& which, const std::string& given, const char* expected) {
    throw usage_failure(std::string(which.option) + ": \"" + given + "\" is no " + expected);
}

std::string whole_text(const setting& which, const std::string& given, double most) {
    std::uint64_t number = 0;
    if (!read_decimal(given, number) || double(number) > most)
        refuse(which, given, ("whole number from 0 to " + decimal(most)).c_str());
    return std::to_string(number);
}

// hvd reads whole numbers with a unit.
std::string time_text(const setting& which, const std::string& given, double milliseconds) {
    constexpr double most = 43200.0 * 60'000;
    double number = 0;
    if (!read_decimal(given, number) || number < 0 || number * milliseconds > most)
        refuse(which, given, ("number from 0 to " + decimal(most / milliseconds)).c_str());
    return std::to_string(std::llround(number * milliseconds * 1000)) + "us";
}

}  // namespace

std::span<const setting> settings() {
    using enum setting_kind;
    static constexpr setting all[] = {
        {"--config-file", "HVD_CONFIG", text, "a file of settings, in YAML or JSON"},
        {"--timeline-filename", "HVD_TIMELINE_FILE", text, "a timeline of each rank"},
        {"--timeline-mark-cycles", "HVD_TIMELINE_MARK_UNITS", flag, "units in the timeline"},
        {"--autotune", "HVD_AUTOTUNE", flag, "search for the fastest thresholds"},
        {"--autotune-log-file", "HVD_AUTOTUNE_LOG", text, "a list of what was tried"},
        {"--autotune-warmup-samples", "HVD_AUTOTUNE_WARMUP_STEPS", whole,
         "steps that do not count"},
        {"--autotune-steps-per-sample", "HVD_AUTOTUNE_STEPS_PER_SAMPLE", whole,
         "steps of a sample"},
        {"--fusion-threshold-mb", "HVD_ENGINE_FUSION_THRESHOLD", mebibytes,
         "MiB of tensors that travel together"},
        {"--cycle-time-ms", "HVD_ENGINE_CYCLE_TIME", milliseconds, "time to wait for more tensors"},
        {"--cache-capacity", "HVD_ENGINE_CACHE_CAPACITY", whole, "tensors known by a short number"},
        {"--disable-cache", "HVD_ENGINE_CACHE_CAPACITY", off, "no such tensors"},
        {"--no-stall-check", "HVD_ENGINE_STALL_WARN", off, "no warnings of stalled tensors"},
        {"--stall-check-warning-time-seconds", "HVD_ENGINE_STALL_WARN", seconds,
         "time before such a warning"},
        {"--stall-check-shutdown-time-seconds", "HVD_ENGINE_STALL_ABORT", seconds,
         "time before a stalled tensor ends the job"},
        {"--thread-affinity", "HVD_CPUS", text, "processors of hvd's threads"}};
    return all;
}

bool has_value(setting_kind kind) {
    return kind != setting_kind::flag && kind != setting_kind::off;
}

std::string value_of(const setting& which, const std::string& given) {
    using enum setting_kind;
    switch (which.kind) {
        case flag: return "1";
        case off: return "0";
        case whole: return whole_text(which, given, 2147483647);
        case mebibytes: return whole_text(which, given, 1 << 20) + "MiB";
        case milliseconds: return time_text(which, given, 1);
        case seconds: return time_text(which, given, 1000);
        case text: break;
    }
    if (given.empty()) refuse(which, given, "value");
    return given;
}

}  // namespace hvdrun
