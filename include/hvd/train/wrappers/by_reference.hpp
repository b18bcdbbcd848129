// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <string_view>

#include "../optimizer/optimizers.hpp"

namespace hvd::inline v0 {
namespace detail {

// The members of an optimizer by reference that hvd uses if the optimizer has them.
template <class O>
struct members_by_reference {
    explicit members_by_reference(O&) {}
};
template <keeps_masters O>
struct members_by_reference<O> {
    using master_type = typename O::master_type;

    class factor {
    public:
        explicit factor(float& its) : its_(&its) {}
        factor& operator=(float value) {
            *its_ = value;
            return *this;
        }

    private:
        float* its_;
    };

    explicit members_by_reference(O& optimizer) : gradient_factor(optimizer.gradient_factor) {}

    factor gradient_factor;
};

}  // namespace detail

namespace optimizers {

/// An optimizer that lives elsewhere: `by_reference{adam}`. A `distributed_optimizer` takes it in
/// place of the optimizer, whose slots and numbers so outlive it, as an elastic state needs it.
///
/// The optimizer outlives the reference.
/// @tparam O an optimizer of these, or one like them
/// @snippet tests/elastic/snippets.cpp run_elastic
template <class O>
struct by_reference : hvd::detail::members_by_reference<O> {
    using value_type = typename O::value_type;
    using T = value_type;  ///< the elements of the parameters

    explicit by_reference(O& optimizer)
        : hvd::detail::members_by_reference<O>(optimizer), its(&optimizer) {}

    void step(tensors<T> parameters, tensors<T> gradients) { its->step(parameters, gradients); }

    void step_rows(std::size_t i, const tensor_view<T>& table, const sparse_view<T>& rows)
        requires requires(O& o) { o.step_rows(i, table, rows); }
    {
        its->step_rows(i, table, rows);
    }
    bool steps_rows() const
        requires requires(const O& o) { o.steps_rows(); }
    {
        return its->steps_rows();
    }

    template <class F>
    void for_each_slot(F f)
        requires requires(O& o) { o.for_each_slot(f); }
    {
        its->for_each_slot(f);
    }
    template <class F>
    void for_each_number(F f)
        requires requires(O& o) { o.for_each_number(f); }
    {
        its->for_each_number(f);
    }
    static constexpr bool is_newer(std::string_view name)
        requires requires { O::is_newer(name); }
    {
        return O::is_newer(name);
    }
    static constexpr bool is_optional_slot(std::string_view name)
        requires requires { O::is_optional_slot(name); }
    {
        return O::is_optional_slot(name);
    }

    O* its;  ///< the optimizer
};

}  // namespace optimizers
}  // namespace hvd::inline v0
