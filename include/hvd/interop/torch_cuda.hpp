// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// LibTorch's tensors in CUDA memory: what interop/torch.hpp needs for communicators of devices. It
// needs a CUDA build of LibTorch. Include nccl.hpp or cuda.hpp as well.
#if !__has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#define C10_CUDA_NO_CMAKE_CONFIGURE_FILE  // a build of LibTorch without CUDA: it can be compiled
#endif
#include <c10/cuda/CUDAStream.h>

#include "../train/device/state.hpp"
#include "torch.hpp"

namespace hvd::inline v0 {

/// LibTorch's current stream on the device of a communicator, for `step(torch_stream(gpus))` and
/// the like.
template <detail::device_communicator Comm>
cudaStream_t torch_stream(const Comm& comm) {
    const int device = detail::device_access::session_of(comm)->device();
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

namespace detail {

template <device_communicator Comm>
struct torch_stream<Comm> {
    static cudaStream_t of(const torch::Tensor& tensor) {
        return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
    }

    // Tells LibTorch's allocator that the communicator's own stream uses the tensor, so that its
    // memory serves nobody else before that stream is done with it. The allocator uses the stream
    // when the tensor ends, maybe after the communicator.
    static void used_by(const torch::Tensor& tensor, const Comm& comm) {
        device_session& session = *device_access::session_of(comm);
        const auto device = static_cast<c10::DeviceIndex>(session.device());
        tensor.record_stream(
            c10::cuda::getStreamFromExternal(session.lend_stream(), device).unwrap());
    }
};

}  // namespace detail

/// Copies the root's optimizer state and options to all ranks of a communicator of devices, in the
/// form that LibTorch writes to files. The host waits.
template <detail::device_communicator Comm>
void broadcast_optimizer_state(Comm& comm, torch::optim::Optimizer& optimizer,
                               root from = root{0}) {
    detail::host_calls calls(comm);
    const auto device =
        static_cast<c10::DeviceIndex>(detail::device_access::session_of(comm)->device());
    detail::broadcast_torch_state(calls, optimizer, from, torch::Device(torch::kCUDA, device));
}

}  // namespace hvd::inline v0
