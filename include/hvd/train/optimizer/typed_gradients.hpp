// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "../sparse/sparse_gradient.hpp"
#include "gradient_reducer.hpp"

namespace hvd::inline v0::detail {

/// The functions of a distributed_optimizer that name the type of the elements, on the host and on
/// devices: they register parameters, and give their tensors back.
template <class Steps, class T>
class typed_gradients : public gradient_reducer<Steps> {
    using reducer = gradient_reducer<Steps>;
    using space = typename Steps::space;
    using tensor = tensor_view<T, space>;

public:
    using typename reducer::place;

    /// Registers a parameter that all ranks have, and returns its index. Names are unique.
    /// @throws hvd::usage_error for a name that is already registered, sizes that differ, and
    /// memory that overlaps another parameter or gradient.
    template <class P, class G>
    std::size_t register_parameter(std::string_view name, P&& value, G&& gradient) {
        if constexpr (check_parameter<T, P, G>())
            return add({.kind = parameter_kind::shared}, name, value, gradient);
        return 0;
    }

    /// Registers each tensor of a range as `register_parameter` does, with its gradient in another
    /// range in the same order. They are named `NAME.0`, `NAME.1`, …, as PyTorch names the members
    /// of a list. It returns the index of the first, which the others follow.
    /// @throws hvd::usage_error as `register_parameter`, when the tensors before are registered,
    /// and for ranges of different sizes, when none is.
    /// @snippet tests/train/snippets.cpp register_parameters
    template <class Values, class Gradients>
    std::size_t register_parameters(std::string_view name, Values&& values, Gradients&& gradients) {
        const std::size_t first = parameters_.size();
        if constexpr (check_parameters<T, Values, Gradients>()) {
            if (std::size(values) != std::size(gradients))
                this->refuse("register_parameters(\"", name, "\"): there are ", std::size(values),
                             " tensors and ", std::size(gradients), " gradients on rank ",
                             this->rank());
            auto gradient = std::begin(gradients);
            for (auto& value : values)
                register_parameter(text(name, ".", parameters_.size() - first), value, *gradient++);
        }
        return first;
    }

    /// Registers a parameter that belongs to this rank. Its gradient never travels, and is divided
    /// by the number of ranks unless `scale_local_gradients` is false.
    template <class P, class G>
    std::size_t register_local(std::string_view name, P&& value, G&& gradient) {
        if constexpr (check_parameter<T, P, G>())
            return add({.kind = parameter_kind::local}, name, value, gradient);
        return 0;
    }

    /// Registers a table (rows × `columns`, row-major) that all ranks have, and whose gradient is
    /// reported in rows by `gradient_ready(i, rows)`. `gradient` is a table too. `synchronize()`
    /// fills it with zeros and the rows that any rank has. With a `row_optimizer_of` nobody else
    /// writes to other rows of it: they are cleared once, and a step takes time for the rows of all
    /// ranks, not for the table. On a device the host merges the rows and waits for them.
    /// @throws hvd::usage_error also for columns that do not divide the table, and with Adasum.
    /// @snippet tests/train/snippets.cpp register_sparse
    /// @snippet tests/train/device_snippets.cpp register_sparse
    template <class P, class G>
    std::size_t register_sparse(std::string_view name, P&& value, G&& gradient, std::size_t columns,
                                sparse_policy policy = sparse_policy::automatic) {
        if constexpr (check_parameter<T, P, G>())
            return add_sparse(name, value, gradient, columns, policy);
        return 0;
    }

    using reducer::gradient_ready;

    /// Reports rows of a sparse parameter. An index may occur several times; its rows are added,
    /// also to those of the step's earlier passes. They are copied, on a device behind the work of
    /// a stream, and travel in `synchronize()`.
    /// @throws hvd::usage_error also for an index that is out of range, on a device in
    /// `synchronize()`, and sizes that do not fit.
    void gradient_ready(std::size_t i, const sparse_view<T, space>& rows, place behind = {}) {
        auto* const table = static_cast<table_type*>(this->table_of(i));
        const auto check = [&] {
            if (table == nullptr)
                this->refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
            table->check(this->rank(), parameters_[i].name, rows);
        };
        this->report("gradient_ready", i, behind, check, [&] {
            table->add(rows, behind);
            parameters_[i].written = true;
        });
    }

    /// The parameters that are not local, including frozen ones.
    std::vector<tensor> shared_parameters() const {
        std::vector<tensor> shared;
        for_each_shared(
            [&](const std::string&, const tensor& value, const auto&) { shared.push_back(value); });
        return shared;
    }

    /// Calls `f(name, value, shape)` for each parameter that is not local. The value is flat.
    template <class F>
    void for_each_shared(F f) const {
        for (const auto& p : parameters_)
            if (p.kind != parameter_kind::local)
                f(p.name, p.value.template as<T, space>(), p.shape);
    }

    /// Calls `f(name, value, shape)` for all parameters, including local ones.
    template <class F>
    void for_each_parameter(F f) const {
        for (const auto& p : parameters_) f(p.name, p.value.template as<T, space>(), p.shape);
    }

protected:
    using table_type = typename Steps::template table<T>;
    using reducer::parameters_, reducer::reducer;

    void refresh_lists() {
        resize_lists(parameters_.size());
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            const auto& p = parameters_[i];
            const bool local = p.kind == parameter_kind::local;
            const auto gradient = p.gradient.template as<T, space>();
            values_[i] = p.frozen ? tensor() : p.value.template as<T, space>();
            gradients_[i] = p.frozen ? tensor() : gradient;
            shared_gradients_[i] = p.frozen || local ? tensor() : gradient;
        }
    }

    std::vector<tensor> values_, gradients_;
    std::vector<tensor> shared_gradients_;                // empty for local parameters
    std::vector<gradient_parts<T, space>> shared_parts_;  // on the host, one for each tensor

private:
    // For one more parameter when it is registered, so that no step needs memory.
    void resize_lists(std::size_t parameters) {
        for (auto* list : {&values_, &gradients_, &shared_gradients_}) list->resize(parameters);
    }

    template <class P, class G>
    std::size_t add_sparse(std::string_view name, P& value, G& gradient, std::size_t columns,
                           sparse_policy policy) {
        const auto table = flat_view<space>(gradient);
        this->check_table(name, table.size(), columns);
        const std::size_t i =
            add({.kind = parameter_kind::sparse, .columns = columns, .policy = policy}, name, value,
                gradient);
        reducer::add(owner<table_type>::make(this->steps(), i, table, columns, policy));
        return i;
    }

    template <class P, class G>
    [[gnu::cold]] std::size_t add(registered_parameter p, std::string_view name, P& value,
                                  G& gradient) {
        const auto shape = to_view(value).shape();
        resize_lists(parameters_.size() + 1);
        shared_parts_.reserve(parameters_.size() + 1);
        p.name = name;
        p.value = flat_tensor(flat_view<space>(value));
        p.gradient = flat_tensor(flat_view<space>(gradient));
        p.shape.assign(shape.begin(), shape.end());
        return reducer::add(std::move(p));
    }
};

}  // namespace hvd::inline v0::detail
