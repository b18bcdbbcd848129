// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <string>

namespace hvdrun {

// How the value of an option becomes that of a variable.
enum class setting_kind { text, flag, off, whole, mebibytes, milliseconds, seconds };

// An option of horovodrun that is a variable of hvd.
struct setting {
    const char* option;
    const char* variable;
    setting_kind kind;
    const char* help;
};

std::span<const setting> settings();

bool has_value(setting_kind kind);

// The value of the variable. A flag has an empty `given`. Throws usage_failure for a value that is
// none.
std::string value_of(const setting& which, const std::string& given);

}  // namespace hvdrun
