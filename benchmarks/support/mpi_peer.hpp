// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// The same jobs as a user of raw MPI writes them. MPI has no average, so it takes a scaling pass.
// It has no 16-bit floats, so they take an operation of the user's.
#include <hvd/hvd.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#if HVD_WITH_MPI
namespace bench {

template <class T>
constexpr bool is_half = std::is_same_v<T, hvd::float16> || std::is_same_v<T, hvd::bfloat16>;

inline void check(int code, const char* api) {
    if (code != MPI_SUCCESS) throw std::runtime_error(std::string("bench: ") + api + " failed");
}

template <class T>
MPI_Datatype mpi_type() {
    if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
    else if constexpr (std::is_same_v<T, std::int32_t>) return MPI_INT32_T;
    else return MPI_UINT16_T;
}

template <class T>
void add_halves(void* in, void* inout, int* count, MPI_Datatype*) {
    const T* const a = static_cast<const T*>(in);
    T* const b = static_cast<T*>(inout);
    for (int i = 0; i < *count; ++i) b[i] = T(float(a[i]) + float(b[i]));
}

// The operation lives until MPI ends.
template <class T>
MPI_Op mpi_op() {
    if constexpr (is_half<T>) {
        MPI_Op op = MPI_OP_NULL;
        check(MPI_Op_create(&add_halves<T>, 1, &op), "MPI_Op_create");
        return op;
    } else {
        return MPI_SUM;
    }
}

template <class T>
void scale(T* data, std::size_t count, int ranks) {
    if constexpr (is_half<T>) {
        const float factor = 1.0f / float(ranks);
        for (std::size_t i = 0; i < count; ++i) data[i] = T(float(data[i]) * factor);
    } else if constexpr (std::is_integral_v<T>) {
        for (std::size_t i = 0; i < count; ++i) data[i] /= T(ranks);
    } else {
        const T factor = T(1) / T(ranks);
        for (std::size_t i = 0; i < count; ++i) data[i] *= factor;
    }
}

/// Collectives of raw MPI on one communicator, for one element type and operation.
template <class T, class Op>
struct mpi_peer {
    MPI_Comm comm;
    int ranks;
    MPI_Op op = mpi_op<T>();
    MPI_Datatype type = mpi_type<T>();

    void finish(T* data, std::size_t count) const {
        if constexpr (std::is_same_v<Op, hvd::op::average>) scale(data, count, ranks);
    }
    void allreduce(const void* in, T* out, std::size_t n) const {
        check(MPI_Allreduce(in, out, int(n), type, op, comm), "MPI_Allreduce");
        finish(out, n);
    }
    void reduce(const void* in, T* out, std::size_t n, int root, bool is_root) const {
        check(MPI_Reduce(in, out, int(n), type, op, root, comm), "MPI_Reduce");
        if (is_root) finish(out, n);
    }
    void reduce_scatter(const void* in, T* out, std::size_t each) const {
        check(MPI_Reduce_scatter_block(in, out, int(each), type, op, comm),
              "MPI_Reduce_scatter_block");
        finish(out, each);
    }
};

}  // namespace bench
#endif
