// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <string_view>

#include "sparse.hpp"

namespace hvd::inline v0::detail {

// Rounds elements, each with what was lost of it before, which gets what is lost now.
template <class Half, class T>
void round_with_losses(const T* from, std::size_t n, Half* to, float* losses) {
    if constexpr (std::is_same_v<T, float>) {
        codec::error_feedback_t<codec::cast_t<Half>>::encode(from, n, to, 1, losses);
    } else {
        for (std::size_t i = 0; i < n; ++i) {
            const double y = as_double(from[i]) + double(losses[i]);
            to[i] = Half(float(y));
            const double lost = y - double(float(to[i]));
            losses[i] = is_finite(lost) ? float(lost) : 0;
        }
    }
}

// The rows of a table's gradient that this rank's backward passes reported in a step.
template <class T>
class sparse_gradient {
public:
    sparse_gradient(std::size_t parameter, tensor_view<T> table, std::size_t columns,
                    sparse_policy policy)
        : parameter_(parameter), table_(table), columns_(columns), policy_(policy) {}

    std::size_t parameter() const { return parameter_; }

    void check(int rank, std::string_view name, const sparse_view<T>& rows) const {
        const message wrong = wrong_rows(rows, row_count(), columns_);
        if (!wrong.empty()) refuse(rank, "gradient \"", name, "\": ", wrong);
    }

    // Checks what can be seen without the indices.
    template <class Rows>
    void check_sizes(int rank, std::string_view name, const Rows& rows) const {
        const message wrong = wrong_sizes(rows.indices.size(), rows.values.size(), columns_);
        if (!wrong.empty()) refuse(rank, "gradient \"", name, "\": ", wrong);
    }

    void add(const sparse_view<T>& rows) {
        const std::size_t before = rows_.indices.size();
        rows_.indices.insert(rows_.indices.end(), rows.indices.begin(), rows.indices.end());
        try {
            rows_.values.insert(rows_.values.end(), rows.values.begin(), rows.values.end());
        } catch (...) {
            rows_.indices.resize(before);
            throw;
        }
    }

    void clear() { rows_ = {}; }

    // Reduces the rows into the table, which becomes the gradient. **Collective**. `by_rows` says
    // that the step sees the reduced rows only. Nobody else writes to the table then, so the rows
    // of the last step are all that is cleared. Other residuals wait for commit().
    template <class Comm>
    void reduce(Comm& comm, const optimizer_options& o, double prescale, double postscale,
                std::vector<float>& residual, std::string_view name, bool by_rows) {
        const sparse_options how{.policy = policy_,
                                 .op = o.op,
                                 .codec = o.codec,
                                 .exact_sums = o.codec.keeps_residual(),
                                 .name = name};
        check_call(comm, sparse_view<T>(rows_), row_count(), columns_, how);
        auto reduced = reduce_rows<T>(
            comm,
            [&] {
                scale(view(rows_.values.data(), rows_.values.size()), prescale);
                auto mine = merged<T>(rows_, columns_);
                if (o.codec.keeps_residual())
                    round<typename Comm::backend_type>(o.codec, mine, residual);
                return mine;
            },
            row_count(), columns_, how);
        scale(view(reduced.values.data(), reduced.values.size()), postscale);
        by_rows_ = by_rows;
        zero();
        reduced_ = std::move(reduced);
        write();
    }

    // Sets the table to zero.
    void zero() {
        if (by_rows_ && rest_is_zero_) {
            std::ranges::fill(reduced_.values, T(0));
            write();
        } else {
            std::ranges::fill(elements(table_), T(0));
        }
        reduced_ = {};
        rest_is_zero_ = by_rows_;
    }

    // True if the last reduction was for a step by rows.
    bool by_rows() const { return by_rows_; }

    // The rows of a step by rows, with the changes that the table has got since the reduction.
    sparse_view<T> rows() {
        each_row([](std::span<T> of_table, std::span<T> row) {
            std::ranges::copy(of_table, row.begin());
        });
        return reduced_;
    }

    // They hold until the next reduction.
    gradient_parts<T> parts() const {
        return {table_, by_rows_ ? &reduced_.indices : nullptr, columns_};
    }

