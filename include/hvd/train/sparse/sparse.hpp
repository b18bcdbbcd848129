// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/half.hpp"
#include "../agreement.hpp"
#include "../gradients/gradient_wire.hpp"
#include "rows.hpp"

namespace hvd::inline v0 {

/// Options of a sparse allreduce. All ranks give the same.
struct sparse_options {
    sparse_policy policy = sparse_policy::automatic;  ///< rows, or the whole table
    gradient_op op = hvd::average;                    ///< only average or sum
    gradient_codec codec = hvd::codec::none;  ///< the element type of values while they travel
    /// a table that travels as a whole does so in its own type, so that no sum is rounded to the
    /// codec's: as the sums of gathered rows
    bool exact_sums = false;
    std::string_view name = {};  ///< a text that ranks compare
};

namespace detail {

inline message wrong_sizes(std::size_t indices, std::size_t values, std::size_t columns) {
    if (values == indices * columns) return {};
    return text("a sparse tensor of ", indices, " indices and rows of ", columns, " elements has ",
                values, " values");
}

// Returns an error text if this rank's rows are wrong, otherwise an empty text.
template <class T>
message wrong_rows(const sparse_view<T>& x, std::size_t rows, std::size_t columns) {
    if (message wrong = wrong_sizes(x.indices.size(), x.values.size(), columns); !wrong.empty())
        return wrong;
    for (const std::int64_t i : x.indices)
        if (i < 0 || std::size_t(i) >= rows)
            return text("a sparse tensor of ", rows, " rows has the index ", i);
    return {};
}

// The rows in the order of their indices. Rows of one index stay in their order.
inline std::vector<std::pair<std::int64_t, std::size_t>> sorted(
    std::span<const std::int64_t> indices) {
    std::vector<std::pair<std::int64_t, std::size_t>> places;
    places.reserve(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) places.emplace_back(indices[i], i);
    std::sort(places.begin(), places.end());
    return places;
}

// Adds the rows of one index in their order, in double. Every rank gets the same bits. All memory
// is made where the indices are known, before the values are.
template <class T>
class row_merger {
public:
    row_merger(std::span<const std::int64_t> indices, std::size_t columns)
        : places_(sorted(indices)), sums_(columns) {
        std::size_t rows = 0;
        for (std::size_t n = 0; n < places_.size(); ++n) rows += ends_row(n);
        merged_.indices.reserve(rows);
        merged_.values.reserve(rows * columns);
    }

    // Returns the rows that the values add up to, times a factor.
    template <class Wire>
    sparse_rows<T> merge(std::span<const Wire> values, double factor) {
        const std::size_t columns = sums_.size();
        for (std::size_t n = 0; n < places_.size(); ++n) {
            const auto [index, place] = places_[n];
            for (std::size_t c = 0; c < columns; ++c)
                sums_[c] += as_double(values[place * columns + c]);
            if (!ends_row(n)) continue;
            merged_.indices.push_back(index);
            for (double& s : sums_) {
                merged_.values.push_back(from_double<T>(s * factor));
                s = 0;
            }
        }
        return std::move(merged_);
    }

private:
    bool ends_row(std::size_t n) const {
        return n + 1 == places_.size() || places_[n + 1].first != places_[n].first;
    }

