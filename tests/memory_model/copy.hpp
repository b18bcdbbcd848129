// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstring>

#include "../core/tuning.hpp"
#include "simd/stream.hpp"
#include "simd/vector.hpp"

#include <model.hpp>

// Stands in for hvd's header of this name: it tells the simulation which bytes are read and which
// are written.
namespace hvd::inline v0::detail {

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    memory_model::is_read(from, bytes);
    memory_model::is_written(to, bytes);
    if (bytes > 0) std::memcpy(to, from, bytes);
}

enum class store_kind : std::uint8_t { vectors, string, streamed };
constexpr int store_kinds = 1;

inline void store_bytes(store_kind, std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes(to, from, bytes);
}

}  // namespace hvd::inline v0::detail
