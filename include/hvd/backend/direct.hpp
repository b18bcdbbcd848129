// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/finite.hpp"
#include "../platform/mpi_types.hpp"
#include "../transport/operation.hpp"
#include "mpi.hpp"

namespace hvd::inline v0 {
namespace detail {

// Makes one MPI call for each call. Counts above 2^31 - 1 become several MPI calls if that means
// the same. Otherwise they are refused before anything is sent.
class direct_mpi_endpoint : public mpi_endpoint {
public:
    static owner<direct_mpi_endpoint> of(const MPI_Comm& handle, adopt_t,
                                         const communicator_options& options) {
        return made<direct_mpi_endpoint>(adoptable(handle), false, options);
    }
    static owner<direct_mpi_endpoint> of(const MPI_Comm& handle, borrow_t,
                                         const communicator_options& options) {
        return made<direct_mpi_endpoint>(checked(handle), true, options);
    }

    static owner<direct_mpi_endpoint> world(const communicator_options& options) {
        require_running();
        require_mpi_ranks();
        auto endpoint = of(MPI_COMM_WORLD, borrow, options);
        endpoint->show_own_handle();
        return endpoint;
    }

    owner<direct_mpi_endpoint> prepare_subset(std::span<const int> ranks, int context,
                                              time_point limit) const {
        return prepared<direct_mpi_endpoint>(ranks, context, limit);
    }
    owner<direct_mpi_endpoint> subset(std::span<const int> ranks, int context) const {
        auto endpoint = prepare_subset(ranks, context, never);
        endpoint->join();
        return endpoint;
    }

    // Asynchronous calls are made in wait() and test(), one MPI call at a time.
    bool threaded() const { return false; }

    template <class T, class Op>
    void allreduce(const T* in, T* out, std::size_t count, const Op& op, const reduce_options& o) {
        const MPI_Datatype type = mpi_datatype(dtype_traits<std::remove_cv_t<T>>::id);
        in_portions(count, [&](std::size_t first, int n) {
            check(MPI_Allreduce(in == out ? MPI_IN_PLACE : in + first, out + first, n, type,
                                mpi_operation(Op::id), comm_),
                  "MPI_Allreduce");
        });
        finish(out, count, op, o);
    }

    template <class T, class Op>
    void reduce(const T* in, T* out, std::size_t count, const Op& op, int root,
                const reduce_options& o) {
        const MPI_Datatype type = mpi_datatype(dtype_traits<std::remove_cv_t<T>>::id);
        in_portions(count, [&](std::size_t first, int n) {
            reduce_portion(in + first, rank_ == root ? out + first : nullptr, n, sizeof(T), type,
                           mpi_operation(Op::id), root);
        });
        if (rank_ == root) finish(out, count, op, o);
    }

    template <class T>
    void broadcast(T* data, std::size_t count, int root) {
        if constexpr (has_mpi_datatype(dtype_traits<T>::id))
            in_portions(count, [&](std::size_t first, int n) {
                check(MPI_Bcast(data + first, n, mpi_datatype(dtype_traits<T>::id), root, comm_),
                      "MPI_Bcast");
            });
        else broadcast(reinterpret_cast<std::byte*>(data), count * sizeof(T), root);
    }

    // Equal counts on all ranks.
    template <class T>
    void allgather(const T* in, T* out, std::size_t count, std::size_t room) {
        if (room != count * std::size_t(size_))
            throw usage_error(rank_,
                              text("hvd: allgather on rank ", rank_, ": into() has room for ", room,
                                   " elements, ", size_, " ranks with ", count, " each need ",
                                   count * std::size_t(size_)));
        const int bytes = narrow(count * sizeof(T), "allgather");
        const bool in_place = in == out + std::size_t(rank_) * count;
        check(MPI_Allgather(in_place ? MPI_IN_PLACE : in, bytes, MPI_BYTE, out, bytes, MPI_BYTE,
                            comm_),
              "MPI_Allgather");
    }

    void barrier() { check(MPI_Barrier(comm_), "MPI_Barrier"); }

