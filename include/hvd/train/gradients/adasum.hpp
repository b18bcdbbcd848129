// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "../../fusion/fuse.hpp"
#include "../../protocol/step_question.hpp"
#include "../agreement.hpp"
#include "elements.hpp"

namespace hvd::inline v0 {
namespace detail {

// Combines vectors pairwise, tensor by tensor. It holds one rank's slices of the vectors of all
// ranks: a vector has a slice of each tensor. Neighbours are combined first, so that a binary tree
// in rank order grows level by level. A vector without a neighbour goes up unchanged. A level takes
// two messages, however many tensors there are. Its memory is made at once, so that no rank finds
// none between the messages.
template <class Comm>
class adasum_tree {
public:
    // `lengths` are those of the slices of one vector.
    adasum_tree(Comm& comm, std::vector<std::size_t> lengths)
        : comm_(comm), lengths_(std::move(lengths)) {
        const std::size_t ranks = std::size_t(comm.size());
        for (const std::size_t n : lengths_) length_ += n;
        slices_.resize(length_ * ranks);
        for (std::size_t r = 0; r < ranks; ++r) alive_.push_back(r);
        largest_.resize(lengths_.size() * ranks);
        products_.resize(3 * lengths_.size() * (ranks / 2));
    }

    // The slices of all vectors, by rank.
    std::span<double> slices() { return slices_; }
    // The elements of the slices of one vector.
    std::size_t length() const { return length_; }

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
        find_largest_elements();
        const std::size_t tensors = lengths_.size();
        // a·a, b·b and a·b of each tensor of each pair (a, b), of vectors scaled to 1
        double* of_pair = products_.data();
        for (std::size_t p = 0; p + 1 < alive_.size(); p += 2)
            for_each_tensor(alive_[p], alive_[p + 1], [&](std::size_t t, auto a, auto b) {
                put_products(of_pair, a, largest_[p * tensors + t], b,
                             largest_[(p + 1) * tensors + t]);
                of_pair += 3;
            });
        comm_.allreduce(view(products_.data(), std::size_t(of_pair - products_.data())), sum,
                        {.name = "adasum products"});

        std::size_t left = 0;
        of_pair = products_.data();
        for (std::size_t p = 0; p < alive_.size(); p += 2) {
            const std::size_t vector = alive_[p];
            if (p + 1 < alive_.size())
                for_each_tensor(vector, alive_[p + 1], [&](std::size_t t, auto a, auto b) {
                    combine(a, largest_[p * tensors + t], b, largest_[(p + 1) * tensors + t],
                            of_pair);
                    of_pair += 3;
                });
            alive_[left++] = vector;
        }
        alive_.resize(left);
    }

    // Vectors are scaled by their largest element, since the squares of very small or large
    // elements leave the range of double.
    void find_largest_elements() {
        double* next = largest_.data();
        for (const std::size_t v : alive_)
            for_each_tensor(v, v, [&](std::size_t, auto slice, auto) {
                double m = 0;
                for (const double x : slice) m = std::abs(x) > m || is_nan(x) ? std::abs(x) : m;
                *next++ = m;
            });
        comm_.allreduce(view(largest_.data(), std::size_t(next - largest_.data())), max,
                        {.name = "adasum largest elements"});
        for (double& m : largest_)
            if (m == 0) m = 1;
    }

    static void put_products(double* products, std::span<const double> a, double a_scale,
                             std::span<const double> b, double b_scale) {
        double aa = 0, bb = 0, ab = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            const double x = a[i] / a_scale, y = b[i] / b_scale;
            aa += x * x;
            bb += y * y;
            ab += x * y;
        }
        products[0] = aa;
        products[1] = bb;
        products[2] = ab;
    }

