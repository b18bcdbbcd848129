// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "agreement.hpp"
#include "tensors.hpp"

namespace hvd::inline v0 {

/// The derivatives of the collectives, for the backward pass of an automatic differentiation.
///
/// Each takes the gradient of the collective's output on this rank, and gives the gradient of its
/// input on this rank. **Collective**, as the collective itself: all ranks, in the same order. The
/// results are exact for the sum of all ranks' losses:
///
/// | collective             | derivative                |
/// |------------------------|---------------------------|
/// | allreduce sum, average | allreduce sum, average    |
/// | allgather              | own rows of the sum       |
/// | allreduce min, max     | to where the extreme was  |
/// | allreduce product      | times the others' product |
/// | broadcast              | the sum on the root       |
/// | alltoall               | alltoall back             |
/// | reduce_scatter sum     | allgather                 |
/// | reduce_scatter average | allgather divided by size |
/// | reduce sum, average    | broadcast, scaled         |
/// | gather                 | scatter                   |
/// | scatter                | gather                    |
///
/// Horovod's are others: an allgather has the average, as has a broadcast, a reduce_scatter is
/// times the size, and min, max and product are reduced as the forward pass.
///
/// A rank refuses a call that it sees to be wrong, and the others get peer_error. Roots and sizes
/// are compared as the collective compares them.
/// @tparam Comm a communicator
/// @snippet tests/train/snippets.cpp vjp
template <class Comm>
class vjp {
public:
    explicit vjp(Comm& comm) : comm_(comm) {}

    /// The derivative of `allreduce(x, op, scales)` with sum or average, in place.
    template <class G, class Op>
        requires writable<G>
    void allreduce(G&& gradient, const Op& with, const reduce_options& scales = {}) {
        check_linear<Op>();
        comm_.allreduce(gradient, with, scales);
    }

    /// The derivative of `allreduce(x, min)` or `max`. `input` and `output` are those of the
    /// forward pass. The gradient goes to the ranks that held the extreme, in equal shares.
    template <class G, class X, class Op>
        requires writable<G>
    void allreduce_extreme(G&& gradient, const X& input, const X& output, const Op&) {
        static_assert(std::is_same_v<Op, op::min> || std::is_same_v<Op, op::max>,
                      "hvd: allreduce_extreme is for min and max");
        const auto g = detail::elements(detail::flat_view(gradient));
        const auto in = detail::elements(detail::flat_view(input));
        const auto out = detail::elements(detail::flat_view(output));
        check_sizes(g.size(), in.size(), out.size());
        std::vector<double> holders(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) holders[i] = in[i] == out[i] ? 1 : 0;
        comm_.allreduce(gradient, sum);
        comm_.allreduce(holders, sum);
        using T = detail::element_of<G>;
        for (std::size_t i = 0; i < g.size(); ++i)
            g[i] = in[i] == out[i] ? detail::from_double<T>(detail::as_double(g[i]) / holders[i])
                                   : T(0);
    }

    /// The derivative of `allreduce(x, product)`. `input` is x. The products of the others are
    /// computed in double, with zeros left out.
    template <class G, class X>
        requires writable<G>
    void allreduce_product(G&& gradient, const X& input) {
        const auto g = detail::elements(detail::flat_view(gradient));
        const auto in = detail::elements(detail::flat_view(input));
        check_sizes(g.size(), in.size(), g.size());
        std::vector<double> factors(g.size()), zeros(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) {
            zeros[i] = in[i] == 0 ? 1 : 0;
            factors[i] = in[i] == 0 ? 1 : detail::as_double(in[i]);
        }
        comm_.allreduce(gradient, sum);
        comm_.allreduce(factors, product);
        comm_.allreduce(zeros, sum);
        using T = detail::element_of<G>;
        for (std::size_t i = 0; i < g.size(); ++i) {
            const bool zero = in[i] == 0, zero_elsewhere = zeros[i] > (zero ? 1 : 0);
            const double others = zero_elsewhere ? 0
                                  : zero         ? factors[i]
                                                 : factors[i] / detail::as_double(in[i]);
            g[i] = detail::from_double<T>(detail::as_double(g[i]) * others);
        }
    }

