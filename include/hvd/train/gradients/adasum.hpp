// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "../../fusion/fuse.hpp"
#include "../agreement.hpp"
#include "../tensors.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Combines vectors pairwise, tensor by tensor. It holds one rank's slices of the vectors of all
// ranks: a vector has a slice of each tensor. Neighbours are combined first, so that a binary tree
// in rank order grows level by level. A vector without a neighbour goes up unchanged. A level takes
// two messages, however many tensors there are.
template <class Comm>
class adasum_tree {
public:
    // `lengths` are those of the slices of one vector.
    adasum_tree(Comm& comm, std::vector<double> slices, std::vector<std::size_t> lengths)
        : comm_(comm), slices_(std::move(slices)), lengths_(std::move(lengths)) {
        for (const std::size_t n : lengths_) length_ += n;
        for (std::size_t r = 0; r < std::size_t(comm.size()); ++r) alive_.push_back(r);
    }

    std::span<const double> combined() {
        while (alive_.size() > 1) combine_neighbours();
        return std::span(slices_).subspan(alive_[0] * length_, length_);
    }

private:
    // Calls f(tensor, slice, other slice) for the tensors of two vectors.
    template <class F>
    void for_each_tensor(std::size_t vector, std::size_t other, F f) {
        double *a = slices_.data() + vector * length_, *b = slices_.data() + other * length_;
        for (std::size_t t = 0; t < lengths_.size(); ++t) {
            f(t, std::span(a, lengths_[t]), std::span(b, lengths_[t]));
            a += lengths_[t];
            b += lengths_[t];
        }
    }

    void combine_neighbours() {
        const std::size_t tensors = lengths_.size();
        const std::vector<double> largest = largest_elements();
        // a·a, b·b and a·b of each tensor of each pair (a, b), of vectors scaled to 1
        std::vector<double> products;
        for (std::size_t p = 0; p + 1 < alive_.size(); p += 2)
            for_each_tensor(alive_[p], alive_[p + 1], [&](std::size_t t, auto a, auto b) {
                append_products(products, a, largest[p * tensors + t], b,
                                largest[(p + 1) * tensors + t]);
            });
        comm_.allreduce(products, sum, {.name = "adasum products"});

        std::vector<std::size_t> next;
        const double* of_pair = products.data();
        for (std::size_t p = 0; p < alive_.size(); p += 2) {
            next.push_back(alive_[p]);
            if (p + 1 == alive_.size()) continue;
            for_each_tensor(alive_[p], alive_[p + 1], [&](std::size_t t, auto a, auto b) {
                combine(a, largest[p * tensors + t], b, largest[(p + 1) * tensors + t], of_pair);
                of_pair += 3;
            });
        }
        alive_ = std::move(next);
    }

