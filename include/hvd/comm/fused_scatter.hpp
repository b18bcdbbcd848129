// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "fused_results.hpp"
#include "split_rows.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Many tensors reduced and scattered as one: in the buffer, each element type's group holds rank 0's
// rows of all tensors, then rank 1's, and so on.
template <class Fused, class Op>
struct fused_reduce_scatter_call : reduction_call<Op> {
    static constexpr std::size_t types = fused_types_t<Fused>::size;

    struct piece {
        tensor_ref tensor;
        std::vector<std::size_t> bounds;  // of its rows, in elements, by rank
        std::vector<std::size_t> places;  // in the buffer, in bytes, by rank
        std::size_t result_place = 0;     // in the result, in bytes
    };

    std::vector<piece> pieces;
    std::vector<tensor_ref> outputs;
    std::array<std::vector<std::size_t>, types> bounds;
    std::array<reduction_group, types> groups;
    std::vector<std::byte> input, output, dense;

    fused_reduce_scatter_call(const Fused& list, const Op& f, int rank, int size, const reduce_options& o)
        : reduction_call<Op>(f), rank_(rank), size_(size) {
        operation& op = this->op;
        this->describe(collective::reduce_scatter, o.name);
        this->describe_reduction(o);
        list.for_each([&](const auto& view) {
            pieces.push_back({erase(view), {}, std::vector<std::size_t>(std::size_t(size)), 0});
            split_rows(view, size, pieces.back().bounds);
        });
        std::size_t bytes = 0, result_bytes = 0, index = 0;
        [&]<class... T>(type_list<T...>) {
            (lay_out_group<T>(index++, bytes, result_bytes), ...);
        }(fused_types_t<Fused>{});
        input.resize(bytes);
        output.resize(result_bytes);
        hash content;
        for (const piece& p : pieces) content.add(p.tensor);
        op.entry.fused = true;
        op.entry.count = bytes;
        op.entry.content = content.value();
        op.in = input.data();
        op.out = output.data();
        op.groups = groups;
        op.self = this;
        op.pack = [](void* self, operation&) { static_cast<fused_reduce_scatter_call*>(self)->pack_all(); };
        op.unpack = [](void* self, operation&) { static_cast<fused_reduce_scatter_call*>(self)->unpack_all(); };
    }

    std::size_t count_of(std::size_t tensor) const { return slice(pieces[tensor], rank_); }

    // Where each tensor's part goes.
    void set_outputs(std::vector<tensor_ref> to) {
        outputs = std::move(to);
        if (outputs.size() != pieces.size())
            this->refuse(text("hvd: ", this->op.entry.label(), ": ", outputs.size(), " tensors in into(), ", pieces.size(), " to reduce"));
        for (std::size_t t = 0; !this->op.entry.refused && t < pieces.size(); ++t)
            if (outputs[t].id != pieces[t].tensor.id || outputs[t].count != count_of(t) || !outputs[t].dense)
                this->refuse(text("hvd: ", this->op.entry.label(), " on rank ", rank_, ": tensor ", t, " of into() has ", outputs[t].count,
                                  " elements of ", outputs[t].type, ", this rank's part ", count_of(t), " of ", pieces[t].tensor.type));
    }

private:
    static std::size_t slice(const piece& p, int rank) {
        return p.bounds[std::size_t(rank) + 1] - p.bounds[std::size_t(rank)];
    }

    template <class T>
    void lay_out_group(std::size_t index, std::size_t& bytes, std::size_t& result_bytes) {
        bytes = aligned(bytes);
        result_bytes = aligned(result_bytes);
        const std::size_t begin = bytes;
        std::vector<std::size_t>& split = bounds[index];
        for (int r = 0; r < size_; ++r) {
            split.push_back((bytes - begin) / sizeof(T));
            for (piece& p : pieces) {
                if (p.tensor.id != dtype_traits<T>::id || p.tensor.type != dtype_name<T>()) continue;
                p.places[std::size_t(r)] = bytes;
                bytes += slice(p, r) * sizeof(T);
                if (r != rank_) continue;
                p.result_place = result_bytes;
                result_bytes += slice(p, r) * sizeof(T);
            }
        }
        split.push_back((bytes - begin) / sizeof(T));
        groups[index] = this->template group_of<T>(begin, split.back());
        groups[index].bounds = split.data();
    }

    void pack_all() {
        for (piece& p : pieces) {
            const std::byte* from = p.tensor.data;
            if (!p.tensor.dense) {
                dense.resize(p.tensor.bytes());
                hvd::detail::pack(p.tensor, dense.data());
                from = dense.data();
            }
            for (std::size_t r = 0; r < std::size_t(size_); ++r)
                copy_block(input.data() + p.places[r], from + p.bounds[r] * p.tensor.element_bytes,
                           slice(p, int(r)) * p.tensor.element_bytes);
        }
    }

    void unpack_all() {
        for (std::size_t t = 0; t < pieces.size(); ++t)
            copy_block(outputs[t].data, output.data() + pieces[t].result_place, outputs[t].bytes());
    }

    int rank_, size_;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
