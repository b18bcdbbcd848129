// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../optimizer/state.hpp"
#include "../sparse/sparse.hpp"
#include "calls.hpp"

namespace hvd::inline v0 {

// The other functions of training on an engine. All ranks call them in one order.

/// Copies the root's parameters to all ranks of an engine.
template <class Backend, class Parameters>
void broadcast_parameters(engine<Backend>& on, Parameters&& parameters, root from = root{0}) {
    detail::engine_calls calls(on);
    broadcast_parameters(calls, parameters, from);
}

/// Copies the root's slots and numbers of an optimizer to all ranks of an engine.
template <class Backend, optimizer_with_state O>
void broadcast_optimizer_state(engine<Backend>& on, O& optimizer, root from = root{0}) {
    detail::engine_calls calls(on);
    broadcast_optimizer_state(calls, optimizer, from);
}

/// Reduces sparse rows over all ranks of an engine, under this name.
template <class Backend, class T>
sparse_rows<T> sparse_allreduce(engine<Backend>& on, std::string_view name,
                                const sparse_view<T>& mine, std::size_t rows, std::size_t columns,
                                const sparse_options& o = {}) {
    auto calls = detail::engine_calls(on).for_tensor(name);
    detail::check_wire<Backend>(calls, o.codec);
    return sparse_allreduce(calls, mine, rows, columns, o);
}

}  // namespace hvd::inline v0
