// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "../optimizer/optimizers.hpp"

namespace hvd::inline v0 {
namespace optimizers {

/// Any of these optimizers, lazy in sparse parameters: `lazy_rows<adam<float>>{{.rate = 1e-3f}}`.
///
/// Rows that got a gradient take the step of O with their own state. Rows that got none on any rank
/// keep their values and their state: they are not decayed, and no momentum moves them. LibTorch's
/// SparseAdam does the same. Adam's bias is corrected by the steps in which the table had rows, not
/// by those of a row. Dense parameters are stepped as by O. The time of a step depends on the rows,
/// not on the table.
///
/// Without it, adam, adamw, adadelta, and sgd with momentum or weight decay step whole tables,
/// since they move every row in each step.
/// @tparam O steps each element by its gradient and its own numbers in the slots, and shows these
/// by `for_each_slot`
/// @snippet tests/train/snippets.cpp lazy_rows
template <class O>
struct lazy_rows : O {
    using T = typename O::value_type;  ///< the elements of the parameters

    /// Steps rows of parameter i, before the `step` of the dense parameters.
    void step_rows(std::size_t i, const tensor_view<T>& table, const sparse_view<T>& rows) {
        if (rows.indices.empty()) return;
        for_each_slot_of(i, [&](const std::vector<S>& slot) {
            if (!slot.empty() && slot.size() != table.size())
                detail::refuse_slot(i, slot.size(), table.size());
        });
        std::vector<T> values(rows.values.size()),
            gradients(rows.values.begin(), rows.values.end());
        hvd::detail::for_each_row(table, rows.indices, values, from_table);
        const auto numbers = numbers_now();
        auto slots_of_table = take_slots(i, rows.indices, values.size());
        std::vector<tensor_view<T>> parameters(i + 1), changes(i + 1);
        parameters[i] = view(values.data(), values.size());
        changes[i] = view(gradients.data(), gradients.size());
        O::step(parameters, changes);
        put_slots(i, table.size(), slots_of_table, rows.indices);
        set(numbers);  // the step of the dense parameters counts this step
        hvd::detail::for_each_row(table, rows.indices, values, to_table);
    }
    /// Tables are always stepped by rows.
    bool steps_rows() const { return true; }

private:
    using S = number<T>;

    static constexpr auto from_table = [](auto of_table, auto row) {
        std::ranges::copy(of_table, row.begin());
    };
    static constexpr auto to_table = [](auto of_table, auto row) {
        std::ranges::copy(row, of_table.begin());
    };

    // Calls f(slot) for parameter i in each slots that have a number for each element.
    template <class F>
    void for_each_slot_of(std::size_t i, F f) {
        O::for_each_slot([&](const char*, auto& all) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(all)>, slots<S>>) {
                if (all.size() <= i) all.resize(i + 1);
                f(all[i]);
            }
        });
    }

    // Puts the state of the rows in the place of the table's, which it returns.
    slots<S> take_slots(std::size_t i, std::span<const std::int64_t> indices,
                        std::size_t size_of_rows) {
        slots<S> taken;
        for_each_slot_of(i, [&](std::vector<S>& slot) {
            taken.push_back(std::exchange(slot, {}));
            if (taken.back().empty()) return;
            slot.resize(size_of_rows);
            hvd::detail::for_each_row(view(taken.back().data(), taken.back().size()), indices, slot,
                                      from_table);
        });
        return taken;
    }

    // A slot that the step did not make stays away, as the velocity without momentum.
    void put_slots(std::size_t i, std::size_t size, slots<S>& taken,
                   std::span<const std::int64_t> indices) {
        auto next = taken.begin();
        for_each_slot_of(i, [&](std::vector<S>& slot) {
            if (!slot.empty()) {
                next->resize(size);
                hvd::detail::for_each_row(view(next->data(), size), indices, slot, to_table);
            }
            slot = std::move(*next++);
        });
    }

    std::vector<double> numbers_now() {
        std::vector<double> all;
        O::for_each_number([&](const char*, auto& number) { all.push_back(double(number)); });
        return all;
    }

    void set(const std::vector<double>& numbers) {
        auto next = numbers.begin();
        O::for_each_number([&](const char*, auto& number) {
            number = static_cast<std::remove_cvref_t<decltype(number)>>(*next++);
        });
    }
};

}  // namespace optimizers
}  // namespace hvd::inline v0
