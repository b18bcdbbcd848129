// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <dlpack/dlpack.h>

#include <utility>

#include "described_tensor.hpp"

namespace hvd::inline v0 {
namespace detail {

constexpr std::uint8_t dlpack_bool = 6;  // its header has no name for it before DLPack 0.8

inline dtype dtype_of(const DLDataType& type) {
    constexpr dtype none = dtype::user;
    const auto sized = [&](dtype b8, dtype b16, dtype b32, dtype b64) {
        return type.bits == 8    ? b8
               : type.bits == 16 ? b16
               : type.bits == 32 ? b32
               : type.bits == 64 ? b64
                                 : none;
    };
    if (type.lanes != 1) return none;
    switch (type.code) {
        case kDLInt: return sized(dtype::int8, dtype::int16, dtype::int32, dtype::int64);
        case kDLUInt: return sized(dtype::uint8, dtype::uint16, dtype::uint32, dtype::uint64);
        case kDLFloat: return sized(none, dtype::float16, dtype::float32, dtype::float64);
        case kDLBfloat: return sized(none, dtype::bfloat16, none, none);
        case kDLComplex:
            if (type.bits == 128) return dtype::complex128;
            return sized(none, none, none, dtype::complex64);
        case dlpack_bool: return sized(dtype::boolean, none, none, none);
        default: return none;
    }
}

inline described_tensor describe(const DLTensor& t) {
    const auto where = t.device.device_type;
    const auto rank = std::size_t(t.ndim > 0 && t.shape != nullptr ? t.ndim : 0);
    described_tensor d{"DLPack",
                       t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset,
                       dtype_of(t.dtype),
                       false,
                       false,
                       {t.shape, rank},
                       {}};
    if (t.strides != nullptr) d.steps = {t.strides, rank};
    d.device_reads = where == kDLCUDA || where == kDLCUDAManaged;
    d.host_reads = where == kDLCPU || where == kDLCUDAHost || where == kDLCUDAManaged;
    if (rank != std::size_t(t.ndim))
        refuse_tensor(d, "has ", t.ndim, " dimensions without a shape");
    if (d.type == dtype::user)
        refuse_tensor(d, "has elements of code ", int(t.dtype.code), ", ", int(t.dtype.bits),
                      " bits and ", int(t.dtype.lanes), " lanes, which are none of hvd's");
    if (!d.device_reads && !d.host_reads)
        refuse_tensor(d, "is on a device of type ", int(where),
                      ", which is neither the host nor CUDA's");
    return d;
}

}  // namespace detail

/// Views a DLPack tensor (of NumPy, PyTorch, JAX, CuPy, …) in its own memory, as one dimension.
///
/// T and Space (`hvd::host`, `hvd::device`) are the element type and memory that the caller
/// expects. The tensor must be row-major without gaps. For others `dlpack_view<T, Space, Rank>`
/// gives a strided view, which collectives pack.
/// **Buffers**: as in DLPack, which does not say who may write. The tensor outlives the view.
/// @throws hvd::usage_error if its elements, memory or layout differ. Source: DLPack's C ABI.
/// @code
/// world.allreduce(hvd::dlpack_view<float>(managed->dl_tensor), hvd::average);
/// @endcode
template <class T, class Space = host>
tensor_view<T, Space> dlpack_view(const DLTensor& tensor) {
    return detail::flat_view_of<T, Space>(detail::describe(tensor));
}

/// Views the tensor in its own number of dimensions. Gaps are allowed.
template <class T, class Space, std::size_t Rank>
tensor_view<T, Space, Rank, strided> dlpack_view(const DLTensor& tensor) {
    return detail::strided_view_of<T, Space, Rank>(detail::describe(tensor));
}

/// Calls `f(view)` with a flat view of the tensor's element type. Complex numbers have no minimum,
/// so they are left out; name them with `dlpack_view<std::complex<float>>`.
template <class Space = host, class F>
decltype(auto) with_dlpack_view(const DLTensor& tensor, F&& f) {
    return detail::with_flat_view<Space>(detail::describe(tensor), f);
}

/// Owns a tensor that another library handed over. The destructor runs the tensor's deleter.
class dlpack_tensor {
public:
    dlpack_tensor() = default;
    /// @throws hvd::usage_error for a null pointer.
    explicit dlpack_tensor(DLManagedTensor* tensor) : tensor_(tensor) {
        if (tensor == nullptr) throw usage_error(-1, "hvd: a dlpack_tensor of a null pointer");
    }
    dlpack_tensor(dlpack_tensor&& other) noexcept
        : tensor_(std::exchange(other.tensor_, nullptr)) {}
    dlpack_tensor& operator=(dlpack_tensor&& other) noexcept {
        dlpack_tensor taken(std::move(other));
        std::swap(tensor_, taken.tensor_);
        return *this;
    }
    ~dlpack_tensor() {
        if (tensor_ != nullptr && tensor_->deleter != nullptr) tensor_->deleter(tensor_);
    }

    /// True if it holds a tensor.
    explicit operator bool() const noexcept { return tensor_ != nullptr; }
    /// The tensor. The object must not be empty.
    const DLTensor& operator*() const noexcept { return tensor_->dl_tensor; }

private:
    DLManagedTensor* tensor_ = nullptr;
};

/// Shows a view of hvd as a DLTensor. The DLTensor lies in this object, and is valid as long as
/// this object and the view's memory.
template <std::size_t Rank>
class dlpack_export {
public:
    /// `device` is the number of the CUDA device of a device view.
    template <class T, class Space, class Layout>
        requires(!std::is_const_v<T>)
    explicit dlpack_export(const tensor_view<T, Space, Rank, Layout>& view, int device = 0)
        : tensor_{} {
        using id = dtype_traits<T>;
        static_assert(id::id <= dtype::complex128, "hvd: DLPack has no name for this element type");
        constexpr bool on_host = std::is_same_v<Space, host>;
        tensor_.data = view.data();
        tensor_.device = {on_host ? kDLCPU : kDLCUDA, on_host ? 0 : device};
        tensor_.ndim = int(Rank);
        tensor_.dtype = {code(id::id), std::uint8_t(8 * sizeof(T)), 1};
        for (std::size_t d = 0; d < Rank; ++d) {
            shape_[d] = std::int64_t(view.extent(d));
            steps_[d] = std::int64_t(view.stride(d));
        }
    }

    /// The tensor. The reference is valid until this object moves or dies.
    const DLTensor& operator*() noexcept {
        tensor_.shape = shape_.data();
        tensor_.strides = steps_.data();
        return tensor_;
    }

private:
    static constexpr std::uint8_t code(dtype type) {
        if (type <= dtype::int64) return kDLInt;
        if (type <= dtype::uint64) return kDLUInt;
        if (type == dtype::boolean) return detail::dlpack_bool;
        if (type >= dtype::complex64) return kDLComplex;
        return type == dtype::bfloat16 ? kDLBfloat : kDLFloat;
    }

    std::array<std::int64_t, Rank> shape_{};
    std::array<std::int64_t, Rank> steps_{};
    DLTensor tensor_;
};

}  // namespace hvd::inline v0