    // Runs a call that has no single MPI call, from its operation.
    void run(operation& op, workspace& w) {
        if (op.headers != nullptr) return run_agreement(op);
        if (op.entry.refused)
            throw usage_error(rank_, text(std::string_view(op.entry.text), " (rank ", rank_, ")"));
        if (op.only_agree) return;
        if (op.pack != nullptr) op.pack(op.self, op);
        switch (op.entry.kind) {
            case collective::allreduce: return run_allreduce(op);
            case collective::reduce: return run_reduce(op);
            case collective::reduce_scatter: return run_reduce_scatter(op, w);
            case collective::scan:
            case collective::exscan: return run_scan(op);
            case collective::broadcast: return run_broadcast(op);
            case collective::allgather: return run_allgather(op, w);
            case collective::gather: return run_gather(op, w);
            case collective::scatter:
            case collective::alltoall: return run_distribute(op, w);
            case collective::barrier: return barrier();
            case collective::agree:
            case collective::send:
            case collective::recv: return;  // it has no messages
        }
    }

private:
    friend class mpi_endpoint;  // which makes it

    using mpi_endpoint::mpi_endpoint;
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40000000 && MPICH_NUMVERSION < 40200000
    static constexpr bool mpich_reads_in_place = true;
#else
    static constexpr bool mpich_reads_in_place = false;
#endif
    // No memory is shared.
    static std::size_t window_of(const communicator_options&) { return 0; }

    template <class F>
    static void in_portions(std::size_t count, F&& f) {
        if (count <= INT_MAX) [[likely]]
            return f(0, int(count));
        for (std::size_t first = 0; first < count; first += INT_MAX)
            f(first, int(count - first < INT_MAX ? count - first : INT_MAX));
    }

    int narrow(std::size_t n, const char* what) const {
        if (n > INT_MAX)
            throw usage_error(rank_, text("hvd: direct<mpi> ", what, " on rank ", rank_, ": ", n,
                                          " bytes are more than one MPI call takes; use hvd::mpi"));
        return int(n);
    }

    // One MPI_Reduce. MPICH 4.0 and 4.1 read from the address MPI_IN_PLACE where the root is
    // not rank 0 (its issue 6540): a copy of the input is reduced there.
    void reduce_portion(const void* in, void* out, int n, std::size_t element_bytes,
                        MPI_Datatype type, MPI_Op operation, int root) const {
        std::vector<std::byte> copy;
        if (in == out && rank_ == root) {
            if (!mpich_reads_in_place || root == 0) {
                in = MPI_IN_PLACE;
            } else {
                const std::byte* const bytes = static_cast<const std::byte*>(in);
                copy.assign(bytes, bytes + std::size_t(n) * element_bytes);
                in = copy.data();
            }
        }
        check(MPI_Reduce(in, out, n, type, operation, root, comm_), "MPI_Reduce");
    }

    // Applies the mean and the scales in one more pass, since MPI has no such operations.
    template <class T, class Op>
    void finish(T* out, std::size_t count, const Op& op, const reduce_options& o) const {
        if constexpr (std::is_same_v<Op, op::average> || is_float_element<T> ||
                      is_complex_element<T>) {
            if (std::is_same_v<Op, op::average> || !is_one(o.prescale) || !is_one(o.postscale))
                scale(out, count, op, o);
        } else if (!is_one(o.prescale) || !is_one(o.postscale)) {
            throw usage_error(rank_,
                              text("hvd: ", dtype_name<T>(), " can't be scaled on direct<mpi>"));
        }
    }

    // A sum of scaled values is the scaled sum; other operations are scaled afterwards only.
    template <class T, class Op>
    void scale(T* out, std::size_t count, const Op& op, const reduce_options& o) const {
        constexpr bool additive = std::is_same_v<Op, op::sum> || std::is_same_v<Op, op::average>;
        if (!additive && !is_one(o.prescale)) refuse_prescale();
        const std::byte* const input = reinterpret_cast<const std::byte*>(out);
        reduce_elements<T, Op>({&op, &input, 1, size_, reinterpret_cast<std::byte*>(out), count,
                                o.prescale, o.postscale});
    }

    void finish_group(const reduction_group& g, const operation& op, std::byte* out,
                      std::size_t count) const {
        finish_group(g, op, out, count, size_);
    }
    void finish_group(const reduction_group& g, const operation& op, std::byte* out,
                      std::size_t count, int divisor) const {
        const call_header& entry = op.entry;
        const bool additive = entry.op == op::sum::id || entry.op == op::average::id;
        if (!additive && !is_one(entry.prescale)) refuse_prescale();
        const std::byte* const input = out;
        if (entry.op == op::average::id || !is_one(entry.prescale) || !is_one(entry.postscale))
            g.function({g.op, &input, 1, divisor, out, count, entry.prescale, entry.postscale});
    }

