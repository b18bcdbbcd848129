// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../agreement.hpp"
#include "../tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Combines vectors pairwise. It holds one rank's slice of the vectors of all ranks. Neighbours are
// combined first, so that a binary tree in rank order grows level by level. A vector without a
// neighbour goes up unchanged.
template <class Comm>
class adasum_tree {
public:
    adasum_tree(Comm& comm, std::vector<double> slices, std::size_t length)
        : comm_(comm), slices_(std::move(slices)), length_(length) {
        for (std::size_t r = 0; r < std::size_t(comm.size()); ++r) alive_.push_back(r);
    }

    std::span<const double> combined() {
        while (alive_.size() > 1) combine_neighbours();
        return slice(alive_[0]);
    }

private:
    std::span<double> slice(std::size_t vector) {
        return std::span(slices_).subspan(vector * length_, length_);
    }

    void combine_neighbours() {
        const std::vector<double> largest = largest_elements();
        // a·a, b·b and a·b of each pair (a, b), of vectors scaled to 1
        std::vector<double> products;
        for (std::size_t p = 0; p + 1 < alive_.size(); p += 2)
            append_products(products, slice(alive_[p]), largest[p], slice(alive_[p + 1]),
                            largest[p + 1]);
        comm_.allreduce(products, sum, {.name = "adasum products"});

        std::vector<std::size_t> next;
        for (std::size_t p = 0; p < alive_.size(); p += 2) {
            next.push_back(alive_[p]);
            if (p + 1 < alive_.size())
                combine(slice(alive_[p]), largest[p], slice(alive_[p + 1]), largest[p + 1],
                        &products[p / 2 * 3]);
        }
        alive_ = std::move(next);
    }

    // Vectors are scaled by their largest element, since the squares of very small or large
    // elements leave the range of double.
    std::vector<double> largest_elements() {
        std::vector<double> largest;
        for (const std::size_t v : alive_) {
            double m = 0;
            for (const double x : slice(v)) m = std::abs(x) > m || std::isnan(x) ? std::abs(x) : m;
            largest.push_back(m);
        }
        comm_.allreduce(largest, max, {.name = "adasum largest elements"});
        for (double& m : largest)
            if (m == 0) m = 1;
        return largest;
    }

    static void append_products(std::vector<double>& products, std::span<const double> a,
                                double a_scale, std::span<const double> b, double b_scale) {
        double aa = 0, bb = 0, ab = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            const double x = a[i] / a_scale, y = b[i] / b_scale;
            aa += x * x;
            bb += y * y;
            ab += x * y;
        }
        products.insert(products.end(), {aa, bb, ab});
    }

    static void combine(std::span<double> a, double a_scale, std::span<const double> b,
                        double b_scale, const double* products) {
        const double aa = products[0], bb = products[1], ab = products[2];
        // The quotient is a·b / a·a in units of the unscaled vectors. A vector of zeros changes
        // nothing in the other.
        const double a_weight = aa == 0 ? 1 : 1 - ab / aa * (b_scale / a_scale) / 2;
        const double b_weight = bb == 0 ? 1 : 1 - ab / bb * (a_scale / b_scale) / 2;
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = a_weight * a[i] + b_weight * b[i];
    }

    Comm& comm_;
    std::vector<double> slices_;
    std::size_t length_;
    std::vector<std::size_t> alive_;
};

template <class Comm, class Shape>
void agree_on_adasum(Comm& comm, dtype id, const Shape& shape, const reduce_options& o) {
    hash content;
    content.add(std::uint64_t(id)).add(shape.size());
    for (const std::size_t extent : shape) content.add(extent);
    content.add(o.prescale).add(o.postscale).add(o.name);
    agree_on_values(comm, "adasum", content, 0, [&](auto say) {
        say("element type", dtype_name(id));
        say("shape", print_list(shape));
        say("prescale", text(o.prescale));
        say("postscale", text(o.postscale));
        say("name", o.name);
    });
}

}  // namespace detail

/// Combines one tensor of every rank by Adasum. Every rank gets the result in `x`.
///
/// Two vectors a, b give (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b. That is their sum if they are
/// orthogonal, and their mean if they are parallel. More vectors are combined pairwise, neighbours
/// in rank order first. Any number of ranks is allowed, and every rank gets the same bits. The
/// result is computed in double and rounded once. The tensor travels twice, as in an ordinary
/// allreduce. Each rank combines one slice of it, and the inner products of the slices are summed
/// over the ranks, level by level.
/// **Collective**: all ranks, with equal element type, shape, scales and name.
/// **Buffers**: `x` is read and written, and has no gaps.
/// **Completion**: done on return. `comm.allreduce(x, hvd::adasum, options)` is the same.
/// @throws hvd::mismatch_error if the ranks disagree, hvd::peer_error as collectives do. Feature
/// C3, arXiv:2006.02924.
/// @snippet tests/train/snippets.cpp adasum
template <class Comm, class X>
    requires writable<X>
void adasum_allreduce(Comm& comm, X&& x, const reduce_options& o = {}) {
    const auto whole = detail::flat_view(x);
    using T = typename decltype(whole)::value_type;
    static_assert(detail::is_float_element<T>, "hvd: adasum is for floating-point tensors");
    detail::agree_on_adasum(comm, dtype_traits<T>::id, detail::to_view(x).shape(), o);

    const std::size_t ranks = std::size_t(comm.size()), n = whole.size();
    std::vector<std::size_t> counts(ranks);
    for (std::size_t r = 0; r < ranks; ++r) counts[r] = n / ranks + (r < n % ranks ? 1 : 0);
    const auto parts = comm.alltoall(whole, counts, {.name = "adasum"});

    std::vector<double> slices;
    slices.reserve(parts.values.size());
    for (const T& value : parts.values) slices.push_back(detail::as_double(value) * o.prescale);
    const std::size_t length = counts[std::size_t(comm.rank())];
    detail::adasum_tree<Comm> tree(comm, std::move(slices), length);
    std::vector<T> mine;
    mine.reserve(length);
    for (const double value : tree.combined())
        mine.push_back(detail::from_double<T>(value * o.postscale));
    // its into() needs equal slices
    if constexpr (detail::is_direct<typename Comm::backend_type>) {
        const auto all = comm.allgather(mine, {.name = "adasum"});
        for (std::size_t i = 0; i < n; ++i) whole.data()[i] = all.values[i];
    } else {
        comm.allgather(mine, into(whole), {.name = "adasum"});
    }
}

/// Combines each tensor of a `fuse(…)` by itself.
template <class Comm, class... Parts>
void adasum_allreduce(Comm& comm, const fused<Parts...>& tensors, const reduce_options& o = {}) {
    tensors.for_each([&](const auto& tensor) { adasum_allreduce(comm, tensor, o); });
}

}  // namespace v0
}  // namespace hvd