    // The step with the reduced rows was made. The residual of a row is added when it comes again.
    void commit(std::vector<float>& residual) {
        if (!lost_.indices.empty()) residual.resize(table_.size());
        for (std::size_t i = 0; i < lost_.indices.size(); ++i)
            std::copy_n(lost_.values.data() + i * columns_, columns_,
                        residual.data() + std::size_t(lost_.indices[i]) * columns_);
        lost_ = {};
    }

private:
    std::size_t row_count() const { return table_.size() / columns_; }

    template <class F>
    void each_row(F f) {
        for_each_row(table_, reduced_.indices, reduced_.values, f);
    }

    void write() {
        each_row([](std::span<T> of_table, std::span<T> row) {
            std::ranges::copy(row, of_table.begin());
        });
    }

    // Rounds rows, with their residuals, to values that travel without further loss. Residuals get
    // their memory here, so that commit() does not fail after the step.
    template <class Backend>
    void round(gradient_codec codec, sparse_rows<T>& rows, std::vector<float>& residual) {
        lost_.indices = rows.indices;
        lost_.values.assign(rows.values.size(), 0);
        if (!rows.indices.empty()) residual.reserve(table_.size());
        with_wire_type<Backend>(codec,
                                [&](auto narrow) { round_to<decltype(narrow)>(rows, residual); });
    }

    template <class Half>
    void round_to(sparse_rows<T>& rows, const std::vector<float>& residual) {
        std::vector<Half> rounded(columns_);
        for (std::size_t i = 0; i < rows.indices.size(); ++i) {
            T* const row = rows.values.data() + i * columns_;
            float* const lost = lost_.values.data() + i * columns_;
            if (!residual.empty())
                std::copy_n(residual.data() + std::size_t(rows.indices[i]) * columns_, columns_,
                            lost);
            round_with_losses(row, columns_, rounded.data(), lost);
            for (std::size_t c = 0; c < columns_; ++c) {
                row[c] = from_double<T>(float(rounded[c]));
                const float again = float(rounded[c]) - float(as_double(row[c]));
                if (is_finite(again)) lost[c] += again;
            }
        }
    }

    std::size_t parameter_;
    tensor_view<T> table_;
    std::size_t columns_;
    sparse_policy policy_;
    sparse_rows<T> rows_;
    sparse_rows<float> lost_;    // the residuals of the rows, if the step is made
    sparse_rows<T> reduced_;     // the rows that the table has got
    bool by_rows_ = false;       // the step sees these rows only
    bool rest_is_zero_ = false;  // the table's other rows are zero
};

// A table of any type among the gradients of a reducer. `Steps` are those of the reducer.
template <class Steps>
class sparse_table {
public:
    using place = typename Steps::place;
    using calls = typename Steps::calls_type;

    virtual ~sparse_table() = default;
    virtual std::size_t parameter() const = 0;
    virtual void clear() = 0;
    virtual void zero(place behind) = 0;
    virtual void reduce(calls&, const optimizer_options&, double prescale, double postscale,
                        std::vector<float>& residual, std::string_view name, place behind,
                        bool by_rows) = 0;
    virtual void commit(std::vector<float>& residual) = 0;
};

// A table on the host.
template <class Steps, class T>
class sparse_table_of final : public sparse_table<Steps>, public sparse_gradient<T> {
    using rows_of = sparse_gradient<T>;

public:
    using typename sparse_table<Steps>::place, typename sparse_table<Steps>::calls;

    sparse_table_of(Steps&, std::size_t parameter, tensor_view<T> table, std::size_t columns,
                    sparse_policy policy)
        : rows_of(parameter, table, columns, policy) {}

    void add(const sparse_view<T>& rows, place) { rows_of::add(rows); }

    std::size_t parameter() const override { return rows_of::parameter(); }
    void clear() override { rows_of::clear(); }
    void zero(place) override { rows_of::zero(); }
    void reduce(calls& by, const optimizer_options& o, double prescale, double postscale,
                std::vector<float>& residual, std::string_view name, place, bool by_rows) override {
        rows_of::reduce(by, o, prescale, postscale, residual, name, by_rows);
    }
    void commit(std::vector<float>& residual) override { rows_of::commit(residual); }
};

}  // namespace hvd::inline v0::detail
