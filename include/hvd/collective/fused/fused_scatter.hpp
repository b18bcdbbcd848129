// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../call/split_rows.hpp"
#include "fused_results.hpp"

namespace hvd::inline v0::detail {

// Reduces and scatters many tensors as one. In the buffer, each element type's group holds rank 0's
// rows of all tensors, then rank 1's, and so on.
template <class Fused, class Op>
struct fused_reduce_scatter_call : call {
    Op function;
    static constexpr std::size_t types = fused_types_t<Fused>::size;

    fused_memory& memory;
    std::array<reduction_group, types> groups;

    fused_reduce_scatter_call(fused_memory& m, const Fused& list, const Op& f, int rank, int size,
                              const reduce_options& o)
        : call(collective::reduce_scatter, o.name),
          function(f),
          memory(m),
          rank_(rank),
          size_(size) {
        this->check_list(list);
        describe_operation(op, function, o.prescale, o.postscale);
        list_tensors(list, memory.tensors);
        memory.sizes.resize(memory.tensors.size() * sizes_of_one() + types * (ranks() + 1));
        std::size_t t = 0;
        list.for_each([&](const auto& view) {
            using T = typename std::remove_cvref_t<decltype(view)>::value_type;
            group_of_tensor(t) = index_of<T>(fused_types_t<Fused>{});
            split_rows(view, size, bounds(t++));
        });
        std::size_t bytes = 0, result_bytes = 0, index = 0;
        [&]<class... T>(type_list<T...>) {
            (lay_out_group<T>(index++, bytes, result_bytes), ...);
        }(fused_types_t<Fused>{});
        hash content;
        for (const tensor_ref& tensor : memory.tensors) content.add(tensor);
        if (!op.entry.refused) make_memory(bytes, result_bytes);
        op.entry.fused = true;
        op.entry.count = bytes;
        op.entry.content = content.value();
        op.inputs = {memory.tensors.data(), memory.tensors.size()};
        op.in = memory.input.data();
        op.out = memory.output.data();
        op.groups = groups.data();
        op.group_count = groups.size();
        op.self = this;
        op.pack = [](void* self, operation&) {
            static_cast<fused_reduce_scatter_call*>(self)->pack_all();
        };
        op.unpack = [](void* self, operation&) {
            static_cast<fused_reduce_scatter_call*>(self)->unpack_all();
        };
    }

    // Writes this rank's slice of each tensor to the caller's tensors.
    void set_outputs(const auto& list) {
        const auto &tensors = memory.tensors, &outputs = memory.outputs;
        list_tensors(list, memory.outputs);
        this->check_list(list, "into()");
        if (outputs.size() != tensors.size())
            this->refuse(text("hvd: ", this->op.entry.label(), ": ", outputs.size(),
                              " tensors in into(), ", tensors.size(), " to reduce"));
        for (std::size_t t = 0; !this->op.entry.refused && t < tensors.size(); ++t)
            if (outputs[t].id != tensors[t].id || outputs[t].type != tensors[t].type ||
                outputs[t].count != slice(t, rank_) || !outputs[t].dense)
                this->refuse(text("hvd: ", this->op.entry.label(), " on rank ", rank_, ": tensor ",
                                  t, " of into() has ", outputs[t].count, " elements of ",
                                  outputs[t].type, ", this rank's part ", slice(t, rank_), " of ",
                                  tensors[t].type));
    }

