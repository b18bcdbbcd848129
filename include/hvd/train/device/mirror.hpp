// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../device/ranks.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0::detail {

// Copies of device tensors in pinned memory of the host.
template <class T>
class host_mirror {
public:
    template <class Views>
    host_mirror(device_session& session, const Views& tensors) : session_(session) {
        std::size_t count = 0;
        for (const auto& t : tensors) {
            on_device_.push_back(t);
            count += t.size();
        }
        const current_device here(session.device(), session.rank());
        memory_ = cuda_memory(cuda_memory::kind::pinned, count * sizeof(T), session.rank());
        T* at = reinterpret_cast<T*>(memory_.data());
        for (const auto& t : on_device_) {
            on_host_.push_back(view(at, t.size()));
            at += t.size();
        }
    }

    std::span<const tensor_view<T>> tensors() const { return on_host_; }

    // Copies all tensors to the host, behind the work of the stream, and waits.
    void fetch(cudaStream_t stream) {
        copy(stream, "copy to the host", [](const auto& host_tensor, const auto& device_tensor) {
            return std::pair<void*, const void*>(host_tensor.data(), device_tensor.data());
        });
    }
    // Copies all tensors back to the device, behind the work of the stream, and waits.
    void store(cudaStream_t stream) {
        copy(stream, "copy to the device", [](const auto& host_tensor, const auto& device_tensor) {
            return std::pair<void*, const void*>(device_tensor.data(), host_tensor.data());
        });
    }

private:
    template <class F>
    void copy(cudaStream_t stream, const char* label, F direction) {
        const current_device here(session_.device(), session_.rank());
        session_.guarded([&] {
            for (std::size_t i = 0; i < on_host_.size(); ++i) {
                const auto [to, from] = direction(on_host_[i], on_device_[i]);
                copy_async(to, from, on_host_[i].size() * sizeof(T), cudaMemcpyDefault, stream,
                           session_.rank());
            }
        });
        session_.wait(session_.mark(stream), label, session_.limit_for({}));
    }

    device_session& session_;
    std::vector<tensor_view<T, device>> on_device_;
    std::vector<tensor_view<T>> on_host_;
    cuda_memory memory_;
};

template <class Views>
host_mirror(device_session&, const Views&) -> host_mirror<
    typename std::remove_cvref_t<decltype(*std::data(std::declval<const Views&>()))>::value_type>;

// Multiplies a device tensor by a factor, on the stream.
template <class T>
void scale_on_device(const device_session& session, const tensor_view<T, device>& tensor,
                     double factor, cudaStream_t stream) {
    if (factor == 1 || tensor.size() == 0) return;
    constexpr copy_kind kind = copy_between(dtype_traits<T>::id, dtype_traits<T>::id, true);
    static_assert(kind != copy_kind::none, "hvd: only gradients of floats are scaled");
    if (!has_kernels())
        throw usage_error(session.rank(), no_kernels("a scale of gradients", session.rank()));
    const current_device here(session.device(), session.rank());
    launch_scale(reinterpret_cast<std::byte*>(tensor.data()), tensor.size(), kind, factor, stream,
                 session.rank());
}

}  // namespace hvd::inline v0::detail