    std::vector<std::pair<std::int64_t, std::size_t>> places_;
    std::vector<double> sums_;
    sparse_rows<T> merged_;
};

template <class T>
sparse_rows<T> merged(const sparse_view<T>& rows, std::size_t columns) {
    return row_merger<T>(rows.indices, columns).template merge<T>(rows.values, 1);
}

template <class Wire, class T>
std::vector<Wire> encoded(const std::vector<T>& values) {
    std::vector<Wire> wire;
    wire.reserve(values.size());
    for (const T& x : values) wire.push_back(from_double<Wire>(as_double(x)));
    return wire;
}

template <class Wire, class Comm, class T>
sparse_rows<T> gather_rows(Comm& comm, const sparse_rows<T>& mine, std::size_t columns,
                           gradient_op op) {
    const double factor = op == hvd::average ? 1.0 / comm.size() : 1;
    const auto indices = comm.allgather(mine.indices, {.name = "sparse indices"});
    const options o{.name = "sparse values"};
    auto [wire, merger] = prepare_call(comm, collective::allgather, o, [&] {
        return std::pair(encoded<Wire>(mine.values), row_merger<T>(indices.values, columns));
    });
    const auto values = comm.allgather(wire, o);
    return merger.template merge<Wire>(values.values, factor);
}

// Sums or averages the table, and returns a factor that is still to be applied. The mean travels
// for averages, and if the wire type is narrower than T: it is in the range of its inputs.
template <class Wire, class T, class Comm>
double reduce_in_range(Comm& comm, std::vector<Wire>& table, gradient_op op,
                       const reduce_options& o) {
    if constexpr (is_float_element<Wire>)
        if (op == hvd::average || !std::is_same_v<Wire, T>) {
            comm.allreduce(table, average, o);
            return op == hvd::average ? 1 : comm.size();
        }
    comm.allreduce(table, sum, o);
    return op == hvd::average ? 1.0 / comm.size() : 1;
}

template <class Wire, class T>
std::vector<Wire> table_of(const sparse_rows<T>& mine, std::size_t rows, std::size_t columns) {
    std::vector<Wire> table(rows * columns, from_double<Wire>(0));
    for (std::size_t i = 0; i < mine.indices.size(); ++i)
        for (std::size_t c = 0; c < columns; ++c)
            table[std::size_t(mine.indices[i]) * columns + c] =
                from_double<Wire>(as_double(mine.values[i * columns + c]));
    return table;
}

// The ranks first tell which rows they have, so that the memory of the result is made before the
// table travels.
template <class Wire, class Comm, class T>
sparse_rows<T> reduce_table(Comm& comm, const sparse_rows<T>& mine, std::size_t rows,
                            std::size_t columns, gradient_op op) {
    const reduce_options of_rows{.name = "sparse rows"}, of_table{.name = "sparse as dense"};
    auto present = prepare_call(comm, collective::allreduce, of_rows,
                                [&] { return std::vector<std::uint8_t>(rows); });
    for (const std::int64_t row : mine.indices) present[std::size_t(row)] = 1;
    comm.allreduce(present, max, of_rows);

    sparse_rows<T> result;
    auto table = prepare_call(comm, collective::allreduce, of_table, [&] {
        for (std::size_t row = 0; row < rows; ++row)
            if (present[row] != 0) result.indices.push_back(std::int64_t(row));
        result.values.reserve(result.indices.size() * columns);
        return table_of<Wire>(mine, rows, columns);
    });
    const double factor = reduce_in_range<Wire, T>(comm, table, op, of_table);
    for (const std::int64_t row : result.indices)
        for (std::size_t c = 0; c < columns; ++c)
            result.values.push_back(
                from_double<T>(as_double(table[std::size_t(row) * columns + c]) * factor));
    return result;
}

// Compares the bytes that a rank receives: all ranks' rows with their indices, or twice the table,
// as in a ring.
inline bool gathers(sparse_policy policy, std::uint64_t all_rows, std::size_t rows,
                    std::size_t row_bytes) {
    if (policy != sparse_policy::automatic) return policy == sparse_policy::gather;
    return all_rows * (row_bytes + sizeof(std::int64_t)) < 2 * std::uint64_t(rows) * row_bytes;
}

inline std::uint64_t content_of_table(dtype id, std::size_t rows, std::size_t columns,
                                      const sparse_options& o) {
    hash content;
    content.add(std::uint64_t(id)).add(rows).add(columns);
    content.add(std::uint64_t(o.policy))
        .add(std::string_view(o.op.name()))
        .add(std::string_view(o.codec.name()))
        .add(std::uint64_t(o.exact_sums))
        .add(o.name);
    return content.value();
}

// Returns the number of rows of all ranks together. `give` returns that of this rank, which may
// fail to have them. **Collective**.
template <class Comm, class Give>
std::uint64_t agree_on_table(Comm& comm, dtype id, std::size_t rows, std::size_t columns,
                             const sparse_options& o, Give give) {
    return agree_after(
        comm, "sparse_allreduce",
        [&](call_header& mine) {
            mine.count = give();
            mine.content = content_of_table(id, rows, columns, o);
        },
        [&](auto say) {
            say("element type", dtype_name(id));
            say("rows", text(rows));
            say("columns", text(columns));
            say("policy", name_of(o.policy));
            say("operation", o.op.name());
            say("codec", o.codec.name());
            say("name", o.name);
            say("exact_sums", text(o.exact_sums));
        });
}

template <class Wire, class T, class Comm, class Give>
sparse_rows<T> sparse_allreduce_as(Comm& comm, Give give, std::size_t rows, std::size_t columns,
                                   const sparse_options& o) {
    sparse_rows<T> mine;
    const std::uint64_t all_rows = agree_on_table(comm, dtype_traits<T>::id, rows, columns, o, [&] {
        mine = give();
        return mine.indices.size();
    });
    const std::size_t wider = o.exact_sums ? sizeof(T) / sizeof(Wire) : 1;  // rows of the table
    if (gathers(o.policy, all_rows, rows * wider, columns * sizeof(Wire)))
        return gather_rows<Wire>(comm, mine, columns, o.op);
    if (o.exact_sums) return reduce_table<T>(comm, mine, rows, columns, o.op);
    return reduce_table<Wire>(comm, mine, rows, columns, o.op);
}

// Refuses wrong calls. The refusal takes the place of the agreement.
template <class Comm, class T>
void check_call(Comm& comm, const sparse_view<T>& mine, std::size_t rows, std::size_t columns,
                const sparse_options& o) {
    if (o.op == hvd::adasum)
        refuse_call(comm, "sparse gradients are averaged or summed; Adasum needs dense ones");
    if (!reduces_wire_of<typename Comm::backend_type>(o.codec)) refuse_call(comm, no_wire_text);
    if (const message wrong = wrong_rows(mine, rows, columns); !wrong.empty())
        refuse_call(comm, wrong);
}

// Reduces the rows that `give` returns, each index once. It may fail on this rank alone.
template <class T, class Comm, class Give>
sparse_rows<T> reduce_rows(Comm& comm, Give give, std::size_t rows, std::size_t columns,
                           const sparse_options& o) {
    if (o.codec == hvd::codec::none) return sparse_allreduce_as<T, T>(comm, give, rows, columns, o);
    sparse_rows<T> reduced;
    with_wire_type<typename Comm::backend_type>(o.codec, [&](auto narrow) {
        reduced = sparse_allreduce_as<decltype(narrow), T>(comm, give, rows, columns, o);
    });
    return reduced;
}

}  // namespace detail

/// Reduces sparse rows over all ranks. Every rank gets the rows that any rank has, sorted and each
/// once.
///
/// Rows of one index are merged on their rank before they travel. The result equals, up to
/// rounding, a dense allreduce of the `rows` × `columns` table, whichever way it travelled. Where
/// rows are gathered, time and memory depend on the rows, not on the table.
/// **Collective**: with equal rows, columns, element type and options.
/// **Completion**: done on return.
/// @throws hvd::mismatch_error if the ranks disagree on these. hvd::usage_error if sizes do not fit
/// or an index is out of range, and for Adasum; the others get hvd::peer_error. Horovod:
/// `sparse_allreduce_async`, `sparse_as_dense`.
/// @snippet tests/train/snippets.cpp sparse
template <class Comm, class T>
sparse_rows<T> sparse_allreduce(Comm& comm, const sparse_view<T>& mine, std::size_t rows,
                                std::size_t columns, const sparse_options& o = {}) {
    detail::check_call(comm, mine, rows, columns, o);
    return detail::reduce_rows<T>(
        comm, [&] { return detail::merged(mine, columns); }, rows, columns, o);
}

/// Reduces sparse rows to a dense gradient, `into(table)`. The table (`rows` × `columns`,
/// row-major) gets zeros and the reduced rows. Use it for a parameter that is registered as local
/// with an unscaled gradient, between the backward pass and the step.
template <class Comm, class T, class View>
void sparse_allreduce(Comm& comm, const sparse_view<T>& mine, const into_view<View>& table,
                      std::size_t columns, const sparse_options& o = {}) {
    const auto dense = detail::elements(detail::flat_view(table.view));
    if (columns == 0 || dense.size() % columns != 0)
        detail::refuse_call(comm, "a table of ", dense.size(), " elements has no rows of ",
                            columns);
    const auto reduced = sparse_allreduce(comm, mine, dense.size() / columns, columns, o);
    for (T& x : dense) x = detail::from_double<T>(0);
    detail::for_each_row(
        view(dense.data(), dense.size()), reduced.indices, reduced.values,
        [](std::span<T> to, std::span<const T> row) { std::ranges::copy(row, to.begin()); });
}

}  // namespace hvd::inline v0
