// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/error.hpp"
#include "../../core/lean/text.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0 {

/// A file could not be written or read, or its contents are wrong. `what()` begins with its path.
class checkpoint_error : public error {
public:
    using error::error;
};

/// Text beside the tensors of a file.
using checkpoint_metadata = std::map<std::string, std::string>;

/// A tensor with its name in a file. It owns nothing.
struct named_tensor {
    std::string name;
    dtype type = dtype::float32;
    std::vector<std::size_t> shape;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
};

namespace detail {

struct safetensors_type {
    dtype type;
    std::string_view name;
    std::size_t bytes;
};

inline constexpr safetensors_type safetensors_types[] = {
    {dtype::int8, "I8", 1},     {dtype::int16, "I16", 2},     {dtype::int32, "I32", 4},
    {dtype::int64, "I64", 8},   {dtype::uint8, "U8", 1},      {dtype::uint16, "U16", 2},
    {dtype::uint32, "U32", 4},  {dtype::uint64, "U64", 8},    {dtype::boolean, "BOOL", 1},
    {dtype::float16, "F16", 2}, {dtype::bfloat16, "BF16", 2}, {dtype::float32, "F32", 4},
    {dtype::float64, "F64", 8}};

// Types of the format that hvd has no elements for: their tensors lie in files, and are not loaded.
struct foreign_safetensors_type {
    std::string_view name;
    std::size_t bits;
};
inline constexpr foreign_safetensors_type foreign_safetensors_types[] = {
    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"C64", 64}};

template <class Key>
const safetensors_type* find_safetensors_type(Key key) {
    for (const auto& t : safetensors_types) {
        if constexpr (std::is_same_v<Key, dtype>) {
            if (t.type == key) return &t;
        } else if (t.name == key) {
            return &t;
        }
    }
    return nullptr;
}

template <class... Parts>
[[gnu::cold, noreturn]] void refuse_file(std::string_view path, const Parts&... parts) {
    throw checkpoint_error(-1, text(path, ": ", parts...));
}

// Other readers would take the name up to its first NUL.
inline void require_no_nul(std::string_view path, std::string_view what, const std::string& name) {
    if (name.find('\0') != std::string::npos)
        refuse_file(path, what, " has a NUL: \"", name.c_str(), "\" and ",
                    name.size() - std::string_view(name.c_str()).size() - 1, " more bytes");
}

}  // namespace detail

/// Makes a named_tensor of a tensor.
template <class X>
    requires writable<X>
named_tensor named(std::string name, X&& tensor) {
    const auto shaped = detail::to_view(tensor);
    const auto flat = detail::flat_view(tensor);
    using T = typename decltype(flat)::value_type;
    return {std::move(name),
            dtype_traits<T>::id,
            {shaped.shape().begin(), shaped.shape().end()},
            reinterpret_cast<std::byte*>(flat.data()),
            flat.size() * sizeof(T)};
}

}  // namespace hvd::inline v0
