// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../agreement.hpp"
#include "elements.hpp"
#include "options.hpp"

namespace hvd::inline v0::detail {

enum class parameter_kind : std::uint8_t { shared, local, sparse };

struct registered_parameter {
    std::string name = {};
    flat_tensor value = {}, gradient = {};
    std::vector<std::size_t> shape = {};  // shape of value and gradient, slowest dimension first
    parameter_kind kind = parameter_kind::shared;
    std::size_t columns = 0;  // columns of a sparse parameter
    sparse_policy policy = sparse_policy::automatic;
    bool frozen = false;
    bool agreed_frozen = false;  // as the ranks agreed
    int reports = 0;             // number of reports of its gradient since the last step
    bool written = false;        // a pass since the last step has reported it, also in no_sync()
    // Empty without error feedback: what the rounding of this rank's slice of the reduced gradient
    // has lost so far; of a sparse one, what the rounding of this rank's own rows has. It is here
    // since the buckets are made anew when other parameters are frozen.
    std::vector<float> residual = {};

    bool travels() const { return kind == parameter_kind::shared && !frozen; }
};

using parameter_list = std::vector<registered_parameter>;

inline bool overlap(const flat_tensor& a, const flat_tensor& b) {
    const auto first = reinterpret_cast<std::uintptr_t>(a.data()),
               second = reinterpret_cast<std::uintptr_t>(b.data());
    return a.size() > 0 && b.size() > 0 && first < second + b.bytes() && second < first + a.bytes();
}

// Memory that two parameters share would be reduced or stepped twice.
inline void check_memory(int rank, const registered_parameter& p,
                         const registered_parameter& other) {
    const auto check = [&](const char* mine, const flat_tensor& a, const char* its,
                           const flat_tensor& b) {
        if (overlap(a, b))
            refuse(rank, "the ", mine, " of parameter \"", p.name, "\" and the ", its, " of \"",
                   other.name, "\" have memory in common");
    };
    if (&p != &other) check("values", p.value, "values", other.value);
    if (&p != &other) check("gradient", p.gradient, "gradient", other.gradient);
    check("values", p.value, "gradient", other.gradient);
    check("gradient", p.gradient, "values", other.value);
}

inline void check_registration(int rank, const parameter_list& known,
                               const registered_parameter& p) {
    for (const auto& other : known)
        if (other.name == p.name)
            refuse(rank, "a parameter named \"", p.name, "\" is registered already");
    if (p.value.size() != p.gradient.size())
        refuse(rank, "parameter \"", p.name, "\" has ", p.value.size(), " elements, its gradient ",
               p.gradient.size());
    check_memory(rank, p, p);
    for (const auto& other : known) check_memory(rank, p, other);
}

// Describes everything on which the ranks must agree.
inline std::string described(const parameter_list& parameters) {
    std::string all;
    for (const auto& p : parameters) {
        if (!all.empty()) all += ", ";
        all += text(p.name, " ", print_list(p.shape));
        if (p.kind == parameter_kind::local) all += " (local)";
        if (p.kind == parameter_kind::sparse)
            all += text(" (sparse, rows of ", p.columns, ", ", name_of(p.policy), ")");
        if (p.frozen) all += " (frozen)";
    }
    return all;
}

}  // namespace hvd::inline v0::detail
