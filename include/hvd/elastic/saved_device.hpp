// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>

#include "../platform/cuda_api.hpp"
#include "../train/device/state.hpp"
#include "saved.hpp"

namespace hvd::inline v0 {

namespace detail {

// Copies between the host and tensors, behind all earlier work of their devices.
class saved_copies {
public:
    // `tensor` is one of the two.
    void add(void* to, const void* from, std::size_t bytes, const void* tensor) {
        if (bytes == 0) return;
        go_to_device_of(tensor);
        copy_async(to, from, bytes, cudaMemcpyDefault, cudaStreamLegacy, -1);
    }
    void finish() {
        if (here_) check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize", -1);
    }

private:
    void go_to_device_of(const void* tensor) {
        cudaPointerAttributes found{};
        check_cuda(cudaPointerGetAttributes(&found, tensor), "cudaPointerGetAttributes", -1);
        if (found.device < 0)  // memory of the host that all GPUs read
            check_cuda(cudaGetDevice(&found.device), "cudaGetDevice", -1);
        if (here_ && found.device == device_) return;
        finish();
        device_ = found.device;
        here_.reset();
        here_.emplace(device_, -1);
        check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize", -1);
    }

    capture_relaxed relaxed_;
    std::optional<current_device> here_;
    int device_ = -1;
};

// NCCL does not compare the calls of its ranks.
template <class Comm, class Tensors>
void agree_on_sizes(Comm& comm, const Tensors& tensors) {
    message sizes;
    for (const auto& t : tensors) sizes += text(t.size(), " ");
    agree_on_values(access::session_of(comm), "elastic state", never,
                    [&](auto say) { say("sizes of device tensors", sizes); });
}

}  // namespace detail

namespace elastic {

// The copies of device tensors are in the host's memory. Those of NCCL's ranks go over NCCL, others
// by the host.
template <transportable T, std::size_t Rank>
struct saved<std::vector<tensor_view<T, device, Rank, contiguous>>> {
    using tensors = std::vector<tensor_view<T, device, Rank, contiguous>>;
    using copy = std::vector<std::vector<T>>;
    static void take(const tensors& object, copy& to) {
        detail::saved_copies copies;
        to.resize(object.size());
        for (std::size_t i = 0; i < object.size(); ++i) {
            to[i].resize(object[i].size());
            copies.add(to[i].data(), object[i].data(), object[i].size() * sizeof(T),
                       object[i].data());
        }
        copies.finish();
    }
    static void put_back(const copy& from, const tensors& object) {
        detail::check_saved_list(from.size(), object.size());
        for (std::size_t i = 0; i < from.size(); ++i)
            detail::check_saved_view(from[i].size(), object[i].size());
        detail::saved_copies copies;
        for (std::size_t i = 0; i < from.size(); ++i)
            copies.add(object[i].data(), from[i].data(), from[i].size() * sizeof(T),
                       object[i].data());
        copies.finish();
    }
    template <class Comm>
    static void synchronize(Comm& comm, const tensors& object, root from) {
        detail::agree_on_sizes(comm, object);
        if (object.empty()) return;
        if constexpr (requires { comm.gpus(); }) {
            broadcast_parameters(comm.gpus(), object, from);
        } else {
            copy all;
            take(object, all);
            broadcast_parameters(comm, all, from);
            put_back(all, object);
        }
    }
};

template <transportable T, std::size_t Rank>
struct saved<tensor_view<T, device, Rank, contiguous>> {
    using tensor = tensor_view<T, device, Rank, contiguous>;
    using list = saved<std::vector<tensor>>;
    using copy = typename list::copy;
    static void take(const tensor& object, copy& to) { list::take({object}, to); }
    static void put_back(const copy& from, const tensor& object) { list::put_back(from, {object}); }
    template <class Comm>
    static void synchronize(Comm& comm, const tensor& object, root from) {
        list::synchronize(comm, {object}, from);
    }
};

}  // namespace elastic
}  // namespace hvd::inline v0
