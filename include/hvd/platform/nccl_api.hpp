// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/dtype.hpp"
#include "../core/op.hpp"
#include "cuda_api.hpp"
#include "nccl_versions.hpp"

namespace hvd::inline v0 {
namespace detail {

[[gnu::cold, noreturn]] inline void throw_nccl_error(ncclResult_t code, const char* api, int rank,
                                                     ncclComm_t comm, std::source_location where) {
    const char* const last = ncclGetLastError(comm);
    const bool more = last != nullptr && *last != '\0';
    throw nccl_error(rank, api, int(code),
                     text(ncclGetErrorString(code), more ? ": " : "", more ? last : ""), where);
}

inline void check_nccl(ncclResult_t code, const char* api, int rank,
                       std::source_location where = std::source_location::current()) {
    if (code != ncclSuccess) [[unlikely]]
        throw_nccl_error(code, api, rank, nullptr, where);
}

// The version of the loaded library, which may differ from that of the header.
class nccl_library {
public:
    explicit nccl_library(int rank) {
        check_nccl(ncclGetVersion(&version_), "ncclGetVersion", rank);
        if (version_ < int(nccl_since::oldest))
            throw usage_error(
                rank, text("hvd: the NCCL library on rank ", rank, " has version ",
                           nccl_version_text(version_), ", hvd needs ",
                           nccl_version_text(int(nccl_since::oldest)), " or later; its header is ",
                           nccl_version_text(NCCL_VERSION_CODE)));
    }

    int version() const { return version_; }
    bool has(nccl_since what) const {
        return version_ >= int(what) && NCCL_VERSION_CODE >= int(what);
    }

    // Throws if the header or the running library lacks what has no substitute.
    void require(nccl_since what, const char* label, int rank) const {
        if (!has(what))
            throw usage_error(rank, text("hvd: ", label, " on rank ", rank, ": needs NCCL ",
                                         nccl_version_text(int(what)), ", the library is ",
                                         nccl_version_text(version_), " and its header ",
                                         nccl_version_text(NCCL_VERSION_CODE)));
    }

private:
    int version_ = 0;
};

// True for the types that NCCL can reduce. Others are moved as bytes.
constexpr bool has_nccl_type(dtype id) {
    switch (id) {
        case dtype::int8:
        case dtype::int32:
        case dtype::int64:
        case dtype::uint8:
        case dtype::uint32:
        case dtype::uint64:
        case dtype::float16:
        case dtype::bfloat16:
        case dtype::float32:
        case dtype::float64: return true;
        default: return false;
    }
}

constexpr ncclDataType_t nccl_type(dtype id) {
    switch (id) {
        case dtype::int8: return ncclInt8;
        case dtype::int32: return ncclInt32;
        case dtype::int64: return ncclInt64;
        case dtype::uint32: return ncclUint32;
        case dtype::uint64: return ncclUint64;
        case dtype::float16: return ncclFloat16;
        case dtype::bfloat16: return ncclBfloat16;
        case dtype::float32: return ncclFloat32;
        case dtype::float64: return ncclFloat64;
        default: return ncclUint8;
    }
}

template <class Op>
constexpr bool has_nccl_op =
    std::is_same_v<Op, op::sum> || std::is_same_v<Op, op::average> || std::is_same_v<Op, op::min> ||
    std::is_same_v<Op, op::max> || std::is_same_v<Op, op::product>;

// `id` is the number of the operation in headers.
constexpr ncclRedOp_t nccl_op(int id) {
    return id == op::min::id       ? ncclMin
           : id == op::max::id     ? ncclMax
           : id == op::product::id ? ncclProd
                                   : ncclSum;
}

}  // namespace detail

/// CUDA's own 16-bit floats are hvd's elements float16 and bfloat16.
template <>
struct dtype_traits<__half> : detail::builtin_element<dtype::float16, float> {};
template <>
struct dtype_traits<__nv_bfloat16> : detail::builtin_element<dtype::bfloat16, float> {};

/// 8-bit floats are moved but never reduced.
template <>
struct dtype_traits<__nv_fp8_e4m3> : transport_only<__nv_fp8_e4m3> {
    static constexpr std::string_view name = "fp8_e4m3";
};
template <>
struct dtype_traits<__nv_fp8_e5m2> : transport_only<__nv_fp8_e5m2> {
    static constexpr std::string_view name = "fp8_e5m2";
};

}  // namespace hvd::inline v0
