// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstring>

#include "cuda_api.hpp"

namespace hvd::inline v0::detail {

// The UUID of a GPU, or of a slice of one (MIG). It is the same in all processes, while a device
// has another number where CUDA_VISIBLE_DEVICES hides some. Slices share the bus number.
struct gpu_id {
    unsigned char bytes[16] = {};

    static gpu_id of(int device, int rank) {
        cudaDeviceProp properties{};
        check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", rank);
        gpu_id id;
        static_assert(sizeof id.bytes == sizeof properties.uuid);
        std::memcpy(id.bytes, &properties.uuid, sizeof id.bytes);
        return id;
    }

    // Returns the UUID as NVIDIA's tools write it.
    message name() const {
        constexpr const char* digits = "0123456789abcdef";
        message written = "GPU";
        for (std::size_t i = 0; i < sizeof bytes; ++i) {
            const char two[] = {digits[bytes[i] / 16], digits[bytes[i] % 16], 0};
            written += text(i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", two);
        }
        return written;
    }
};

}  // namespace hvd::inline v0::detail
