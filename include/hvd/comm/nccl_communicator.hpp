// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>

#include "../backend/nccl.hpp"
#include "communicator.hpp"
#include "device_request.hpp"

namespace hvd {
inline namespace v0 {

/// Ranks with a GPU each; device tensors are moved by NCCL. Made from the ranks of a communicator of any other
/// backend, on the device that is current: `communicator<nccl> gpus(world)`.
///
/// Calls are matched by their order on all ranks; unlike on host backends ranks do not compare what they
/// call, and a call that one rank refuses is a late rank for the others: give a deadline. Calls run on `.stream`
/// (never a default stream), else on a stream of the communicator's own, and tensors must be ready there.
/// After a failure or a deadline it is given up and refuses further calls; `shrink` goes on without the dead.
/// **Threads**: one calling thread at a time. A rank that is alone calls NCCL only to scale.
template <>
class communicator<nccl> {
    using B = nccl;
    using session_type = detail::nccl_session;

public:
    using backend_type = nccl;

    /// Empty: a communicator that this rank is not a member of.
    communicator() = default;

    /// The ranks of `bootstrap`, with the device that is current on each. **Collective**.
    /// @throws hvd::nccl_error, hvd::cuda_error, hvd::usage_error for an unsuitable NCCL library, hvd::peer_error
    /// where other ranks failed or did not come within `options.deadline`.
    template <class Bootstrap>
    explicit communicator(communicator<Bootstrap>& bootstrap, const communicator_options& options = {}) {
        struct hello {
            ncclUniqueId id;
            int version;
        } first{};
        std::string failure;
        int version = 0;
        try {
            int device = 0;
            detail::check_cuda(cudaGetDevice(&device), "cudaGetDevice", bootstrap.rank());
            version = detail::nccl_library_version(bootstrap.rank());
            session_ = std::make_shared<session_type>(bootstrap.rank(), bootstrap.size(), device, options);
            if (bootstrap.size() == 1) return;
            first.version = version;
            if (bootstrap.rank() == 0) detail::check_nccl(ncclGetUniqueId(&first.id), "ncclGetUniqueId", 0);
        } catch (...) {
            agree(bootstrap, false);
            throw;
        }
        agree(bootstrap, true);
        bootstrap.broadcast(tensor_view<std::byte>(reinterpret_cast<std::byte*>(&first), {sizeof first}));
        if (!all_of(bootstrap, first.version == version))
            throw usage_error(bootstrap.rank(), detail::text("hvd: ranks have different NCCL libraries: rank 0 ", first.version,
                                                             ", rank ", bootstrap.rank(), " ", version));
        session_->join(first.id);
    }

    /// Takes over an NCCL communicator and ends it at last; it need not be one that does not block.
    communicator(ncclComm_t comm, adopt_t, const communicator_options& options = {}) { take(comm, true, options); }
    /// Works with an NCCL communicator that its owner keeps alive, and uses for nothing else meanwhile.
    communicator(ncclComm_t comm, borrow_t, const communicator_options& options = {}) { take(comm, false, options); }

    explicit operator bool() const noexcept { return session_ != nullptr; }
    int rank() const noexcept { return session_ == nullptr ? -1 : session_->rank(); }
    int size() const noexcept { return session_ == nullptr ? 0 : session_->size(); }
    /// The number of this rank's GPU.
    int device() const noexcept { return session_ == nullptr ? -1 : session_->device(); }
    /// NCCL's own handle; null on a rank that is alone and has not scaled.
    ncclComm_t native_handle() const { return session().handle(); }

    /// Reduces `x` over all ranks, in place. `average` and scales are one multiplication before the sum: rounded
    /// once for 32- and 64-bit floats, only by powers of two for 16-bit ones.
    /// @throws hvd::usage_error for scales that would round a 16-bit float or an integer, or that are not of a sum.
    template <class X, class Op>
        requires detail::operation_like<Op>
    void allreduce(X&& x, const Op& op, const device_reduce_options& o = {}) {
        allreduce_async(x, op, o).wait();
    }
    template <class In, class Out, class Op>
        requires detail::operation_like<Op> && (!detail::operation_like<Out>)
    void allreduce(const In& in, Out&& out, const Op& op, const device_reduce_options& o = {}) {
        allreduce_async(in, out, op, o).wait();
    }

    /// The same, begun.
    template <class X, class Op>
        requires detail::operation_like<Op>
    device_request allreduce_async(X&& x, const Op& op, const device_reduce_options& o = {}) {
        if constexpr (detail::check_written<B, X>()) return allreduce_async(x, x, op, o);
        else return {};
    }
    template <class In, class Out, class Op>
        requires detail::operation_like<Op> && (!detail::operation_like<Out>)
    device_request allreduce_async(const In& in, Out&& out, const Op& op, const device_reduce_options& o = {}) {
        if constexpr (can_reduce<In, Out, Op>()) {
            require(in.size(), out.size(), "allreduce", "output");
            return reduce_with(in, out, op, o, "ncclAllReduce", in.size(), [=](const auto& c, ncclRedOp_t how) {
                return ncclAllReduce(in.data(), out.data(), in.size(), c.type, how, c.comm, c.stream);
            });
        } else return {};
    }

    /// Reduces to `out` of the root; on other ranks `out` is not used.
    template <class In, class View, class Op>
    void reduce(const In& in, const into_view<View>& to, const Op& op, root r = root{0}, const device_reduce_options& o = {}) {
        if constexpr (can_reduce<In, View&, Op>()) {
            const View& out = to.view;
            require_root(r, "reduce");
            if (rank() == r.rank) require(in.size(), out.size(), "reduce", "into()");
            reduce_with(in, out, op, o, "ncclReduce", in.size(), [=](const auto& c, ncclRedOp_t how) {
                return ncclReduce(in.data(), out.data(), in.size(), c.type, how, r.rank, c.comm, c.stream);
            }).wait();
        }
    }

    /// Reduces over all ranks and leaves each its part: equal ones, or `.counts` elements.
    template <class In, class View, class Op>
    void reduce_scatter(const In& in, const Op& op, const into_view<View>& to, const device_reduce_options& o = {}) {
        if constexpr (can_reduce<In, View&, Op>()) {
            using T = detail::element_of<In>;
            const View& out = to.view;
            require_counts(o.counts, out.size(), in.size(), "reduce_scatter");
            reduce_with(in, out, op, o, "ncclReduceScatter", in.size(), [=](const auto& c, ncclRedOp_t how) {
                if (o.counts.empty()) return ncclReduceScatter(in.data(), out.data(), out.size(), c.type, how, c.comm, c.stream);
                const T* part = in.data();
                for (int p = 0; p < c.size; part += o.counts[std::size_t(p++)])
                    c.calls.add(ncclReduce(part, out.data(), o.counts[std::size_t(p)], c.type, how, p, c.comm, c.stream), "ncclReduce");
                return ncclSuccess;
            }).wait();
        }
    }

    /// Gives every rank the root's tensor.
    template <class X>
    void broadcast(X&& x, root r = root{0}, const device_options& o = {}) {
        if constexpr (detail::check_written<B, X>()) {
            require_root(r, "broadcast");
            move_with(x, x, o, "ncclBroadcast", x.size(), [=](const auto& c) {
                return ncclBroadcast(x.data(), x.data(), x.size() * c.unit, c.type, r.rank, c.comm, c.stream);
            });
        }
    }

    /// Gives every rank all tensors, one after the other in rank order: equal ones, or `.counts` elements.
    template <class In, class View>
    void allgather(const In& in, const into_view<View>& to, const device_options& o = {}) {
        if constexpr (can_move<In, View>()) {
            const View& out = to.view;
            require_counts(o.counts, in.size(), out.size(), "allgather");
            move_with(in, out, o, "ncclAllGather", in.size(), [=](const auto& c) {
                if (o.counts.empty()) return ncclAllGather(in.data(), out.data(), in.size() * c.unit, c.type, c.comm, c.stream);
                auto* part = out.data();
                for (int p = 0; p < c.size; part += o.counts[std::size_t(p++)])
                    c.calls.add(ncclBroadcast(in.data(), part, o.counts[std::size_t(p)] * c.unit, c.type, p, c.comm, c.stream), "ncclBroadcast");
                return ncclSuccess;
            });
        }
    }

    /// Sends the p-th part of `in` to rank p; all parts are equal.
    template <class In, class View>
    void alltoall(const In& in, const into_view<View>& to, const device_options& o = {}) {
        if constexpr (can_move<In, View>()) {
            const View& out = to.view;
            require(in.size(), out.size(), "alltoall", "into()");
            require_parts(in.size(), "alltoall");
            move_with(in, out, o, "ncclAlltoAll", in.size(), [=](const auto& c) {
                return ncclAlltoAll(in.data(), out.data(), in.size() / std::size_t(c.size) * c.unit, c.type, c.comm, c.stream);
            });
        }
    }

    /// Gives the root all tensors, of equal size; on other ranks `out` is not used.
    template <class In, class View>
    void gather(const In& in, const into_view<View>& to, root r = root{0}, const device_options& o = {}) {
        if constexpr (can_move<In, View>()) {
            const View& out = to.view;
            require_root(r, "gather");
            if (rank() == r.rank) require(in.size() * std::size_t(size()), out.size(), "gather", "into()");
            move_with(in, out, o, "ncclGather", in.size(), [=](const auto& c) {
                return ncclGather(in.data(), out.data(), in.size() * c.unit, c.type, r.rank, c.comm, c.stream);
            });
        }
    }

    /// Gives each rank its part of the root's tensor, of equal size; on other ranks `in` is not used.
    template <class In, class View>
    void scatter(const In& in, const into_view<View>& to, root r = root{0}, const device_options& o = {}) {
        if constexpr (can_move<In, View>()) {
            const View& out = to.view;
            require_root(r, "scatter");
            if (rank() == r.rank) require(out.size() * std::size_t(size()), in.size(), "scatter", "input");
            move_with(in, out, o, "ncclScatter", out.size(), [=](const auto& c) {
                return ncclScatter(in.data(), out.data(), out.size() * c.unit, c.type, r.rank, c.comm, c.stream);
            });
        }
    }

    /// One communicator for each colour, its ranks ordered by key, then by rank; empty for a negative colour.
    /// **Collective**, with no call under way.
    communicator split(int color, int key = 0) {
        session().refuse_if_broken("split");
        if (size() == 1) return color < 0 ? communicator() : communicator(alone());
        return derived(session().derive("ncclCommSplit", [=](ncclComm_t comm, ncclComm_t* result, ncclConfig_t* config) {
            return ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, result, config);
        }));
    }

    /// The ranks that are not `excluded`, in their order: goes on after others died. **Collective** on those
    /// ranks alone. Calls under way are given up, and so is this communicator.
    communicator shrink(std::span<const int> excluded) {
        session().give_up("shrink");
        if (session().handle() == nullptr) throw usage_error(rank(), "hvd: shrink: NCCL has nothing left to shrink");
        std::vector<int> list(excluded.begin(), excluded.end());
        return derived(session().derive("ncclCommShrink", [&](ncclComm_t comm, ncclComm_t* result, ncclConfig_t* config) {
            return ncclCommShrink(comm, list.data(), int(list.size()), result, config, NCCL_SHRINK_ABORT);
        }));
    }

    /// Ends all calls under way; every further call throws `hvd::peer_error`.
    void abort() noexcept {
        if (session_ != nullptr) session_->give_up("abort()");
    }

private:
    // What the calls of one operation are made with; elements that NCCL does not know are `unit` bytes each.
    struct context {
        ncclComm_t comm;
        cudaStream_t stream;
        ncclDataType_t type;
        std::size_t unit;
        int size;
        detail::nccl_calls& calls;
    };

    explicit communicator(std::shared_ptr<session_type> session) : session_(std::move(session)) {}

    session_type& session() const {
        if (session_ == nullptr) [[unlikely]] detail::access::throw_empty();
        return *session_;
    }

    template <class Bootstrap>
    static bool all_of(communicator<Bootstrap>& bootstrap, bool mine) {
        int all = mine;
        bootstrap.allreduce(all, hvd::min);
        return all != 0;
    }

    template <class Bootstrap>
    static void agree(communicator<Bootstrap>& bootstrap, bool mine) {
        if (bootstrap.size() > 1 && !all_of(bootstrap, mine) && mine)
            throw peer_error(bootstrap.rank(), detail::text("hvd: communicator<nccl> on rank ", bootstrap.rank(),
                                                            ": another rank has no usable NCCL or GPU"), {});
    }

    void take(ncclComm_t comm, bool owned, const communicator_options& options) {
        if (comm == nullptr) throw usage_error(-1, "hvd: a communicator can't be made from a null ncclComm_t");
        int rank = -1, size = 0, device = 0;
        detail::check_nccl(ncclCommUserRank(comm, &rank), "ncclCommUserRank", -1);
        detail::check_nccl(ncclCommCount(comm, &size), "ncclCommCount", rank);
        detail::check_nccl(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", rank);
        session_ = std::make_shared<session_type>(rank, size, device, options);
        session_->take(comm, owned);
    }

    std::shared_ptr<session_type> alone() const {
        return std::make_shared<session_type>(0, 1, session().device(), session().options());
    }

    // Out of this one; polls first, for rank and size are known only then.
    communicator derived(ncclComm_t comm) const {
        if (comm == nullptr) return {};
        ncclResult_t state = ncclInProgress;
        detail::backoff pauses(false);
        const detail::time_point limit = session().limit_for({});
        while (state == ncclInProgress) {
            detail::check_nccl(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError", rank());
            if (state == ncclInProgress && pauses.pause() && detail::now() > limit) {
                ncclCommAbort(comm);
                throw peer_error(rank(), detail::text("hvd: other ranks did not come in time to make a communicator with rank ", rank()), {});
            }
        }
        return communicator(comm, adopt, session().options());
    }

    template <class In, class Out>
    static constexpr bool can_move() {
        if constexpr (detail::check_tensor<B, In>() && detail::check_written<B, Out&>()) {
            static_assert(!detail::is_strided<detail::view_of<In>>, "hvd: NCCL moves tensors without gaps");
            static_assert(std::is_same_v<detail::element_of<In>, detail::element_of<Out&>>,
                          "hvd: input and output have different element types");
            return true;
        } else return false;
    }

    template <class In, class Out, class Op>
    static constexpr bool can_reduce() {
        if constexpr (can_move<In, Out>()) return detail::check_reducible<B, detail::element_of<In>, detail::operation_of<Op>>();
        else return false;
    }

    // Moves elements, as bytes where NCCL does not know them, and waits.
    template <class In, class Out, class F>
    void move_with(const In& in, const Out& out, const device_options& o, const char* label, std::size_t count, F&& call) {
        using T = detail::element_of<In>;
        constexpr bool known = detail::has_nccl_type(dtype_traits<T>::id);
        run(in, out, o, label, count * sizeof(T), false, known ? detail::nccl_type(dtype_traits<T>::id) : ncclUint8,
            known ? 1 : sizeof(T), call).wait();
    }

    template <class In, class Out, class Op, class F>
    device_request reduce_with(const In& in, const Out& out, const Op&, const device_reduce_options& o, const char* label,
                               std::size_t count, F&& call) {
        using T = detail::element_of<In>;
        constexpr ncclDataType_t type = detail::nccl_type(dtype_traits<T>::id);
        const double factor = factor_of<T, Op>(o, label);
        const ncclRedOp_t how = factor == 1 ? detail::nccl_op<Op>
                                            : session().scaled_sum(T(factor), type, session().limit_for(o.deadline));
        return run(in, out, o, label, count * sizeof(T), factor != 1, type, 1, [&](const context& c) { return call(c, how); });
    }

    // Prescale, postscale and the mean are one factor of a sum's elements.
    template <class T, class Op>
    double factor_of(const device_reduce_options& o, const char* label) const {
        constexpr bool average = std::is_same_v<Op, op::average>;
        const double factor = o.prescale * o.postscale / (average ? size() : 1);
        if (factor == 1) return 1;
        int exponent = 0;
        const bool power_of_two = std::frexp(std::fabs(factor), &exponent) == 0.5 && exponent > -13 && exponent < 16;
        const bool exact = detail::is_float_element<T> && (sizeof(T) > 2 || power_of_two);
        if (!(average || std::is_same_v<Op, op::sum>) || !exact)
            throw usage_error(rank(), detail::text("hvd: ", label, " on rank ", rank(), ": ", dtype_name<T>(), " can't be scaled by ", factor,
                                                   " by NCCL: only sums are, 16-bit floats by powers of two, integers not at all"));
        return factor;
    }

    template <class In, class Out, class Options, class F>
    device_request run(const In& in, const Out& out, const Options& o, const char* label, std::size_t bytes, bool scaled,
                       ncclDataType_t type, std::size_t unit, F&& call) {
        session_type& s = session();
        const cudaStream_t stream = s.stream_or_own(o.stream);
        const detail::time_point limit = s.limit_for(o.deadline);
        return {session_, s.enqueue(label, stream, limit, [&](detail::nccl_calls& calls) {
                    if (s.size() > 1 || scaled) calls.add(call(context{s.handle(), stream, type, unit, s.size(), calls}), label);
                    else if (bytes > 0 && static_cast<const void*>(in.data()) != out.data())
                        detail::check_cuda(cudaMemcpyAsync(out.data(), in.data(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync", rank());
                }), label, limit};
    }

    void require(std::size_t wanted, std::size_t given, const char* call, const char* what) const {
        if (wanted != given) [[unlikely]]
            throw usage_error(rank(), detail::text("hvd: ", call, " on rank ", rank(), ": ", what, " has ", given, " elements, expected ", wanted));
    }

    void require_root(root r, const char* call) const {
        if (r.rank < 0 || r.rank >= size()) [[unlikely]]
            throw usage_error(rank(), detail::text("hvd: ", call, " on rank ", rank(), ": root ", r.rank, " is not a rank of this communicator of size ", size()));
    }

    void require_parts(std::size_t count, const char* call) const {
        if (count % std::size_t(session().size()) != 0) [[unlikely]]
            throw usage_error(rank(), detail::text("hvd: ", call, " on rank ", rank(), ": ", count, " elements can't be split evenly over ", size(), " ranks"));
    }

    // `mine` elements of this rank and `all` of all ranks.
    void require_counts(std::span<const std::size_t> counts, std::size_t mine, std::size_t all, const char* call) const {
        if (counts.empty()) return require(mine * std::size_t(session().size()), all, call, "the tensor of all ranks");
        require(std::size_t(session().size()), counts.size(), call, ".counts");
        std::size_t total = 0;
        for (const std::size_t n : counts) total += n;
        require(counts[std::size_t(rank())], mine, call, "this rank's tensor");
        require(total, all, call, "the tensor of all ranks");
    }

    std::shared_ptr<session_type> session_;
};

}  // namespace v0
}  // namespace hvd
