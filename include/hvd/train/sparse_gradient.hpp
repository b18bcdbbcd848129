// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "sparse.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The rows of a table's gradient that this rank's backward passes reported in a step.
template <class T>
class sparse_gradient {
public:
    sparse_gradient(std::size_t parameter, tensor_view<T> table, std::size_t columns,
                    sparse_policy policy)
        : parameter_(parameter), table_(table), columns_(columns), policy_(policy) {}

    std::size_t parameter() const { return parameter_; }

    void check(int rank, const sparse_view<T>& rows) const {
        check_sparse(rank, rows, table_.size() / columns_, columns_);
    }

    void add(const sparse_view<T>& rows) {
        rows_.indices.insert(rows_.indices.end(), rows.indices.begin(), rows.indices.end());
        rows_.values.insert(rows_.values.end(), rows.values.begin(), rows.values.end());
    }

    void clear() { rows_ = {}; }

    // **Collective**. The table becomes the gradient, as a dense one would have.
    template <class Comm>
    void reduce(Comm& comm, const optimizer_options& o, double prescale, double postscale) {
        scale(view(rows_.values.data(), rows_.values.size()), prescale);
        sparse_allreduce<Comm, T>(comm, rows_, into(table_), columns_,
                                  {.policy = policy_, .op = o.op, .codec = o.codec});
        scale(table_, postscale);
    }

private:
    std::size_t parameter_;
    tensor_view<T> table_;
    std::size_t columns_;
    sparse_policy policy_;
    sparse_rows<T> rows_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
