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
        const message wrong = wrong_rows(rows, row_count(), columns_);
        if (!wrong.empty()) refuse(rank, wrong);
    }

    // Checks what can be seen without the indices.
    template <class Rows>
    void check_sizes(int rank, const Rows& rows) const {
        const message wrong = wrong_sizes(rows.indices.size(), rows.values.size(), columns_);
        if (!wrong.empty()) refuse(rank, wrong);
    }

    void add(const sparse_view<T>& rows) {
        rows_.indices.insert(rows_.indices.end(), rows.indices.begin(), rows.indices.end());
        rows_.values.insert(rows_.values.end(), rows.values.begin(), rows.values.end());
    }

    void clear() { rows_ = {}; }

    // Reduces the rows into the table, which becomes the gradient. **Collective**.
    template <class Comm>
    void reduce(Comm& comm, const optimizer_options& o, double prescale, double postscale,
                std::vector<float>& residual, std::string_view name) {
        scale(view(rows_.values.data(), rows_.values.size()), prescale);
        if (o.error_feedback)
            with_wire_type<typename Comm::backend_type>(
                o.codec, [&](auto narrow) { round_rows<decltype(narrow)>(residual); });
        sparse_allreduce<Comm, T>(comm, rows_, into(table_), columns_,
                                  {.policy = policy_, .op = o.op, .codec = o.codec, .name = name});
        scale(table_, postscale);
    }

private:
    std::size_t row_count() const { return table_.size() / columns_; }

    // Rounds the rows to values that travel without further loss. The rounding error of a row is
    // added when the row comes again.
    template <class Half>
    void round_rows(std::vector<float>& residual) {
        residual.resize(table_.size());
        rows_ = merged<T, T>(rows_.indices, rows_.values, row_count(), columns_, 1);
        std::vector<Half> rounded(columns_);
        for (std::size_t i = 0; i < rows_.indices.size(); ++i) {
            T* const row = rows_.values.data() + i * columns_;
            float* const lost = residual.data() + std::size_t(rows_.indices[i]) * columns_;
            encode(row, columns_, rounded.data(), 1, lost);
            for (std::size_t c = 0; c < columns_; ++c) row[c] = from_double<T>(float(rounded[c]));
        }
    }

    std::size_t parameter_;
    tensor_view<T> table_;
    std::size_t columns_;
    sparse_policy policy_;
    sparse_rows<T> rows_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
