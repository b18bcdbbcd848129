// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/core/half.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "emulation.hpp"

namespace emulation {

// Calls `f` with a value of NCCL's element type with this number. fp8 is moved, never reduced.
template <class F>
auto with_type(ncclDataType_t type, F&& f) {
    switch (type) {
        case ncclInt8: return f(std::int8_t{});
        case ncclUint8: return f(std::uint8_t{});
        case ncclInt32: return f(std::int32_t{});
        case ncclUint32: return f(std::uint32_t{});
        case ncclInt64: return f(std::int64_t{});
        case ncclUint64: return f(std::uint64_t{});
        case ncclFloat16: return f(hvd::float16{});
        case ncclBfloat16: return f(hvd::bfloat16{});
        case ncclFloat32: return f(float{});
        case ncclFloat64: return f(double{});
        default: return f(std::uint8_t{});
    }
}

inline std::size_t size_of(ncclDataType_t type) {
    return with_type(type, [](auto zero) { return sizeof zero; });
}

// Integers wrap, as they do on the device.
template <class T>
T combined(ncclRedOp_t op, T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        const auto x = std::uint64_t(a), y = std::uint64_t(b);
        return op == ncclProd  ? T(x * y)
               : op == ncclMax ? std::max(a, b)
               : op == ncclMin ? std::min(a, b)
                               : T(x + y);
    } else {
        return op == ncclProd  ? T(a * b)
               : op == ncclMax ? std::max(a, b)
               : op == ncclMin ? std::min(a, b)
                               : T(a + b);
    }
}

// Reduces in rank order and rounds to the element type at each step. Each rank's input is
// multiplied by its scalar first. The result is separate memory, since it may replace an input.
template <class T>
std::vector<std::byte> reduced(ncclRedOp_t op, const std::vector<const std::byte*>& inputs,
                               const std::vector<double>& scalars, std::size_t count) {
    std::vector<std::byte> result(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
        T all{};
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
            T x;
            std::memcpy(&x, inputs[rank] + i * sizeof(T), sizeof x);
            if (scalars[rank] != 1) x = T(x * T(scalars[rank]));
            all = rank == 0 ? x : combined(op, all, x);
        }
        std::memcpy(result.data() + i * sizeof(T), &all, sizeof all);
    }
    return result;
}

}  // namespace emulation
