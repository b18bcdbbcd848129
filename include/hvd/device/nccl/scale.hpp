// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <bit>

#include "../../core/lean/finite.hpp"
#include "../../kernel/cuda/tile.hpp"
#include "../../platform/nccl_api.hpp"
#include "../call.hpp"

namespace hvd::inline v0::detail {

// The scales of a sum. NCCL multiplies before the sum, by a number of the elements' own type. hvd's
// kernel multiplies after it, in float.
struct nccl_scale {
    double before = 1, after = 1;
};

// Returns the power of two at or below |factor|, or 1 if there is none.
inline double power_below(double factor) {
    const std::uint64_t exponent = std::bit_cast<std::uint64_t>(factor) & 0x7ff0000000000000u;
    return exponent == 0 || exponent == 0x7ff0000000000000u ? 1 : std::bit_cast<double>(exponent);
}

// Returns the nearest power to it that every 16-bit float type holds.
inline double plain_power(double factor) {
    const double power = power_below(factor);
    return power < 0x1p-14 ? 0x1p-14 : power > 0x1p15 ? 0x1p15 : power;
}

// True if the type in which the elements are multiplied holds the factor.
inline bool holds(dtype id, double factor) {
    const double held = id == dtype::float64 ? factor : double(float(factor));
    return is_finite(held) && (held != 0 || factor == 0);
}

// A mean is a sum whose factor follows it, in float: NVLink SHARP and symmetric kernels take sums
// only. Float16 is scaled down by a power of two before the sum, so that it does not overflow. That
// loses subnormals. In a program without kernels NCCL multiplies before the sum, by a number of the
// elements' type: a 16-bit float holds the powers of two.
inline nccl_scale scale_of(const collective_call& call, int size, int rank, const char* label) {
    const bool average = call.entry.op == op::average::id;
    const double factor = call.entry.prescale * call.entry.postscale / (average ? size : 1);
    if (is_one(factor)) return {};
    const auto refuse = [&](const auto&... why) {
        throw usage_error(rank, text("hvd: ", label, " on rank ", rank, ": ", why...));
    };
    const bool is_float = call.entry.id >= dtype::float16 && call.entry.id <= dtype::float64;
    if (!is_float || !(average || call.entry.op == op::sum::id))
        refuse(op_names[call.entry.op], " of ", dtype_name(call.entry.id), " can't be scaled by ",
               factor, " by NCCL: only sums and averages of floats are");
    if (!holds(call.entry.id, factor))
        refuse("the factor ", factor, " is out of the range in which ", dtype_name(call.entry.id),
               " is multiplied");
    const bool is_power = factor == plain_power(factor);
    if (!has_kernels()) {
        if (call.element_bytes > 2 || is_power) return {factor, 1};
        throw usage_error(rank,
                          no_kernels(text(label, ", whose factor ", factor, " NCCL would round to ",
                                          dtype_name(call.entry.id), ","),
                                     rank));
    }
    if (call.entry.id != dtype::float16 || size == 1) return {1, factor};
    if (is_power && factor < 1) return {factor, 1};
    const double wanted =
        power_below(call.entry.prescale) * (average ? factor_before_mean(call.entry.id, size) : 1);
    const double before = wanted < 1 ? plain_power(wanted) : 1;
    return {before, factor / before};
}

// A number in the element type, as NCCL needs it.
class nccl_scalar {
public:
    nccl_scalar(dtype id, double value) {
        switch (id) {
            case dtype::float16: set(float16(float(value))); break;
            case dtype::bfloat16: set(bfloat16(float(value))); break;
            case dtype::float32: set(float(value)); break;
            default: set(value); break;
        }
    }
    void* data() { return bytes_; }

private:
    template <class T>
    void set(T value) {
        std::memcpy(bytes_, &value, sizeof value);
    }

    alignas(8) std::byte bytes_[8] = {};
};

// An operation of NCCL that multiplies before it sums.
struct scaled_sum {
    dtype id;
    double factor;
    ncclRedOp_t op;
};

// The operation of NCCL for a call.
struct scaled_operation {
    ncclRedOp_t op = ncclSum;
    double after = 1;  // the factor for the result after NCCL is done
    bool scales = false;
};

inline void scale_result(const collective_call& call, double factor, cudaStream_t stream,
                         int rank) {
    if (call.entry.kind == collective::reduce && call.entry.root != rank) return;
    launch_scale(call.out, call.count_of(rank), copy_between(call.entry.id, call.entry.id, true),
                 factor, stream, rank);
}

}  // namespace hvd::inline v0::detail
