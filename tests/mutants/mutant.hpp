// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <optional>
#include <type_traits>

// plant.py copies this header into a planted tree, where mutated lines ask which mutant is on.
namespace hvd_mutant {

inline int chosen() noexcept {
    static const int number = [] {
        const char* text = std::getenv("MUTANT_OF_HVD");
        return text == nullptr ? 0 : std::atoi(text);
    }();
    return number;
}

// Returns true if that mutant was chosen. Constants are computed without mutants.
constexpr bool on(int number) noexcept {
    if (std::is_constant_evaluated()) return false;
    return chosen() == number;
}

}  // namespace hvd_mutant
