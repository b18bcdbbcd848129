// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"
#include "call/result_types.hpp"

namespace hvd::inline v0::detail {

template <class In, class Out>
struct broadcast_call : call {
    packed_tensor input, output;
    bool is_root;

    broadcast_call(const In& in, const Out& out, root r, int rank, int size, const options& o)
        : call(collective::broadcast, o.name), is_root(rank == r.rank) {
        describe(out);
        check_root(r.rank, size);
        const std::size_t bytes = out.size() * op.element_bytes;
        if (is_root) check_size(out.size(), in.size());
        if constexpr (!is_strided<In> && !is_strided<Out>)  // packed tensors may overlap
            if (is_root)
                check_overlap(bytes_of(in), bytes_of(out), in.size() * op.element_bytes, bytes);
        if constexpr (is_strided<In> || is_strided<Out>) {
            input.tensor = erase(in);
            output.tensor = erase(out);
            op.buffer_bytes = bytes;
            op.self = this;
            op.pack = [](void* self, operation& current) {
                auto& that = *static_cast<broadcast_call*>(self);
                if (that.is_root) packed_tensor::pack_into_buffer(&that.input, current);
            };
            op.unpack = [](void* self, operation& current) {
                packed_tensor::unpack_from_buffer(&static_cast<broadcast_call*>(self)->output,
                                                  current);
            };
        } else {
            op.in = bytes_of(in);
            op.out = bytes_of(out);
        }
    }
};

template <class Fused>
struct fused_broadcast_call : call {
    fused_buffer buffer;
    bool is_root;

    fused_broadcast_call(const Fused& list, root r, int rank, int size, const options& o,
                         std::vector<tensor_ref>& tensors, std::vector<std::size_t>& offsets)
        : call(collective::broadcast, o.name), buffer{tensors, offsets}, is_root(rank == r.rank) {
        check_list(list);
        check_root(r.rank, size);
        fused_layout layout{tensors, offsets};
        lay_out(list, layout);
        op.entry.fused = true;
        op.entry.count = layout.bytes;
        op.entry.content = buffer.content();
        if (!buffer.needs_packing()) {
            op.in = op.out = tensors.front().data;
            return;
        }
        op.buffer_bytes = layout.bytes;
        op.self = this;
        op.pack = [](void* self, operation& current) {
            auto& that = *static_cast<fused_broadcast_call*>(self);
            if (that.is_root) fused_buffer::pack_all(&that.buffer, current);
        };
        op.unpack = [](void* self, operation& current) {
            auto& that = *static_cast<fused_broadcast_call*>(self);
            if (!that.is_root) fused_buffer::unpack_all(&that.buffer, current);
        };
    }
};

template <class Fused>
struct kept_fused_broadcast : fused_storage, fused_broadcast_call<Fused> {
    kept_fused_broadcast(const Fused& list, root r, int rank, int size, const options& o)
        : fused_broadcast_call<Fused>(list, r, rank, size, o, this->tensors, this->offsets) {}
};

/// The members of a communicator for broadcast.
template <class Comm, class B>
class broadcast_calls {
public:
    /// Gives every rank the root's `x`.
    ///
    /// **Collective**: all ranks, in the same order of calls, with equal element type, shape and
    /// root.
    /// **Buffers**: `x` is read on the root and written on the others. It is any viewable or a
    /// `fuse(…)` of several, also empty.
    /// **Completion**: done on return, which may be before other ranks have come: see
    /// `docs/reference/errors.md`.
    /// **Threads**: one at a time per communicator.
    /// @throws as `allreduce`.
    /// @snippet tests/docs/snippets.cpp broadcast
    template <class X>
    void broadcast(X&& x, root r = root{0}, const options& o = {}) {
        if constexpr (is_fused<std::remove_cvref_t<X>>) {
            if constexpr (check_tensor<B, X, tensor_use::written>()) {
                run_made(self(), collective::broadcast, o, [&] {
                    workspace& work = own().work();
                    return fused_broadcast_call<std::remove_cvref_t<X>>(
                        x, r, own().rank(), own().size(), o, work.tensors, work.offsets);
                });
            }
        } else if constexpr (check_tensor<B, X, tensor_use::written>()) {
            const auto view = view_for(self(), collective::broadcast, o, x);
            run_views(view, view, r, o);
        }
    }