    static void combine(std::span<double> a, double a_scale, std::span<const double> b,
                        double b_scale, const double* products) {
        const double aa = products[0], bb = products[1], ab = products[2];
        // The quotient is a·b / a·a in units of the unscaled vectors. A vector of zeros changes
        // nothing in the other.
        const double a_part = aa == 0 ? 0 : ab / aa / 2, b_part = bb == 0 ? 0 : ab / bb / 2;
        const double b_by_a = b_scale / a_scale, a_by_b = a_scale / b_scale;
        if (is_finite(b_by_a) && is_finite(a_by_b)) {
            const double a_weight = 1 - a_part * b_by_a, b_weight = 1 - b_part * a_by_b;
            for (std::size_t i = 0; i < a.size(); ++i) a[i] = a_weight * a[i] + b_weight * b[i];
        } else {  // so far apart that a weight leaves the range of double
            for (std::size_t i = 0; i < a.size(); ++i)
                a[i] = (a[i] - a_part * (a[i] / a_scale) * b_scale) +
                       (b[i] - b_part * (b[i] / b_scale) * a_scale);
        }
    }

    Comm& comm_;
    std::vector<double> slices_;
    std::vector<std::size_t> lengths_;
    std::size_t length_ = 0;
    std::vector<std::size_t> alive_;
    std::vector<double> largest_, products_;  // of a level; the first one has the most
};

// Tensors of one type that Adasum combines: two exchanges of slices and the tree's messages
// between. The elements travel as bytes. All memory but that of the calls' results is made before
// the first call.
template <class Comm>
class adasum_exchange {
public:
    adasum_exchange(Comm& comm, std::vector<flat_tensor> tensors, const reduce_options& o)
        : comm_(comm),
          tensors_(std::move(tensors)),
          prescale_(o.prescale),
          postscale_(o.postscale),
          bytes_(std::size_t(comm.size())),
          tree_(comm, lengths()),
          mine_(tree_.length() * kind().bytes) {
        std::size_t all = 0;
        for_each_slice([&](std::size_t r, const flat_tensor&, std::size_t, std::size_t count) {
            bytes_[r] += count * kind().bytes;
            all += count * kind().bytes;
        });
        packed_.reserve(all);
        for_each_slice([&](std::size_t, const flat_tensor& t, std::size_t begin, std::size_t n) {
            packed_.insert(packed_.end(), t.at(begin), t.at(begin + n));
        });
    }

    // **Collective**. The tensors stay as they are.
    void run() {
        const auto parts = comm_.alltoall(packed_, bytes_, {.name = "adasum"});
        const std::span<double> slices = tree_.slices();
        kind().to_doubles(parts.values.data(), slices.size(), prescale_, slices.data());
        const std::span<const double> combined = tree_.combined();
        kind().from_doubles(combined.data(), combined.size(), postscale_, mine_.data());
        combined_ = comm_.allgather(mine_, {.name = "adasum"});
    }

    void store() {
        const std::byte* next = combined_.values.data();
        for_each_slice([&](std::size_t, const flat_tensor& t, std::size_t begin, std::size_t n) {
            if (n > 0) std::memcpy(t.at(begin), next, n * kind().bytes);
            next += n * kind().bytes;
        });
    }

private:
    const element_kind& kind() const { return tensors_.front().kind(); }

    // Calls f(rank, tensor, begin, count) for the slice of each rank of each tensor, by rank.
    template <class F>
    void for_each_slice(F f) const {
        const std::size_t ranks = std::size_t(comm_.size());
        for (std::size_t r = 0; r < ranks; ++r)
            for (const flat_tensor& t : tensors_) {
                const std::size_t least = t.size() / ranks, rest = t.size() % ranks;
                f(r, t, r * least + std::min(r, rest), least + (r < rest ? 1 : 0));
            }
    }

    // Those of this rank's slices.
    std::vector<std::size_t> lengths() const {
        std::vector<std::size_t> all;
        for_each_slice([&](std::size_t r, const flat_tensor&, std::size_t, std::size_t count) {
            if (r == std::size_t(comm_.rank())) all.push_back(count);
        });
        return all;
    }

