// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "../calls.hpp"
#include "ordered_steps.hpp"
#include "synchronized.hpp"
#include "typed_gradients.hpp"

namespace hvd::inline v0::detail {

// The steps on an engine, which train/engine/ knows, or on a communicator.
template <class Calls>
struct steps_by {
    using type = typename Calls::steps_type;
};
template <class Comm>
struct steps_by<Comm&> {
    using type = ordered_steps;
};
template <class Comm>
using steps_of = typename steps_by<typename training_calls<Comm>::type>::type;

/// The gradients of a distributed_optimizer on the host, which it gives to the optimizer inside.
template <class Steps, class T>
class host_gradients : public typed_gradients<Steps, T> {
    using typed = typed_gradients<Steps, T>;

public:
    /// The parameters, in the order of registration; empty for frozen ones.
    std::span<const tensor_view<T>> parameters() {
        this->refresh_lists();
        return values_;
    }

protected:
    using typed::typed;

    // **Collective**.
    synchronized_gradients<T> synchronize(bool by_rows) {
        this->reduce({}, by_rows);
        if (this->take_change() || !this->tables().empty()) this->refresh_lists();
        list_parts();
        return {this->rank(), gradients_, this->shared_gradients_, shared_parts_, this->open_};
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
        for (const auto& parts : shared_parts_)
            parts.for_each([&](const tensor_view<T>& part) { scale(part, factor); });
        for (const auto& p : parameters_)
            if (p.kind == parameter_kind::local && !p.frozen) p.gradient.scale(factor);
    }

    // Calls f(i, rows) for each table that is stepped by rows.
    template <class F>
    void for_each_rows(F f) {
        for (const auto& t : this->tables()) {
            auto& rows = static_cast<table_type&>(*t);
            if (rows.by_rows() && !this->is_frozen(*t)) f(t->parameter(), rows.rows());
        }
    }

    using typed::gradients_, typed::values_;

private:
    using typed::parameters_, typed::shared_parts_;
    using typename typed::table_type;

    void list_parts() {
        shared_parts_.clear();
        auto next = this->tables().begin();
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (parameters_[i].kind == parameter_kind::shared)
                shared_parts_.push_back({this->shared_gradients_[i]});
            if (parameters_[i].kind != parameter_kind::sparse) continue;
            if (!parameters_[i].frozen)
                shared_parts_.push_back(static_cast<const table_type&>(**next).parts());
            ++next;
        }
    }

    bool are_finite() const {
        bool all = true;
        for (const auto& parts : shared_parts_)
            parts.for_each([&](const tensor_view<T>& part) { all &= all_finite(part); });
        for (const auto& p : parameters_)
            if (p.kind == parameter_kind::local && !p.frozen) all &= p.gradient.all_finite();
        return all;
    }
};

}  // namespace hvd::inline v0::detail
