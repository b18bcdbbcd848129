// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include "../engine.hpp"
#include "duplicate.hpp"

namespace hvd::inline v0 {

/// An engine that takes tensors of the host and of devices: `hvd::engine e{world, gpus}`.
///
/// `gpus` has the same ranks as `world`, in the same order. Ranks negotiate on the host, and
/// tensors of both kinds mix freely by name. Those of a device go by NCCL or through the host, as
/// the type of `gpus` says, on a stream of the engine's own. They never travel with those of the
/// host. Small ones of one type are packed, and travel as one.
///
/// **Collective**: all ranks make the engine. It works on duplicates of both communicators.
/// **Buffers** of a device tensor are read after what `.stream`, or else the default streams, have
/// been given before the submission. **Completion**: see `named_device_request`. **Threads** and
/// errors are those of an engine. A failure of a device ends the engine on all ranks.
/// @snippet tests/device/snippets.cpp engine
template <class Backend, class Devices>
    requires device_backend<Devices>
class [[nodiscard("hvd: an engine works until it is destroyed")]] engine<Backend, Devices>
    : public engine<Backend> {
    using base = engine<Backend>;

public:
    /// @throws hvd::usage_error if the communicators have different ranks, and as an engine of the
    /// host does.
    [[nodiscard("hvd: an engine works until it is destroyed")]]
    engine(communicator<Backend>& comm, communicator<Devices>& gpus,
           const engine_options& options = {})
        : engine(comm, options, detail::run_on_duplicate(comm, gpus)) {}

    /// Reduces `x` in place over all ranks. `x` is a device view or a `fuse(…)` of several, which
    /// go together or not at all; or a tensor of the host.
    template <class X, class Op>
        requires detail::device_tensor<X>
    [[nodiscard]] named_device_request allreduce(std::string_view name, X&& x, const Op& op,
                                                 const named_device_options& o = {}) {
        return device_calls(name, o).allreduce(x, op);
    }
    template <class X, class Op>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] request allreduce(std::string_view name, X&& x, const Op& op,
                                    const named_options& o = {}) {
        return base::allreduce(name, std::forward<X>(x), op, o);
    }

    /// Reduces `in` to `out`, which has as many elements. The two are the same memory or do not
    /// overlap. Both are read and written when the tensor runs.
    template <class In, class Out, class Op>
        requires detail::device_tensor<In> && detail::operation_like<Op> &&
                 (!detail::operation_like<Out>)
    [[nodiscard]] named_device_request allreduce(std::string_view name, const In& in, Out&& out,
                                                 const Op& op, const named_device_options& o = {}) {
        return device_calls(name, o).allreduce(in, out, op);
    }
    template <class In, class Out, class Op>
        requires(!detail::device_tensor<In> && detail::operation_like<Op> &&
                 !detail::operation_like<Out>)
    [[nodiscard]] request allreduce(std::string_view name, const In& in, Out&& out, const Op& op,
                                    const named_options& o = {}) {
        return base::allreduce(name, in, std::forward<Out>(out), op, o);
    }

    template <class In, class View, class Op>
    [[nodiscard]] auto allreduce(std::string_view name, const In& in, const into_view<View>& out,
                                 const Op& op) {
        return allreduce(name, in, out.view, op);
    }
    template <class In, class View, class Op>
        requires detail::device_tensor<In>
    [[nodiscard]] named_device_request allreduce(std::string_view name, const In& in,
                                                 const into_view<View>& out, const Op& op,
                                                 const named_device_options& o) {
        return allreduce(name, in, out.view, op, o);
    }
    template <class In, class View, class Op>
        requires(!detail::device_tensor<In>)
    [[nodiscard]] request allreduce(std::string_view name, const In& in, const into_view<View>& out,
                                    const Op& op, const named_options& o) {
        return base::allreduce(name, in, out.view, op, o);
    }

