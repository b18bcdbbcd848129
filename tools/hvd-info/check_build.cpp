// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The hvd that is installed.
#include <cstdlib>

#include <hvd/build_info.hpp>

#include "checks.hpp"

namespace hvd_info {
namespace {

// Tests compare two versions by this variable.
std::string version() {
    const char* const other = std::getenv("HVD_TEST_INFO_VERSION");
    return other != nullptr ? other : std::string(hvd::build_info().version);
}

}  // namespace

check_report check_build(const context&) {
    const hvd::build_facts own = hvd::build_info();
    check_report report{"build", {}, {}};
    report.add_common("version", version());
    report.add("form", HVD_INFO_HAS_LIBRARY ? "header-only, and compiled (libhvd)" : "header-only");
    report.add("compiler", std::string(own.compiler));
    report.add("C++", std::to_string(own.cplusplus / 100 % 100));
    report.add_common("kernels", std::string(own.kernels) + " on this processor");
    report.add_common("backends", HVD_INFO_BACKENDS);
    return report;
}

}  // namespace hvd_info
