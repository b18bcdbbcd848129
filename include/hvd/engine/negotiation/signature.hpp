// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <string>
#include <vector>

#include "../../protocol/comparison.hpp"

namespace hvd::inline v0::detail {

// The memory in which the tensors of a call lie.
enum class tensor_memory : std::uint8_t { host, device };

// The description of a tensor that a rank submits under a name. Ranks compare it, except for
// `bytes` and `priority`. It says all that a rank needs that has joined and does not have the
// tensor. The name is not in it.
struct signature {
    call_header call;  // its `name` and `text` are empty
    tensor_memory where = tensor_memory::host;
    std::int32_t priority = 0;  // the greatest of all ranks counts; higher goes first
    std::uint64_t bytes = 0;    // of this rank's tensor: fusion adds them up
    bool fuses = false;         // tensors of this kind may travel together

    // Ranks agree if nothing differs.
    field difference(const signature& other) const {
        if (where != other.where) return field::memory;
        return first_difference(call, other.call);
    }
    // Tensors that differ in nothing but their shape may travel together.
    bool travels_with(const signature& other) const {
        const call_header &a = call, &b = other.call;
        return fuses && other.fuses && where == other.where && a.kind == b.kind && a.id == b.id &&
               std::strcmp(a.type, b.type) == 0 && a.op == b.op && a.mode == b.mode &&
               a.root == b.root && a.prescale == b.prescale && a.postscale == b.postscale;
    }
};

// A retune is submitted and agreed on like a tensor. It belongs to no step, and is not counted.
inline bool is_retune(const signature& s) { return s.call.kind == collective::agree; }

}  // namespace hvd::inline v0::detail