    // Writes the slices to new memory.
    template <class... R>
    void set_results(std::tuple<R...>& results, const Fused& list) {
        memory.outputs.clear();
        if (op.entry.refused) return;
        make_results(results, list);
        for_each_result(results, [&](auto& result) {
            result.resize(slice(memory.outputs.size(), rank_));
            memory.outputs.push_back(erase(view(result.data(), result.size())));
        });
    }

private:
    // memory.sizes holds for each tensor: the bounds of its slices in elements by rank, their
    // places in the buffer in bytes by rank, its place in the result, and the number of its group.
    // Then it holds each group's bounds.
    std::size_t ranks() const { return std::size_t(size_); }
    std::size_t sizes_of_one() const { return 2 * ranks() + 3; }
    std::size_t* bounds(std::size_t tensor) const {
        return memory.sizes.data() + tensor * sizes_of_one();
    }
    std::size_t* places(std::size_t tensor) const { return bounds(tensor) + ranks() + 1; }
    std::size_t& result_place(std::size_t tensor) const { return places(tensor)[ranks()]; }
    // Types of one name, such as `long` and `long long`, have groups of their own.
    std::size_t& group_of_tensor(std::size_t tensor) const { return places(tensor)[ranks() + 1]; }
    template <class T, class... L>
    static constexpr std::size_t index_of(type_list<L...>) {
        std::size_t index = 0;
        static_cast<void>(((std::is_same_v<T, L> || (++index, false)) || ...));
        return index;
    }
    std::size_t* group_bounds(std::size_t index) const {
        return bounds(memory.tensors.size()) + index * (ranks() + 1);
    }

    std::size_t slice(std::size_t tensor, int rank) const {
        return bounds(tensor)[rank + 1] - bounds(tensor)[rank];
    }

    void make_memory(std::size_t bytes, std::size_t result_bytes) {
        make_room(memory.input, bytes);
        make_room(memory.output, result_bytes);
        for (const tensor_ref& tensor : memory.tensors)
            if (!tensor.dense) make_room(memory.dense, tensor.bytes());
    }

    template <class T>
    void lay_out_group(std::size_t index, std::size_t& bytes, std::size_t& result_bytes) {
        bytes = aligned(bytes);
        result_bytes = aligned(result_bytes);
        const std::size_t begin = bytes;
        std::size_t* const split = group_bounds(index);
        for (int r = 0; r < size_; ++r) {
            split[r] = (bytes - begin) / sizeof(T);
            for (std::size_t t = 0; t < memory.tensors.size(); ++t) {
                if (group_of_tensor(t) != index) continue;
                places(t)[r] = bytes;
                bytes += slice(t, r) * sizeof(T);
                if (r != rank_) continue;
                result_place(t) = result_bytes;
                result_bytes += slice(t, r) * sizeof(T);
            }
        }
        split[size_] = (bytes - begin) / sizeof(T);
        groups[index] = group_of<T>(op, function, begin, split[size_]);
        groups[index].bounds = split;
    }

    void pack_all() {
        for (std::size_t t = 0; t < memory.tensors.size(); ++t) {
            const tensor_ref& tensor = memory.tensors[t];
            const std::byte* from = tensor.data;
            if (!tensor.dense) {
                hvd::detail::pack(tensor, memory.dense.data());
                from = memory.dense.data();
            }
            for (int r = 0; r < size_; ++r)
                copy_block(memory.input.data() + places(t)[r],
                           from + bounds(t)[r] * tensor.element_bytes,
                           slice(t, r) * tensor.element_bytes);
        }
    }

    void unpack_all() {
        for (std::size_t t = 0; t < memory.outputs.size(); ++t)
            copy_block(memory.outputs[t].data, memory.output.data() + result_place(t),
                       memory.outputs[t].bytes());
    }

    int rank_, size_;
};

// An asynchronous or planned call. It writes to the caller's tensors or to new memory.
template <class Fused, class Op>
struct kept_fused_reduce_scatter : with_memory<fused_reduce_scatter_call<Fused, Op>> {
    using results = results_of<stored_vector, Fused>;

    template <class Out>
    kept_fused_reduce_scatter(const Fused& list, const Op& f, Out& out, int rank, int size,
                              const reduce_options& o)
        : with_memory<fused_reduce_scatter_call<Fused, Op>>(fused_memory(), list, f, rank, size,
                                                            o) {
        if constexpr (std::is_same_v<Out, results>) this->set_results(out, list);
        else this->set_outputs(out);
    }
};

}  // namespace hvd::inline v0::detail
