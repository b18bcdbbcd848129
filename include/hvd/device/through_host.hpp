// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <type_traits>

#include "../core/viewable.hpp"
#include "../platform/cuda_memory.hpp"

namespace hvd::inline v0 {

/// A device tensor's elements in pinned memory of the host, for calls of a host's communicator.
/// `through_host` makes it.
///
/// The constructor copies the elements to the host. Results go back with `copy_back()`, or in the
/// destructor unless an exception is unwinding. The elements of a const tensor do not go back. It
/// is not movable, since it is for the calls beside it.
template <class T, std::size_t Rank = 1>
class host_copy {
public:
    using value_type = std::remove_const_t<T>;

    /// @throws hvd::cuda_error
    explicit host_copy(const tensor_view<T, device, Rank>& x)
        : on_device_(x), memory_(detail::cuda_memory::kind::pinned, x.size() * sizeof(T), -1) {
        copy(memory_.data(), x.data(), cudaMemcpyDeviceToHost);
    }
    host_copy(const host_copy&) = delete;
    host_copy& operator=(const host_copy&) = delete;
    /// @throws hvd::cuda_error if the copy back fails and nothing else is unwinding.
    ~host_copy() noexcept(false) {
        if constexpr (!std::is_const_v<T>)
            if (!is_back_ && std::uncaught_exceptions() == exceptions_) copy_back();
    }

    /// The elements in the host's memory.
    value_type* data() const noexcept { return reinterpret_cast<value_type*>(memory_.data()); }
    /// The number of elements, in all and in each dimension of the tensor.
    std::size_t size() const noexcept { return on_device_.size(); }
    const extents<Rank>& shape() const noexcept { return on_device_.shape(); }

    /// Copies the elements back to the device, and returns when they are there. One call is enough.
    void copy_back()
        requires(!std::is_const_v<T>)
    {
        is_back_ = true;
        copy(on_device_.data(), memory_.data(), cudaMemcpyHostToDevice);
    }

private:
    void copy(void* to, const void* from, cudaMemcpyKind direction) {
        const detail::capture_relaxed relaxed;
        detail::copy_async(to, from, size() * sizeof(T), direction, cudaStreamLegacy, -1);
        detail::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize", -1);
    }

    tensor_view<T, device, Rank> on_device_;
    detail::cuda_memory memory_;
    bool is_back_ = false;
    int exceptions_ = std::uncaught_exceptions();
};

template <class T, std::size_t Rank>
struct view_traits<host_copy<T, Rank>> {
    static constexpr bool borrowed = false;
    static auto view(const host_copy<T, Rank>& x) {
        return tensor_view<T, host, Rank>(x.data(), x.shape());
    }
};

/// Views a device tensor for one call of a host's communicator, with any backend. It corresponds to
/// Horovod's `device_dense='/cpu:0'`.
///
/// The elements are copied on the legacy default stream, both ways: after what it and streams that
/// wait for it have been given. Elements from other streams must be ready. Name the object for a
/// call that writes, so that the result can go back. A temporary is enough for calls that only
/// read.
/// @snippet tests/device/snippets.cpp through_host
template <class T, std::size_t Rank>
host_copy<T, Rank> through_host(const tensor_view<T, device, Rank>& x) {
    return host_copy<T, Rank>(x);
}

}  // namespace hvd::inline v0
