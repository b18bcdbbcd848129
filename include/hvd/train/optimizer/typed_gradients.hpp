// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "../sparse/sparse_gradient.hpp"
#include "gradient_reducer.hpp"
#include "synchronized.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

/// The functions of a distributed_optimizer on the host that name the type of the elements.
template <class Calls, class T>
class typed_gradients : public parameter_tensors<T, host, gradient_reducer<Calls>> {
    using reducer = gradient_reducer<Calls>;
    using tensors_of = parameter_tensors<T, host, reducer>;

public:
    /// Registers a parameter that all ranks have, and returns its index. Names are unique.
    /// @throws hvd::usage_error for a name that is already registered, sizes that differ, and
    /// memory that overlaps another parameter or gradient.
    template <class P, class G>
    std::size_t register_parameter(std::string_view name, P&& value, G&& gradient) {
        if constexpr (check_parameter<T, P, G>())
            return add({.kind = parameter_kind::shared}, name, value, gradient);
        return 0;
    }

    /// Registers a parameter that belongs to this rank. Its gradient never travels, and is divided
    /// by the number of ranks unless `scale_local` is false. Feature G4.
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
    /// ranks, not for the table. Features B14, F7.
    /// @throws hvd::usage_error also for columns that do not divide the table, and with Adasum.
    /// @snippet tests/train/snippets.cpp register_sparse
    template <class P, class G>
    std::size_t register_sparse(std::string_view name, P&& value, G&& gradient, std::size_t columns,
                                sparse_policy policy = sparse_policy::automatic) {
        if constexpr (check_parameter<T, P, G>())
            return add_sparse(name, value, gradient, columns, policy);
        return 0;
    }

    /// Reports rows of a sparse parameter. An index may occur several times; its rows are added,
    /// also to those of the step's earlier passes. They are copied, and travel in `synchronize()`.
    /// @throws hvd::usage_error also for an index that is out of range and sizes that do not fit.
    void gradient_ready(std::size_t i, const sparse_view<T>& rows) {
        auto* const table = static_cast<table_of_type*>(this->table_of(i));
        this->report(i, [&] {
            if (table == nullptr)
                this->refuse("gradient_ready(", i, ", rows): there is no sparse parameter ", i);
            table->check(this->calls().rank(), parameters_[i].name, rows);
        });
        table->add(rows);
        parameters_[i].written = true;
    }

    using reducer::gradient_ready;

    /// The parameters, in the order of registration; empty for frozen ones.
    std::span<const tensor_view<T>> parameters() {
        this->refresh_lists();
        return values_;
    }

protected:
    typed_gradients(Calls comm, optimizer_options options, const backend_abilities& backend)
        : tensors_of(std::move(comm), std::move(options), backend) {}

    // **Collective**.
    synchronized_gradients<T> synchronize(bool by_rows) {
        this->reduce(by_rows);
        if (this->take_change()) this->refresh_lists();
        list_parts();
        return {this->calls().rank(), gradients_, this->shared_gradients_, shared_parts_,
                this->open_};
    }

    bool apply_by(synchronized_gradients<T>&& synchronized, void (*step)(void*, double),
                  void* optimizer) {
        const auto gradients = std::move(synchronized);
        if (gradients.open_ != &this->open_)
            this->refuse("apply() of gradients that are not this optimizer's, or applied already");
        return this->step_with(gradients.factor_, !this->options_.skip_nonfinite || are_finite(),
                               step, optimizer);
    }

    // Multiplies the gradients, for optimizers that don't do it by themselves.
    void scale_gradients(double factor) const {
        if (is_one(factor)) return;
        if constexpr (dtype_traits<T>::id == dtype::float16)
            this->refuse(
                "gradients of float16 and a scaled loss are for optimizers::float_masters: ",
                "divided in 16 bits, small ones would vanish");
        for (const auto& part : shared_parts_) scale(part, factor);
        for (const auto& p : parameters_)
            if (p.kind == parameter_kind::local && !p.frozen) p.gradient.scale(factor);
    }

    // Calls f(i, rows) for each table that is stepped by rows.
    template <class F>
    void for_each_rows(F f) {
        for (const auto& t : this->tables()) {
            auto& rows = static_cast<table_of_type&>(*t);
            if (rows.by_rows() && !this->is_frozen(*t)) f(t->parameter(), rows.rows());
        }
    }

    using tensors_of::gradients_, tensors_of::values_;

private:
    using tensors_of::parameters_;
    using table_of_type = sparse_table_of<Calls, T>;

    template <class P, class G>
    std::size_t add_sparse(std::string_view name, P& value, G& gradient, std::size_t columns,
                           sparse_policy policy) {
        const auto table = flat_view(gradient);
        this->check_table(name, table.size(), columns);
        const std::size_t i =
            add({.kind = parameter_kind::sparse, .columns = columns, .policy = policy}, name, value,
                gradient);
        reducer::add(std::make_unique<table_of_type>(i, table, columns, policy));
        return i;
    }

    template <class P, class G>
    std::size_t add(registered_parameter p, std::string_view name, P& value, G& gradient) {
        const auto shape = to_view(value).shape();
        p.name = name;
        p.value = flat_tensor(flat_view(value));
        p.gradient = flat_tensor(flat_view(gradient));
        p.shape.assign(shape.begin(), shape.end());
        return reducer::add(std::move(p));
    }

    void list_parts() {
        shared_parts_.clear();
        auto next = this->tables().begin();
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (parameters_[i].kind == parameter_kind::shared)
                shared_parts_.push_back(this->shared_gradients_[i]);
            if (parameters_[i].kind != parameter_kind::sparse) continue;
            if (!parameters_[i].frozen)
                static_cast<const table_of_type&>(**next).append_parts(shared_parts_);
            ++next;
        }
    }

    bool are_finite() const {
        bool all = all_finite<T>(shared_parts_);
        for (const auto& p : parameters_)
            if (p.kind == parameter_kind::local && !p.frozen) all &= p.gradient.all_finite();
        return all;
    }

    std::vector<tensor_view<T>> shared_parts_;  // of the gradients, without rows that are zero
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
