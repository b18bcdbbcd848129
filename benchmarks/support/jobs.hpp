// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/hvd.hpp>

#include <string>

#include "measure.hpp"
#include "mpi_peer.hpp"
#include "types.hpp"

namespace bench {

/// One collective in one kind of memory: its calls and their verification. A candidate without a
/// call is skipped, since not everything works in place.
struct job {
    candidate out_of_place{}, in_place{};
};

/// The tensors of a job: `count` elements from `in` to `out`. In place only `out` is used.
template <class T>
struct place {
    T* in;
    T* out;
    std::size_t count;
    int rank, ranks;

    auto source() const { return hvd::view(static_cast<const T*>(in), count); }
    auto target() const { return hvd::view(out, count); }
    std::size_t each() const { return count / std::size_t(ranks); }
    auto my_part(T* tensor) const { return hvd::view(tensor + std::size_t(rank) * each(), each()); }
};

// Verifies the result of calls with several parts (gather, alltoall): each part is in the input of
// the rank that sent it.
template <class T>
std::size_t wrong_parts(const place<T>& p) {
    std::size_t wrong = 0;
    for (int r = 0; r < p.ranks; ++r)
        wrong += count_unequal(p.out + std::size_t(r) * p.each(), p.each(),
                               [&](std::size_t i) { return input(r, i, p.ranks); });
    return wrong;
}

template <class Op, class T>
candidate reduction(const place<T>& p, T* filled, std::size_t results, std::size_t first,
                    std::function<void()> call) {
    return {"", std::move(call), [=] { fill(filled, p.count, p.rank, p.ranks); },
            [=] {
                return count_unequal(
                    p.out, results, [&](std::size_t i) { return expected<Op>(i, p.ranks); }, first);
            }};
}

template <class Calls, class T, class Op>
job allreduce_job(const Calls& calls, const place<T>& p, Op) {
    return {reduction<Op>(p, p.in, p.count, 0, [=] { calls.allreduce(p); }),
            reduction<Op>(p, p.out, p.count, 0, [=] { calls.allreduce_in_place(p); })};
}

template <class Calls, class T, class Op>
job reduce_job(const Calls& calls, const place<T>& p, Op) {
    const std::size_t results = p.rank == 0 ? p.count : 0;
    return {reduction<Op>(p, p.in, results, 0, [=] { calls.reduce(p); }),
            reduction<Op>(p, p.out, results, 0, [=] { calls.reduce_in_place(p); })};
}

template <class Calls, class T, class Op>
job reduce_scatter_job(const Calls& calls, const place<T>& p, Op) {
    return {reduction<Op>(p, p.in, p.each(), std::size_t(p.rank) * p.each(),
                          [=] { calls.reduce_scatter(p); }),
            {}};
}

template <class Calls, class T>
job broadcast_job(const Calls& calls, const place<T>& p) {
    const auto wrong = [=] {
        return count_unequal(p.out, p.count, [&](std::size_t i) { return input(0, i, p.ranks); });
    };
    return {
        {},
        {"", [=] { calls.broadcast(p); }, [=] { fill(p.out, p.count, p.rank, p.ranks); }, wrong}};
}

template <class Calls, class T>
job allgather_job(const Calls& calls, const place<T>& p) {
    const auto mine = [=](T* part) { return [=] { fill(part, p.each(), p.rank, p.ranks); }; };
    return {{"", [=] { calls.allgather(p); }, mine(p.in), [=] { return wrong_parts(p); }},
            {"", [=] { calls.allgather_in_place(p); }, mine(p.out + std::size_t(p.rank) * p.each()),
             [=] { return wrong_parts(p); }}};
}

template <class Calls, class T>
job gather_job(const Calls& calls, const place<T>& p) {
    return {{"", [=] { calls.gather(p); }, [=] { fill(p.in, p.each(), p.rank, p.ranks); },
             [=] { return p.rank == 0 ? wrong_parts(p) : 0; }},
            {}};
}

template <class Calls, class T>
job scatter_job(const Calls& calls, const place<T>& p) {
    const std::size_t first = std::size_t(p.rank) * p.each();
    return {{"", [=] { calls.scatter(p); }, [=] { fill(p.in, p.count, p.rank, p.ranks); },
             [=] {
                 return count_unequal(
                     p.out, p.each(), [&](std::size_t i) { return input(0, i, p.ranks); }, first);
             }},
            {}};
}

template <class Calls, class T>
job alltoall_job(const Calls& calls, const place<T>& p) {
    const auto sent = [=] {
        for (int r = 0; r < p.ranks; ++r)
            fill(p.in + std::size_t(r) * p.each(), p.each(), p.rank, p.ranks);
    };
    return {{"", [=] { calls.alltoall(p); }, sent, [=] { return wrong_parts(p); }}, {}};
}

/// Returns the job of that name, in nccl-tests' spelling, by one provider's calls.
template <class Calls, class T, class Op>
job job_of(const std::string& collective, const Calls& calls, const place<T>& p, Op op) {
    if (collective == "all_reduce") return allreduce_job(calls, p, op);
    if (collective == "reduce") return reduce_job(calls, p, op);
    if (collective == "reduce_scatter") return reduce_scatter_job(calls, p, op);
    if (collective == "broadcast") return broadcast_job(calls, p);
    if (collective == "all_gather") return allgather_job(calls, p);
    if (collective == "gather") return gather_job(calls, p);
    if (collective == "scatter") return scatter_job(calls, p);
    return alltoall_job(calls, p);
}

inline const std::vector<std::string> collective_names{"all_reduce",     "all_gather", "broadcast",
                                                       "reduce_scatter", "alltoall",   "reduce",
                                                       "gather",         "scatter"};

inline bool reduces(const std::string& collective) {
    return collective.find("reduce") != std::string::npos;
}
inline bool has_root(const std::string& collective) {
    return collective == "broadcast" || collective == "reduce" || collective == "gather" ||
           collective == "scatter";
}

template <class Comm, class T, class Op>
struct hvd_calls {
    Comm* comm;
    Op op;
    using P = place<T>;

