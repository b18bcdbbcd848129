// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "../../fusion/fuse.hpp"
#include "../agreement.hpp"
#include "elements.hpp"

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

// **Collective**. The agreement takes a question along, if there is one.
template <class Comm>
void agree_on_adasum(Comm& comm, const std::vector<tensor_ref>& tensors, const reduce_options& o,
                     step_question* question = nullptr) {
    hash content;
    content.add(tensors.size()).add(o.prescale).add(o.postscale).add(o.name);
    std::string types, shapes;
    for (const tensor_ref& t : tensors) {
        const std::span<const std::size_t> shape(t.extents, t.dimensions);
        content.add(std::uint64_t(t.id)).add(shape.size());
        for (const std::size_t extent : shape) content.add(extent);
        const char* const comma = types.empty() ? "" : ", ";
        types += text(comma, dtype_name(t.id));
        shapes += text(comma, print_list(shape));
    }
    const std::uint64_t yes = question != nullptr && question->ask() ? 1 : 0;
    const std::uint64_t answers = agree_on_values(comm, "adasum", content, yes, [&](auto say) {
        say("tensors", text(tensors.size()));
        say("element type", types);
        say("shape", shapes);
        say("prescale", text(o.prescale));
        say("postscale", text(o.postscale));
        say("name", o.name);
    });
    if (question != nullptr) question->settle(answers > 0);
}

// Calls f(rank, tensor, begin, count) for the slice of each rank of each tensor, by rank.
template <class F>
void for_each_slice_of_adasum(const std::vector<flat_tensor>& tensors, std::size_t ranks, F f) {
    for (std::size_t r = 0; r < ranks; ++r)
        for (const flat_tensor& t : tensors) {
            const std::size_t least = t.size() / ranks, rest = t.size() % ranks;
            f(r, t, r * least + std::min(r, rest), least + (r < rest ? 1 : 0));
        }
}

// Combines tensors of one type: two exchanges of slices and the tree's messages between. The
// elements travel as bytes.
template <class Comm>
void combine_by_adasum(Comm& comm, const std::vector<flat_tensor>& tensors,
                       const reduce_options& o) {
    const std::size_t ranks = std::size_t(comm.size()), me = std::size_t(comm.rank());
    const element_kind& kind = tensors.front().kind();
    std::vector<std::byte> packed;
    std::vector<std::size_t> bytes(ranks), lengths;
    for_each_slice_of_adasum(
        tensors, ranks,
        [&](std::size_t r, const flat_tensor& t, std::size_t begin, std::size_t count) {
            const std::byte* const slice = t.data() + begin * kind.bytes;
            packed.insert(packed.end(), slice, slice + count * kind.bytes);
            bytes[r] += count * kind.bytes;
            if (r == me) lengths.push_back(count);
        });
    const auto parts = comm.alltoall(packed, bytes, {.name = "adasum"});

    std::vector<double> slices(parts.values.size() / kind.bytes);
    kind.to_doubles(parts.values.data(), slices.size(), o.prescale, slices.data());
    adasum_tree<Comm> tree(comm, std::move(slices), std::move(lengths));
    const std::span<const double> combined = tree.combined();
    std::vector<std::byte> mine(combined.size() * kind.bytes);
    kind.from_doubles(combined.data(), combined.size(), o.postscale, mine.data());
    const auto all = comm.allgather(mine, {.name = "adasum"});
    const std::byte* next = all.values.data();
    for_each_slice_of_adasum(
        tensors, ranks, [&](std::size_t, const flat_tensor& t, std::size_t begin, std::size_t n) {
            if (n > 0) std::memcpy(t.data() + begin * kind.bytes, next, n * kind.bytes);
            next += n * kind.bytes;
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
    std::vector<detail::tensor_ref> all;
    tensors.for_each([&](const auto& tensor) { all.push_back(detail::erase(tensor)); });
    detail::agree_on_adasum(comm, all, o);
    [&]<class... T>(detail::type_list<T...>) {
        const auto combine = [&]<class U>(std::type_identity<U>) {
            static_assert(detail::is_float_element<U>, "hvd: adasum is for floating-point tensors");
            std::vector<detail::flat_tensor> of_type;
            tensors.for_each([&](const auto& tensor) {
                using V = typename std::remove_cvref_t<decltype(tensor)>::value_type;
                if constexpr (std::is_same_v<U, V>)
                    of_type.push_back(detail::flat_tensor(detail::flat_view(tensor)));
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