    Comm& comm_;
    std::vector<flat_tensor> tensors_;
    double prescale_, postscale_;
    std::vector<std::size_t> bytes_;  // for each rank
    std::vector<std::byte> packed_;
    adasum_tree<Comm> tree_;
    std::vector<std::byte> mine_;
    gathered<std::byte> combined_;
};

// The tensors of one call.
struct adasum_tensors {
    std::vector<tensor_ref> described;
    std::vector<std::vector<flat_tensor>> of_types;  // those of each element type

    void add(const tensor_ref& described_as, const flat_tensor& t) {
        described.push_back(described_as);
        for (auto& list : of_types)
            if (&list.front().kind() == &t.kind()) return list.push_back(t);
        of_types.push_back({t});
    }

    std::uint64_t content(const reduce_options& o) const {
        hash content;
        content.add(described.size()).add(o.prescale).add(o.postscale).add(o.name);
        for (const tensor_ref& t : described) {
            content.add(std::uint64_t(t.id)).add(t.dimensions);
            for (const std::size_t extent : shape_of(t)) content.add(extent);
        }
        return content.value();
    }

    template <class Say>
    void say(const reduce_options& o, Say tell) const {
        message types, shapes;
        for (const tensor_ref& t : described) {
            const char* const comma = types.empty() ? "" : ", ";
            types += text(comma, dtype_name(t.id));
            shapes += text(comma, print_list(shape_of(t)));
        }
        tell("tensors", text(described.size()));
        tell("element type", types);
        tell("shape", shapes);
        tell("prescale", text(o.prescale));
        tell("postscale", text(o.postscale));
        tell("name", o.name);
    }

private:
    static std::span<const std::size_t> shape_of(const tensor_ref& t) {
        return {t.extents, t.dimensions};
    }
};

// **Collective**. Combines the tensors that `list` adds to its argument, on all ranks or on none.
// `list` may fail on this rank alone. The agreement takes a question along, if there is one.
template <class Comm, class List>
void combine_by_adasum(Comm& comm, const reduce_options& o, List list,
                       step_question* question = nullptr) {
    adasum_tensors tensors;
    std::vector<adasum_exchange<Comm>> exchanges;
    const std::uint64_t answers = agree_after(
        comm, "adasum",
        [&](call_header& mine) {
            list(tensors);
            for (auto& of_type : tensors.of_types)
                exchanges.emplace_back(comm, std::move(of_type), o);
            mine.content = tensors.content(o);
            mine.count = question != nullptr && question->ask() ? 1 : 0;
        },
        [&](auto say) { tensors.say(o, say); });
    if (question != nullptr) question->settle(answers > 0);
    for (auto& exchange : exchanges) exchange.run();
    for (auto& exchange : exchanges) exchange.store();
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
/// @throws hvd::mismatch_error if the ranks disagree, hvd::peer_error as collectives do.
/// Source: arXiv:2006.02924.
/// @snippet tests/train/snippets.cpp adasum
template <class Comm, class... Parts>
void adasum_allreduce(Comm& comm, const fused<Parts...>& tensors, const reduce_options& o = {}) {
    detail::combine_by_adasum(comm, o, [&](detail::adasum_tensors& all) {
        tensors.for_each([&](const auto& tensor) {
            using T = typename std::remove_cvref_t<decltype(tensor)>::value_type;
            static_assert(detail::is_float_element<T>, "hvd: adasum is for floating-point tensors");
            all.add(detail::erase(tensor), detail::flat_tensor(detail::flat_view(tensor)));
        });
    });
}

/// Combines one tensor of every rank by Adasum.
template <class Comm, class X>
    requires writable<X>
void adasum_allreduce(Comm& comm, X&& x, const reduce_options& o = {}) {
    adasum_allreduce(comm, fused(detail::to_view(x)), o);
}

}  // namespace hvd::inline v0