    [[gnu::cold, noreturn]] void refuse_prescale() const {
        throw usage_error(rank_,
                          "hvd: direct<mpi> scales before the reduction only sums and averages");
    }

    // Agreements of hvd itself, such as those on a new communicator, are compared here, too.
    void run_agreement(operation& op) {
        const slice<call_header> all(op.headers, std::size_t(size_));
        gather_headers(op.entry, all.data());
        replace_other_bytes(all);
        check_headers(rank_, slice<const call_header>(all));
    }

    void run_allreduce(operation& op) {
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            in_portions(g.count, [&](std::size_t first, int n) {
                const std::size_t at = g.offset + first * g.element_bytes;
                check(MPI_Allreduce(op.in == op.out ? MPI_IN_PLACE : op.in + at, op.out + at, n,
                                    mpi_datatype(g.id), mpi_operation(op.entry.op), comm_),
                      "MPI_Allreduce");
            });
            finish_group(g, op, op.out + g.offset, g.count);
        }
    }

    void run_reduce(operation& op) {
        const bool root = rank_ == op.entry.root;
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            in_portions(g.count, [&](std::size_t first, int n) {
                const std::size_t at = g.offset + first * g.element_bytes;
                reduce_portion(op.in + at, root ? op.out + at : nullptr, n, g.element_bytes,
                               mpi_datatype(g.id), mpi_operation(op.entry.op), op.entry.root);
            });
            if (root) finish_group(g, op, op.out + g.offset, g.count);
        }
    }

