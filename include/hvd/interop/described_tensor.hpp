// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "../core/error.hpp"
#include "../core/half.hpp"
#include "../core/lean/text.hpp"
#include "../core/viewable.hpp"

namespace hvd::inline v0::detail {

// A tensor whose element type, memory and shape are known only at run time.
struct described_tensor {
    std::string_view library;  // the library that made it, for errors
    void* data;
    dtype type;
    bool host_reads;    // the host can read the memory
    bool device_reads;  // a CUDA device can
    std::span<const std::int64_t> shape;
    std::span<const std::int64_t> steps;  // in elements; empty: row-major without gaps
};

template <class... Parts>
[[gnu::cold, noreturn]] void refuse_tensor(const described_tensor& t, const Parts&... parts) {
    throw usage_error(-1, text("hvd: this tensor of ", t.library, " ", parts...));
}

// Returns the number of elements. It checks the description, since another library wrote it.
inline std::size_t count_of(const described_tensor& t) {
    std::size_t count = 1;
    for (const std::int64_t n : t.shape)
        if (n < 0) refuse_tensor(t, "has a dimension of ", n, " elements");
    for (const std::int64_t n : t.shape)
        if (__builtin_mul_overflow(count, std::size_t(n), &count) || count > SIZE_MAX / 16)
            refuse_tensor(t, "has more elements than there is memory");
    if (count > 0 && t.data == nullptr)
        refuse_tensor(t, "has ", count, " elements at a null pointer");
    return count;
}

inline bool without_gaps(const described_tensor& t) {
    if (t.steps.empty()) return true;
    for (const std::int64_t n : t.shape)
        if (n == 0) return true;
    std::int64_t step = 1;
    for (std::size_t d = t.shape.size(); d-- > 0;) {
        if (t.shape[d] != 1 && t.steps[d] != step) return false;
        step *= t.shape[d];
    }
    return true;
}

template <class T, class Space>
void require_type(const described_tensor& t) {
    if (t.type != dtype_traits<std::remove_const_t<T>>::id)
        refuse_tensor(t, "has elements of ", dtype_name(t.type), ", expected ",
                      dtype_name<std::remove_const_t<T>>());
    if constexpr (std::is_same_v<Space, host>) {
        if (!t.host_reads) refuse_tensor(t, "is in device memory, expected hvd::host");
    } else {
        if (!t.device_reads) refuse_tensor(t, "is in host memory, expected hvd::device");
    }
}

template <class T, class Space>
tensor_view<T, Space> flat_view_of(const described_tensor& t) {
    require_type<T, Space>(t);
    const std::size_t count = count_of(t);
    if (!without_gaps(t))
        refuse_tensor(t, "has gaps or another order; name its number of dimensions");
    return {static_cast<T*>(t.data), {count}};
}

template <class T, class Space, std::size_t Rank>
tensor_view<T, Space, Rank, strided> strided_view_of(const described_tensor& t) {
    require_type<T, Space>(t);
    if (t.shape.size() != Rank)
        refuse_tensor(t, "has ", t.shape.size(), " dimensions, expected ", Rank);
    count_of(t);
    extents<Rank> shape{};
    std::array<std::ptrdiff_t, Rank> steps{};
    std::ptrdiff_t step = 1;
    for (std::size_t d = Rank; d-- > 0;) {
        shape[d] = std::size_t(t.shape[d]);
        steps[d] = t.steps.empty() ? step : std::ptrdiff_t(t.steps[d]);
        step *= std::ptrdiff_t(t.shape[d]);
    }
    return {static_cast<T*>(t.data), shape, steps};
}

// Calls f(T()) with the element type of the tensor. Complex types are left out, since not every
// operation takes them.
template <class F>
decltype(auto) with_element_of(const described_tensor& t, F&& f) {
    switch (t.type) {
        case dtype::int8: return f(std::int8_t());
        case dtype::int16: return f(std::int16_t());
        case dtype::int32: return f(std::int32_t());
        case dtype::int64: return f(std::int64_t());
        case dtype::uint8: return f(std::uint8_t());
        case dtype::uint16: return f(std::uint16_t());
        case dtype::uint32: return f(std::uint32_t());
        case dtype::uint64: return f(std::uint64_t());
        case dtype::boolean: return f(bool());
        case dtype::float16: return f(float16());
        case dtype::bfloat16: return f(bfloat16());
        case dtype::float32: return f(float());
        case dtype::float64: return f(double());
        default:
            refuse_tensor(t, "has elements of ", dtype_name(t.type),
                          ", for which there is no view");
    }
}

// Calls f(view) with a flat view of the tensor's element type.
template <class Space, class F>
decltype(auto) with_flat_view(const described_tensor& t, F&& f) {
    return with_element_of(
        t, [&]<class T>(T) -> decltype(auto) { return f(flat_view_of<T, Space>(t)); });
}

}  // namespace hvd::inline v0::detail
