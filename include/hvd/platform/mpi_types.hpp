// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/concepts.hpp"
#include "mpi_api.hpp"

namespace hvd::inline v0::detail {

// True for elements that MPI has a type for.
constexpr bool has_mpi_datatype(dtype id) {
    return id != dtype::float16 && id != dtype::bfloat16 && id != dtype::user;
}

// Returns MPI's own type for an element, or MPI_DATATYPE_NULL if it has none.
inline MPI_Datatype mpi_datatype(dtype id) {
    switch (id) {
        case dtype::int8: return MPI_INT8_T;
        case dtype::int16: return MPI_INT16_T;
        case dtype::int32: return MPI_INT32_T;
        case dtype::int64: return MPI_INT64_T;
        case dtype::uint8: return MPI_UINT8_T;
        case dtype::uint16: return MPI_UINT16_T;
        case dtype::uint32: return MPI_UINT32_T;
        case dtype::uint64: return MPI_UINT64_T;
        case dtype::boolean: return MPI_C_BOOL;
        case dtype::float32: return MPI_FLOAT;
        case dtype::float64: return MPI_DOUBLE;
        case dtype::complex64: return MPI_C_FLOAT_COMPLEX;
        case dtype::complex128: return MPI_C_DOUBLE_COMPLEX;
        case dtype::byte: return MPI_BYTE;
        default: return MPI_DATATYPE_NULL;
    }
}

// The numbers are those of hvd::op. An average is a sum that is divided afterwards.
inline MPI_Op mpi_operation(int op) {
    switch (op) {
        case op::sum::id:
        case op::average::id: return MPI_SUM;
        case op::min::id: return MPI_MIN;
        case op::max::id: return MPI_MAX;
        case op::product::id: return MPI_PROD;
        case op::bit_and::id: return MPI_BAND;
        case op::bit_or::id: return MPI_BOR;
        case op::bit_xor::id: return MPI_BXOR;
        case op::logical_and::id: return MPI_LAND;
        case op::logical_or::id: return MPI_LOR;
        default: return MPI_OP_NULL;
    }
}

// True where MPI reduces by itself: for its own types, with the operations that the standard allows
// for them.
template <class T, class Op>
constexpr bool mpi_reduces = [] {
    using plain = plain_op_t<Op>;
    if constexpr (is_custom<plain> || is_rounded<Op>) return false;
    else if constexpr (std::same_as<T, bool>)
        return std::same_as<plain, op::logical_and> || std::same_as<plain, op::logical_or>;
    else if constexpr (std::same_as<T, std::byte>)
        return std::same_as<plain, op::bit_and> || std::same_as<plain, op::bit_or> ||
               std::same_as<plain, op::bit_xor>;
    else
        return is_integer_element<T> || is_complex_element<T> || std::same_as<T, float> ||
               std::same_as<T, double>;
}();

}  // namespace hvd::inline v0::detail