    /// Copies the root's `in` to `out` on every rank, also on the root. The others' `in` is not
    /// read.
    template <class In, class View>
    void broadcast(const In& in, const into_view<View>& out, root r = root{0},
                   const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, const In&>()) {
            static_assert(std::is_same_v<element_of<const In&>, typename View::value_type>,
                          "hvd: input and output have different element types");
            run_views(view_for(self(), collective::broadcast, o, in), out.view, r, o);
        }
    }

    /// Begins a broadcast in place. It is complete when the request is, and `x` stays untouched
    /// until then.
    template <class X>
    request broadcast_async(X&& x, root r = root{0}, const options& o = {}) {
        if constexpr (is_fused<std::remove_cvref_t<X>>) {
            if constexpr (check_tensor<B, X, tensor_use::written>())
                return start_call(self(), collective::broadcast, o, [&] {
                    return kept_fused_broadcast<std::remove_cvref_t<X>>(x, r, own().rank(),
                                                                        own().size(), o);
                });
        } else if constexpr (check_tensor<B, X, tensor_use::written>()) {
            return start_views(x, x, r, o);
        }
        return {};
    }

    /// Begins a broadcast from the root's `in` to every rank's `out`.
    template <class In, class View>
    request broadcast_async(In&& in, const into_view<View>& out, root r = root{0},
                            const options& o = {}) {
        if constexpr (check_unfused<In, View>() && check_tensor<B, In, tensor_use::kept>()) {
            static_assert(std::is_same_v<element_of<In>, typename View::value_type>,
                          "hvd: input and output have different element types");
            return start_views(in, out.view, r, o);
        }
        return {};
    }

    // An output without hvd::into is refused.
    template <class In, bare_output Out, class... A>
        requires(!pointer_like<In>)
    refused_call broadcast(const In&, Out&&, A&&...) {
        static_assert(has_into<Out>, "hvd: the memory of the result is marked: hvd::into(out)");
        return {};
    }

    // A pointer and a count are refused with the words of check_tensor.
    template <pointer_like P, class... A>
    refused_call broadcast(P&&, A&&...) {
        check_tensor<B, P>();
        return {};
    }

    // Numbers in braces are refused.
    template <class T, class... A>
    refused_call broadcast(std::initializer_list<T>&&, A&&...) {
        return refuse_braces<T>();
    }

private:
    Comm& self() { return static_cast<Comm&>(*this); }
    auto& own() { return access::session_of(self()); }

    template <class In, class Out>
    void run_views(const In& in, const Out& out, root r, const options& o) {
        if constexpr (is_direct<B> && !is_strided<In> && !is_strided<Out>) {
            const auto endpoint =
                access::direct_endpoint_of(self(), collective::broadcast, o.timeout);
            if (bytes_of(in) != bytes_of(out) && own().rank() == r.rank)
                std::memmove(bytes_of(out), bytes_of(in),
                             in.size() * sizeof(typename Out::value_type));
            endpoint->broadcast(out.data(), out.size(), r.rank);
        } else {
            broadcast_call<In, Out> call(in, out, r, own().rank(), own().size(), o);
            run_rooted(self(), call, o);
        }
    }

    template <class In, class Out>
    request start_views(In& in, Out& out, root r, const options& o) {
        return start_call(self(), collective::broadcast, o, [&] {
            return broadcast_call<view_of<In>, view_of<Out>>(to_view(in), to_view(out), r,
                                                             own().rank(), own().size(), o);
        });
    }
};

}  // namespace hvd::inline v0::detail