    void allreduce(const P& p) const { comm->allreduce(p.source(), p.target(), as_hvd<T>(op)); }
    void allreduce_in_place(const P& p) const { comm->allreduce(p.target(), as_hvd<T>(op)); }
    void reduce(const P& p) const {
        comm->reduce(p.source(), hvd::into(hvd::view(p.out, p.rank == 0 ? p.count : 0)),
                     as_hvd<T>(op), hvd::root{0});
    }
    void reduce_in_place(const P& p) const {
        comm->reduce(p.target(), as_hvd<T>(op), hvd::root{0});
    }
    void reduce_scatter(const P& p) const {
        comm->reduce_scatter(p.source(), as_hvd<T>(op), hvd::into(hvd::view(p.out, p.each())));
    }
    void broadcast(const P& p) const { comm->broadcast(p.target(), hvd::root{0}); }
    void allgather(const P& p) const {
        comm->allgather(hvd::view(p.in, p.each()), hvd::into(p.target()));
    }
    void allgather_in_place(const P& p) const {
        comm->allgather(p.my_part(p.out), hvd::into(p.target()));
    }
    void gather(const P& p) const {
        comm->gather(hvd::view(p.in, p.each()),
                     hvd::into(hvd::view(p.out, p.rank == 0 ? p.count : 0)), hvd::root{0});
    }
    void scatter(const P& p) const {
        comm->scatter(hvd::view(p.in, p.rank == 0 ? p.count : 0),
                      hvd::into(hvd::view(p.out, p.each())), hvd::root{0});
    }
    void alltoall(const P& p) const { comm->alltoall(p.source(), hvd::into(p.target())); }
};

#if HVD_WITH_MPI
/// The same calls by raw MPI.
template <class T, class Op>
struct mpi_calls {
    mpi_peer<T, Op> mpi;
    using P = place<T>;

    void allreduce(const P& p) const { mpi.allreduce(p.in, p.out, p.count); }
    void allreduce_in_place(const P& p) const { mpi.allreduce(MPI_IN_PLACE, p.out, p.count); }
    void reduce(const P& p) const { mpi.reduce(p.in, p.out, p.count, 0, p.rank == 0); }
    void reduce_in_place(const P& p) const {
        mpi.reduce(p.rank == 0 ? MPI_IN_PLACE : p.out, p.out, p.count, 0, p.rank == 0);
    }
    void reduce_scatter(const P& p) const { mpi.reduce_scatter(p.in, p.out, p.each()); }
    void broadcast(const P& p) const {
        check(MPI_Bcast(p.out, int(p.count), mpi.type, 0, mpi.comm), "MPI_Bcast");
    }
    void allgather(const P& p) const { gather_all(p.in, p); }
    void allgather_in_place(const P& p) const { gather_all(MPI_IN_PLACE, p); }
    void gather_all(const void* in, const P& p) const {
        check(MPI_Allgather(in, int(p.each()), mpi.type, p.out, int(p.each()), mpi.type, mpi.comm),
              "MPI_Allgather");
    }
    void gather(const P& p) const {
        check(
            MPI_Gather(p.in, int(p.each()), mpi.type, p.out, int(p.each()), mpi.type, 0, mpi.comm),
            "MPI_Gather");
    }
    void scatter(const P& p) const {
        check(
            MPI_Scatter(p.in, int(p.each()), mpi.type, p.out, int(p.each()), mpi.type, 0, mpi.comm),
            "MPI_Scatter");
    }
    void alltoall(const P& p) const {
        check(MPI_Alltoall(p.in, int(p.each()), mpi.type, p.out, int(p.each()), mpi.type, mpi.comm),
              "MPI_Alltoall");
    }
};
#endif

}  // namespace bench