    // MPI needs buffers that do not overlap. hvd allows this rank's slice of the input as output.
    void run_reduce_scatter(operation& op, workspace& w) {
        std::byte* out = op.out;
        std::vector<int> counts(static_cast<std::size_t>(size_));
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            for (int p = 0; p < size_; ++p)
                counts[std::size_t(p)] = narrow(g.count_of(p, size_), "reduce_scatter");
            const std::size_t bytes = g.count_of(rank_, size_) * g.element_bytes;
            const bool in_place = out == g.slice_of(op.in, rank_, size_).data;
            if (in_place) w.part.resize(bytes);
            check(
                MPI_Reduce_scatter(op.in + g.offset, in_place ? w.part.data() : out, counts.data(),
                                   mpi_datatype(g.id), mpi_operation(op.entry.op), comm_),
                "MPI_Reduce_scatter");
            if (in_place && bytes > 0) std::memcpy(out, w.part.data(), bytes);
            finish_group(g, op, out, g.count_of(rank_, size_));
            out += aligned(g.count_of(rank_, size_) * g.element_bytes);
        }
    }

    // Rank 0 gets no result of an exscan of MPI: it is the reduction of no rows.
    void run_scan(operation& op) {
        const bool inclusive = op.entry.kind == collective::scan;
        for (std::size_t i = 0; i < op.group_count; ++i) {
            const reduction_group& g = op.groups[i];
            in_portions(g.count, [&](std::size_t first, int n) {
                const std::size_t at = g.offset + first * g.element_bytes;
                check((inclusive ? MPI_Scan : MPI_Exscan)(
                          op.in == op.out ? MPI_IN_PLACE : op.in + at, op.out + at, n,
                          mpi_datatype(g.id), mpi_operation(op.entry.op), comm_),
                      inclusive ? "MPI_Scan" : "MPI_Exscan");
            });
            const int contributors = rank_ + (inclusive ? 1 : 0);
            if (contributors > 0) finish_group(g, op, op.out + g.offset, g.count, contributors);
            else g.function({g.op, nullptr, 0, 1, op.out + g.offset, g.count, 1, 1});
        }
    }

    void run_broadcast(operation& op) {
        if (rank_ == op.entry.root && op.in != op.out)
            std::memmove(op.out, op.in, std::size_t(op.entry.count) * op.element_bytes);
        broadcast(op.out, std::size_t(op.entry.count) * op.element_bytes, op.entry.root);
    }

    struct layout {
        std::vector<int> counts, places;
    };

    // Returns counts and displacements in bytes.
    layout laid_out(slice<const std::size_t> elements, std::size_t element_bytes,
                    const char* what) const {
        layout result{std::vector<int>(elements.size()), std::vector<int>(elements.size())};
        std::size_t at = 0;
        for (std::size_t r = 0; r < elements.size(); ++r) {
            result.counts[r] = narrow(elements[r] * element_bytes, what);
            result.places[r] = narrow(at, what);
            at += elements[r] * element_bytes;
        }
        return result;
    }

    // Returns the count of each rank. All ranks exchange them, unless this rank knows them.
    slice<const std::size_t> counts_of_all(const operation& op, workspace& w) const {
        if (!op.counts.empty()) return op.counts;
        const std::uint64_t mine = op.entry.count;
        check(MPI_Allgather(&mine, 1, MPI_UINT64_T, w.counts.data(), 1, MPI_UINT64_T, comm_),
              "MPI_Allgather");
        return w.counts;
    }

    void run_allgather(operation& op, workspace& w) {
        const slice<const std::size_t> counts = counts_of_all(op, w);
        const layout all = laid_out(counts, op.element_bytes, "allgather");
        if (op.provide != nullptr) op.out = op.provide(op.self, counts);
        const std::size_t me = std::size_t(rank_);
        const bool in_place = op.in == op.out + all.places[me];
        check(MPI_Allgatherv(in_place ? MPI_IN_PLACE : op.in, all.counts[me], MPI_BYTE, op.out,
                             all.counts.data(), all.places.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
        if (op.take != nullptr) op.take(op.self);
    }

    void run_gather(operation& op, workspace& w) {
        const slice<const std::size_t> counts = counts_of_all(op, w);
        const layout all = laid_out(counts, op.element_bytes, "gather");
        if (op.provide != nullptr) op.out = op.provide(op.self, counts);
        const std::size_t me = std::size_t(rank_);
        const bool in_place = rank_ == op.entry.root && op.in == op.out + all.places[me];
        check(MPI_Gatherv(in_place ? MPI_IN_PLACE : op.in, all.counts[me], MPI_BYTE, op.out,
                          all.counts.data(), all.places.data(), MPI_BYTE, op.entry.root, comm_),
              "MPI_Gatherv");
        if (op.take != nullptr) op.take(op.self);
    }

    // Returns the counts that come from each rank, where `sent` go to them. The ranks exchange
    // them, unless this rank knows them.
    slice<const std::size_t> counts_received(const operation& op, const table<std::size_t>& sent,
                                             workspace& w) const {
        if (!op.receive_counts.empty()) return op.receive_counts;
        check(MPI_Alltoall(sent.data(), 1, MPI_UINT64_T, w.counts.data(), 1, MPI_UINT64_T, comm_),
              "MPI_Alltoall");
        return w.counts;
    }

    // A scatter is the alltoall in which only the root sends.
    void run_distribute(operation& op, workspace& w) {
        table<std::size_t> sent(w.counts.size());  // 0 on the ranks that are not a scatter's root
        for (std::size_t r = 0; r < op.counts.size(); ++r) sent[r] = op.counts[r];
        const slice<const std::size_t> received = counts_received(op, sent, w);
        const layout out = laid_out(sent, op.element_bytes, "alltoall"),
                     in = laid_out(received, op.element_bytes, "alltoall");
        if (op.provide != nullptr) op.out = op.provide(op.self, received);
        check(MPI_Alltoallv(op.in, out.counts.data(), out.places.data(), MPI_BYTE, op.out,
                            in.counts.data(), in.places.data(), MPI_BYTE, comm_),
              "MPI_Alltoallv");
        if (op.take != nullptr) op.take(op.self);
    }
};

static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));

}  // namespace detail

/// Makes one MPI call for each call of a plain tensor. MPI detects disagreements of ranks, and
/// determines the bits. It reduces only as MPI does: no 16-bit floats and no callables. It has no
/// timeouts, since MPI gives up no call: a `.timeout` is refused.
template <>
struct direct<mpi> {
    using endpoint_type = detail::direct_mpi_endpoint;
    static constexpr bool is_direct = true;
    template <class T, class Op>
    static constexpr bool reduces = detail::mpi_reduces<T, Op>;
};

static_assert(backend<direct<mpi>>);

}  // namespace hvd::inline v0
