// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../fusion/layout.hpp"
#include "../../transport/operation.hpp"
#include "checks.hpp"

namespace hvd::inline v0::detail {

// A call knows one typed collective. It turns its arguments into an operation, which it holds. It
// stays where it was made (on the stack, in a queue or in a plan), since the operation points into
// it.
struct call {
    operation op{};

    call(collective kind, std::string_view name) {
        op.entry.kind = kind;
        if (!name.empty()) store(op.entry.name, name);
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;

    void refuse(std::string_view why) { op.refuse(why); }

    void refuse(flaw::what kind, std::size_t first = 0, std::size_t second = 0) {
        if (op.entry.refused) return;
        op.entry.refused = true;
        op.flaw = {kind, first, second};
    }

    // Only the element type matters of a view that is not read.
    template <class T, class S, std::size_t R, class L>
    void describe(const tensor_view<T, S, R, L>& view, bool is_read = true) {
        static_assert(R <= max_dimensions, "hvd: a tensor has at most 8 dimensions");
        using V = std::remove_cv_t<T>;
        describe_elements<V>(op);
        op.entry.dimensions = R;
        op.entry.count = view.size();
        for (std::size_t d = 0; d < R; ++d) op.entry.extents[d] = view.extent(d);
        if (!is_read) return;
        if (view.data() == nullptr && view.size() > 0) refuse(flaw::null_pointer);
        if (view.size() > PTRDIFF_MAX / sizeof(V)) refuse(flaw::extents);
    }

    // Checks the tensors of a fused list. `list_name` is the user's word for the list.
    template <class List>
    void check_list(const List& list, const char* list_name = "fuse()") {
        std::size_t index = 0, bytes = 0;
        list.for_each([&](const auto& view) {
            using V = typename std::remove_cvref_t<decltype(view)>::value_type;
            check_part(view.data(), view.size(), sizeof(V), index++, bytes, list_name);
        });
    }
    // Checks one of them; those before it have so many bytes.
    void check_part(const void* data, std::size_t count, std::size_t each, std::size_t index,
                    std::size_t& bytes, const char* list_name) {
        if (data == nullptr && count > 0) refuse_null(index, count, list_name);
        if (count > (PTRDIFF_MAX - bytes) / each) [[unlikely]]
            return refuse_too_large(index, list_name);
        bytes += count * each;
    }
    [[gnu::cold]] void refuse_too_large(std::size_t index, const char* list_name) {
        refuse(text("hvd: ", op.entry.label(), ": no memory has the elements of tensor ", index,
                    " of ", list_name, " and those before it"));
    }
    [[gnu::cold]] void refuse_null(std::size_t index, std::size_t count, const char* list_name) {
        refuse(text("hvd: ", op.entry.label(), ": tensor ", index, " of ", list_name,
                    " is a null pointer with ", count, " elements"));
    }

    void check_root(int root, int size) {
        op.entry.root = root;
        if (root < 0 || root >= size) refuse(flaw::no_rank);
    }

    void check_size(std::size_t out, std::size_t in) {
        if (out != in) refuse(flaw::sizes, out, in);
    }

    // Allows the same bytes or separate ones.
    void check_overlap(const std::byte* in, const std::byte* out, std::size_t in_bytes,
                       std::size_t out_bytes) {
        if (in_bytes == 0 || out_bytes == 0 || (in == out && in_bytes == out_bytes)) return;
        const auto a = reinterpret_cast<std::uintptr_t>(in),
                   b = reinterpret_cast<std::uintptr_t>(out);
        if (a < b + out_bytes && b < a + in_bytes) refuse(flaw::overlap, in_bytes, out_bytes);
    }
};

// A tensor that may be strided. The operation then works on a packed copy.
struct packed_tensor {
    tensor_ref tensor{};

    static void pack_into_buffer(void* self, operation& op) {
        pack(static_cast<packed_tensor*>(self)->tensor, const_cast<std::byte*>(op.in));
    }
    static void unpack_from_buffer(void* self, operation& op) {
        unpack(static_cast<packed_tensor*>(self)->tensor, op.out);
    }
};

struct packed_pair {
    packed_tensor input, output;
};
struct no_packing {};

template <class View>
constexpr bool is_strided = std::is_same_v<typename View::layout, strided>;

template <class View>
std::byte* bytes_of(const View& view) {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(view.data()));
}

// The elements of type T of a reduction: `count` of them, from `offset` bytes on. `function` is the
// call's own, captures included.
template <class T, class Op>
reduction_group group_of(operation& op, const Op& function, std::size_t offset, std::size_t count) {
    if constexpr (!holds_fractions<T, Op>) refuse_scales<T>(op);
    return {&reduce_elements<T, Op>, &function, sizeof(T), offset, count, nullptr,
            dtype_traits<T>::id,     false};
}

// A fused list in one buffer, with the functions that pack it.
struct fused_buffer {
    std::vector<tensor_ref>& tensors;
    std::vector<std::size_t>& offsets;

    static void pack_all(void* self, operation& op) {
        auto& buffer = *static_cast<fused_buffer*>(self);
        for (std::size_t i = 0; i < buffer.tensors.size(); ++i)
            pack(buffer.tensors[i], const_cast<std::byte*>(op.in) + buffer.offsets[i]);
    }
    static void unpack_all(void* self, operation& op) {
        auto& buffer = *static_cast<fused_buffer*>(self);
        for (std::size_t i = 0; i < buffer.tensors.size(); ++i)
            unpack(buffer.tensors[i], op.out + buffer.offsets[i]);
    }

    std::uint64_t content() const {
        hash h;
        h.add(tensors.size());
        for (const tensor_ref& t : tensors) h.add(t);
        return h.value();
    }

    // A single dense tensor is not packed.
    bool needs_packing() const { return tensors.size() != 1 || !tensors.front().dense; }
    bool is_dense() const {
        for (const tensor_ref& t : tensors)
            if (!t.dense) return false;
        return true;
    }
};

// The storage of a call that outlives the function that makes it.
struct fused_storage {
    std::vector<tensor_ref> tensors;
    std::vector<std::size_t> offsets;
};

}  // namespace hvd::inline v0::detail
