// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/lean/text.hpp"
#include "../optimizer/optimizers.hpp"

namespace hvd::inline v0 {
namespace optimizers {

/// Any of these optimizers with groups of parameters that have rates and other numbers of their
/// own: `grouped<adamw<float>>{{.rate = 1e-3f}}`.
///
/// The members of O are the numbers of group 0, to which all parameters belong at first, and the
/// state of all. `add_group` makes another group. Every parameter takes the step of O by the
/// numbers of its group. Checkpoints have these as `optimizer.rate`, `optimizer.group1.rate`, …;
/// which parameters are in a group is said by the program, before the first step and on all ranks
/// alike. Ranks compare both as the other numbers.
///
/// It works inside `float_masters` and with tables in `lazy_rows`. On the device and in a
/// `fused_step` it is refused: a launch has one rule for all parameters.
/// @tparam O shows all its numbers by `for_each_number`
/// @snippet tests/train/snippets.cpp grouped
template <class O>
struct grouped : O {
    using T = typename O::value_type;                    ///< the elements of the parameters
    std::vector<O> more = {};                            ///< the numbers of groups 1, 2, …
    std::vector<std::vector<std::size_t>> members = {};  ///< the parameters of groups 1, 2, …

    /// Makes a group of parameters, given by their indices, and returns its number.
    /// @throws hvd::usage_error for a parameter that is in another group already.
    std::size_t add_group(O numbers, std::vector<std::size_t> parameters) {
        std::ranges::sort(parameters);
        for (const std::size_t i : parameters)
            if (const std::size_t other = group_of(i); other != 0)
                refuse("parameter ", i, " is in group ", other, " already: it can't be in group ",
                       groups(), ", too");
        if (const auto twice = std::ranges::adjacent_find(parameters); twice != parameters.end())
            refuse("parameter ", *twice, " is twice in group ", groups());
        more.push_back(std::move(numbers));
        members.push_back(std::move(parameters));
        return more.size();
    }

    /// The number of groups, with group 0.
    std::size_t groups() const { return more.size() + 1; }

    /// The numbers of a group: `group(1).rate`.
    /// @throws hvd::usage_error for a group that is not there.
    O& group(std::size_t number) {
        if (number >= groups())
            refuse("there is no group ", number, ": the last one is ", groups() - 1);
        return number == 0 ? *this : more[number - 1];
    }

    /// The group of a parameter.
    std::size_t group_of(std::size_t parameter) const {
        for (std::size_t g = 0; g < members.size(); ++g)
            if (std::ranges::count(members[g], parameter) > 0) return g + 1;
        return 0;
    }

    void step(tensors<T> parameters, tensors<T> gradients) {
        if (more.empty()) return O::step(parameters, gradients);
        std::vector<tensor_view<T>> values(parameters.begin(), parameters.end()),
            slopes(gradients.begin(), gradients.end());
        for (std::size_t g = 1; g < groups(); ++g) {
            std::vector<tensor_view<T>> own(values.size()), of_own(values.size());
            for (const std::size_t i : members[g - 1]) {
                if (i >= values.size()) continue;  // a list of the first parameters
                own[i] = std::exchange(values[i], {});
                of_own[i] = std::exchange(slopes[i], {});
            }
            const numbers_of now(*this, g);
            O::step(tensors<T>(own), tensors<T>(of_own));
        }
        O::step(tensors<T>(values), tensors<T>(slopes));
    }

    /// Steps rows if O does.
    void step_rows(std::size_t i, const tensor_view<T>& table, const sparse_view<T>& rows)
        requires requires(O& o, const tensor_view<T>& all, const sparse_view<T>& some) {
            o.step_rows(std::size_t(), all, some);
        }
    {
        const numbers_of now(*this, group_of(i));
        O::step_rows(i, table, rows);
    }
    /// True if all groups step tables by rows.
    bool steps_rows() const {
        if constexpr (requires(const O& o) { o.steps_rows(); }) {
            bool all = O::steps_rows();
            for (const O& o : more) all = all && o.steps_rows();
            return all;
        }
        return true;
    }

    template <class F>
    void for_each_number(F f) {
        O::for_each_number(f);
        for (std::size_t g = 1; g < groups(); ++g) {
            const std::string prefix = "group" + std::to_string(g) + ".";
            more[g - 1].for_each_number(
                [&](const char* name, auto& number) { f((prefix + name).c_str(), number); });
        }
    }
    /// For hvd: refuses groups with a parameter that is none of so many.
    void require_members_of(std::size_t parameters) const {
        for (std::size_t g = 1; g < groups(); ++g)
            for (const std::size_t i : members[g - 1])
                if (i >= parameters)
                    refuse("group ", g, " has parameter ", i, ", and there are ", parameters,
                           ", counted from 0");
    }

    /// For hvd: the parameters of groups 1, 2, …, as text that the ranks compare.
    std::string described_groups() const {
        std::string all;
        for (const auto& of_group : members) {
            all += all.empty() ? "" : "; ";
            for (const std::size_t i : of_group) all += " " + std::to_string(i);
        }
        return all.empty() ? " none" : all;
    }

private:
    // While it lives, the optimizer has the numbers of a group.
    class numbers_of {
    public:
        numbers_of(grouped& all, std::size_t g) : all_(all), group_(g) { exchange(); }
        numbers_of(const numbers_of&) = delete;
        numbers_of& operator=(const numbers_of&) = delete;
        ~numbers_of() { exchange(); }

    private:
        static auto places(O& o) {
            std::vector<std::pair<std::byte*, std::size_t>> all;
            o.for_each_number([&](const char*, auto& number) {
                all.emplace_back(reinterpret_cast<std::byte*>(&number), sizeof number);
            });
            return all;
        }
        void exchange() {
            if (group_ == 0) return;
            const auto here = places(static_cast<O&>(all_)), there = places(all_.more[group_ - 1]);
            for (std::size_t k = 0; k < here.size(); ++k)
                std::swap_ranges(here[k].first, here[k].first + here[k].second, there[k].first);
        }

        grouped& all_;
        std::size_t group_;
    };

    template <class... Parts>
    [[gnu::cold, noreturn]] static void refuse(const Parts&... parts) {
        throw usage_error(-1, hvd::detail::text("hvd: optimizers::grouped: ", parts...));
    }
};

}  // namespace optimizers

namespace detail {

// O is a grouped optimizer, or a wrapper around one.
template <class O>
concept has_groups = requires(O& o) {
    o.more.resize(o.members.size());
    o.described_groups();
};

}  // namespace detail
}  // namespace hvd::inline v0