    // Vectors are scaled by their largest element, since the squares of very small or large
    // elements leave the range of double.
    std::vector<double> largest_elements() {
        std::vector<double> largest;
        for (const std::size_t v : alive_)
            for_each_tensor(v, v, [&](std::size_t, auto slice, auto) {
                double m = 0;
                for (const double x : slice) m = std::abs(x) > m || is_nan(x) ? std::abs(x) : m;
                largest.push_back(m);
            });
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
    std::vector<std::size_t> lengths_;
    std::size_t length_ = 0;
    std::vector<std::size_t> alive_;
};

template <class Comm, class... Parts>
void agree_on_adasum(Comm& comm, const fused<Parts...>& tensors, const reduce_options& o) {
    hash content;
    content.add(tensors.count()).add(o.prescale).add(o.postscale).add(o.name);
    std::string types, shapes;
    tensors.for_each([&](const auto& tensor) {
        const dtype id =
            dtype_traits<typename std::remove_cvref_t<decltype(tensor)>::value_type>::id;
        content.add(std::uint64_t(id)).add(tensor.shape().size());
        for (const std::size_t extent : tensor.shape()) content.add(extent);
        const char* const comma = types.empty() ? "" : ", ";
        types += text(comma, dtype_name(id));
        shapes += text(comma, print_list(tensor.shape()));
    });
    agree_on_values(comm, "adasum", content, 0, [&](auto say) {
        say("tensors", text(tensors.count()));
        say("element type", types);
        say("shape", shapes);
        say("prescale", text(o.prescale));
        say("postscale", text(o.postscale));
        say("name", o.name);
    });
}

// Combines tensors of one type: two exchanges of slices and the tree's messages between.
template <class Comm, class T>
void combine_by_adasum(Comm& comm, const std::vector<tensor_view<T>>& tensors,
                       const reduce_options& o) {
    static_assert(is_float_element<T>, "hvd: adasum is for floating-point tensors");
    const std::size_t ranks = std::size_t(comm.size());
    // Calls f(slice) for the slices of each rank, tensor by tensor.
    const auto for_each_slice = [&](auto f) {
        for (std::size_t r = 0; r < ranks; ++r)
            for (const auto& tensor : tensors) {
                const std::size_t n = tensor.size(), least = n / ranks, rest = n % ranks;
                f(r, std::span(tensor.data() + r * least + std::min(r, rest),
                               least + (r < rest ? 1 : 0)));
            }
    };
    std::vector<T> packed;
    std::vector<std::size_t> counts(ranks), lengths;
    for_each_slice([&](std::size_t r, std::span<T> slice) {
        packed.insert(packed.end(), slice.begin(), slice.end());
        counts[r] += slice.size();
        if (r == std::size_t(comm.rank())) lengths.push_back(slice.size());
    });
    const auto parts = comm.alltoall(packed, counts, {.name = "adasum"});

    std::vector<double> slices;
    slices.reserve(parts.values.size());
    for (const T& value : parts.values) slices.push_back(as_double(value) * o.prescale);
    adasum_tree<Comm> tree(comm, std::move(slices), std::move(lengths));
    std::vector<T> mine;
    mine.reserve(counts[std::size_t(comm.rank())]);
    for (const double value : tree.combined()) mine.push_back(from_double<T>(value * o.postscale));
    const auto all = comm.allgather(mine, {.name = "adasum"});
    auto next = all.values.begin();
    for_each_slice([&](std::size_t, std::span<T> slice) {
        for (T& x : slice) x = *next++;
    });
}

}  // namespace detail

/// Combines each tensor of a `fuse(…)` of every rank by itself, by Adasum. Every rank gets the
/// results in the tensors.
///
/// Two vectors a, b give (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b. That is their sum if they are
/// orthogonal, and their mean if they are parallel. More vectors are combined pairwise, neighbours
/// in rank order first. Any number of ranks is allowed, and every rank gets the same bits. The
/// result is computed in double and rounded once. The tensors travel twice, as in an ordinary
/// allreduce, all tensors of one element type together. Each rank combines a slice of each, and the
/// inner products of the slices are summed over the ranks, level by level. So the number of
/// messages does not depend on the number of tensors.
/// **Collective**: all ranks, with equal element types, shapes, scales and name.
/// **Buffers**: the tensors are read and written, and have no gaps. The call needs memory for a
/// double for each of their elements.
/// **Completion**: done on return. `comm.allreduce(x, hvd::adasum, options)` is the same.
/// @throws hvd::mismatch_error if the ranks disagree, hvd::peer_error as collectives do. Feature
/// C3, arXiv:2006.02924.
/// @snippet tests/train/snippets.cpp adasum
template <class Comm, class... Parts>
void adasum_allreduce(Comm& comm, const fused<Parts...>& tensors, const reduce_options& o = {}) {
    detail::agree_on_adasum(comm, tensors, o);
    [&]<class... T>(detail::type_list<T...>) {
        const auto combine = [&]<class U>(std::type_identity<U>) {
            std::vector<tensor_view<U>> of_type;
            tensors.for_each([&](const auto& tensor) {
                using V = typename std::remove_cvref_t<decltype(tensor)>::value_type;
                if constexpr (std::is_same_v<U, V>) of_type.push_back(detail::flat_view(tensor));
            });
            if (!of_type.empty()) detail::combine_by_adasum(comm, of_type, o);
        };
        (combine(std::type_identity<T>()), ...);
    }(detail::fused_types_t<fused<Parts...>>());
}

/// Combines one tensor of every rank by Adasum.
template <class Comm, class X>
    requires writable<X>
void adasum_allreduce(Comm& comm, X&& x, const reduce_options& o = {}) {
    adasum_allreduce(comm, fused(detail::to_view(x)), o);
}

}  // namespace v0
}  // namespace hvd