    /// Gives every rank all ranks' tensors in `out`, one after the other, with no gaps. They may
    /// differ in length; `counts()` of the request says the elements of each rank. `out` has room
    /// for all of them, and is apart from `in`.
    template <class In, class View>
        requires detail::device_tensor<In>
    [[nodiscard]] named_device_request allgather(std::string_view name, const In& in,
                                                 const into_view<View>& out,
                                                 const named_device_options& o = {}) {
        return device_calls(name, o).allgather(in, out);
    }
    template <class X>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] auto allgather(std::string_view name, X&& x, const named_options& o = {}) {
        return base::allgather(name, std::forward<X>(x), o);
    }
    template <class X, class View>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] request allgather(std::string_view name, X&& x, const into_view<View>& out,
                                    const named_options& o = {}) {
        return base::allgather(name, std::forward<X>(x), out, o);
    }

    /// Gives every rank the root's `x`, which may be a `fuse(…)`.
    template <class X>
        requires detail::device_tensor<X>
    [[nodiscard]] named_device_request broadcast(std::string_view name, X&& x, root r = root{0},
                                                 const named_device_options& o = {}) {
        return device_calls(name, o).broadcast(x, r);
    }
    template <class X>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] request broadcast(std::string_view name, X&& x, root r = root{0},
                                    const named_options& o = {}) {
        return base::broadcast(name, std::forward<X>(x), r, o);
    }

    /// Reduces `x` and gives each rank its slice in `out`: the first ranks get one element more if
    /// the slices can't be equal.
    template <class In, class Op, class View>
        requires detail::device_tensor<In>
    [[nodiscard]] named_device_request reduce_scatter(std::string_view name, const In& x,
                                                      const Op& op, const into_view<View>& out,
                                                      const named_device_options& o = {}) {
        return device_calls(name, o).reduce_scatter(x, op, out);
    }
    template <class X, class Op>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] auto reduce_scatter(std::string_view name, X&& x, const Op& op,
                                      const named_options& o = {}) {
        return base::reduce_scatter(name, std::forward<X>(x), op, o);
    }
    template <class X, class Op, class View>
        requires(!detail::device_tensor<X>)
    [[nodiscard]] request reduce_scatter(std::string_view name, X&& x, const Op& op,
                                         const into_view<View>& out, const named_options& o = {}) {
        return base::reduce_scatter(name, std::forward<X>(x), op, out, o);
    }

    /// Sends `counts[p]` elements of `x` to each rank p. `counts()` of the request says how many
    /// came from each. `out` has room for them, and is apart from `x`.
    template <class In, class Counts, class View>
        requires detail::device_tensor<In>
    [[nodiscard]] named_device_request alltoall(std::string_view name, const In& x,
                                                const Counts& counts, const into_view<View>& out,
                                                const named_device_options& o = {}) {
        return device_calls(name, o).alltoall(x, counts, out);
    }
    template <class X, class Counts>
        requires detail::is_range<const Counts>
    [[nodiscard]] auto alltoall(std::string_view name, X&& x, const Counts& counts,
                                const named_options& o = {}) {
        return base::alltoall(name, std::forward<X>(x), counts, o);
    }
    template <class X, class Counts, class View>
        requires(!detail::device_tensor<X> && detail::is_range<const Counts>)
    [[nodiscard]] request alltoall(std::string_view name, X&& x, const Counts& counts,
                                   const into_view<View>& out, const named_options& o = {}) {
        return base::alltoall(name, std::forward<X>(x), counts, out, o);
    }
    template <class X>
    [[nodiscard]] auto alltoall(std::string_view name, X&& x, const named_options& o = {}) {
        return base::alltoall(name, std::forward<X>(x), o);
    }
    template <class X, class View>
    [[nodiscard]] request alltoall(std::string_view name, X&& x, const into_view<View>& out,
                                   const named_options& o = {}) {
        return base::alltoall(name, std::forward<X>(x), out, o);
    }

private:
    engine(communicator<Backend>& comm, const engine_options& options,
           std::shared_ptr<detail::device_runner> runner)
        : base(comm, options, detail::device_runner::units_of(runner)),
          runner_(std::move(runner)) {}

    detail::named_device_calls<Devices> device_calls(std::string_view name,
                                                     const named_device_options& o) const {
        return {this->core(), *runner_, name, o};
    }

    std::shared_ptr<detail::device_runner> runner_;
};

template <class Backend, class Devices>
engine(communicator<Backend>&, communicator<Devices>&) -> engine<Backend, Devices>;
template <class Backend, class Devices>
engine(communicator<Backend>&, communicator<Devices>&, const engine_options&)
    -> engine<Backend, Devices>;

}  // namespace hvd::inline v0