    /// The derivative of `reduce(x, into(y), op, root, scales)` with sum or average. The root
    /// passes the gradient of y, and all ranks get the gradient of x in its place.
    template <class G, class Op>
        requires writable<G>
    void reduce(G&& gradient, const Op&, root to = root{0}, const reduce_options& scales = {}) {
        check_linear<Op>();
        comm_.broadcast(gradient, to);
        double factor = scales.prescale * scales.postscale;
        if (std::is_same_v<Op, op::average>) factor /= comm_.size();
        detail::scale(detail::flat_view(gradient), factor);
    }

    /// The derivative of `gather(x, root)`, where each rank sent `counts[rank]` elements: the
    /// gradient of x. Only the root's gradient and counts are read.
    template <class G>
    auto gather(const G& gradient, const std::vector<std::size_t>& counts, root to = root{0}) {
        const auto all = detail::flat_view(gradient);
        return comm_.scatter(all, counts, to);
    }

    /// The derivative of `scatter(x, …, root)`: the gradient of x on the root, nothing on other
    /// ranks.
    template <class G>
    auto scatter(const G& gradient, root from = root{0}) {
        return comm_.gather(detail::flat_view(gradient), from).values;
    }

    /// The derivative of `allgather(x)`, where each rank sent `counts[rank]` elements: the gradient
    /// of x.
    template <class G>
    auto allgather(const G& gradient, const std::vector<std::size_t>& counts) {
        using T = detail::element_of<const G&>;
        const auto g = detail::elements(detail::flat_view(gradient));
        check_counts(g.size(), counts);
        std::vector<T> all(g.begin(), g.end());
        comm_.allreduce(all, sum);
        std::size_t first = 0;
        for (int r = 0; r < comm_.rank(); ++r) first += counts[std::size_t(r)];
        const std::size_t mine = counts[std::size_t(comm_.rank())];
        return std::vector<T>(all.data() + first, all.data() + first + mine);
    }

    /// The derivative of `broadcast(x, root)`, in place: the gradient on the root, zeros on other
    /// ranks.
    template <class G>
        requires writable<G>
    void broadcast(G&& gradient, root from = root{0}) {
        using T = detail::element_of<G>;
        comm_.reduce(gradient, sum, from);
        if (comm_.rank() == from.rank) return;
        for (T& x : detail::elements(detail::flat_view(gradient))) x = T(0);
    }

    /// The derivative of `alltoall(x, …)`, whose result had these `received` counts: the gradient
    /// of x.
    template <class G>
    auto alltoall(const G& gradient, const std::vector<std::size_t>& received) {
        check_counts(detail::flat_view(gradient).size(), received);
        return comm_.alltoall(detail::flat_view(gradient), received).values;
    }

    /// The derivative of `reduce_scatter(x, op, scales)` with sum or average: the gradient of the
    /// whole x.
    template <class G, class Op>
    auto reduce_scatter(const G& gradient, const Op&, const reduce_options& scales = {}) {
        check_linear<Op>();
        auto whole = comm_.allgather(detail::flat_view(gradient)).values;
        double factor = scales.prescale * scales.postscale;
        if (std::is_same_v<Op, op::average>) factor /= comm_.size();
        detail::scale(view(whole.data(), whole.size()), factor);
        return whole;
    }

private:
    template <class Op>
    static constexpr void check_linear() {
        static_assert(std::is_same_v<Op, op::sum> || std::is_same_v<Op, op::average>,
                      "hvd: this vjp is for sum and average; of an allreduce, allreduce_extreme is "
                      "for min and max, and allreduce_product for product");
    }

    void check_sizes(std::size_t gradient, std::size_t input, std::size_t output) const {
        if (input != gradient || output != gradient)
            detail::refuse_call(comm_, "vjp of ", gradient, " elements with an input of ", input,
                                " and an output of ", output);
    }

    void check_counts(std::size_t elements, const std::vector<std::size_t>& counts) const {
        std::size_t total = 0;
        for (const std::size_t n : counts) total += n;
        if (counts.size() != std::size_t(comm_.size()) || total != elements)
            detail::refuse_call(comm_, "vjp of a gradient of ", elements, " elements with ",
                                counts.size(), " counts that add up to ", total);
    }

    Comm& comm_;
};

}  // namespace hvd::inline v0
