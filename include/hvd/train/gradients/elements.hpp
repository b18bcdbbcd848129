// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "../../core/concepts.hpp"
#include "../../kernel/pack.hpp"
#include "../../kernel/reduce.hpp"
#include "../tensors.hpp"

namespace hvd::inline v0::detail {

// The elements of a tensor of training. Their C++ type is known where the tensor is registered;
// behind that, code has these functions. Each takes n elements.
struct element_kind {
    dtype id;
    std::size_t bytes;  // of one
    std::string_view name;
    reduce_function sum, average;
    void (*zero)(std::byte*, std::size_t n);
    void (*scale)(std::byte*, std::size_t n, double factor);
    bool (*all_finite)(const std::byte*, std::size_t n);
    // Each result is rounded to the type of the elements.
    void (*add)(std::byte* to, const std::byte* other, std::size_t n);
    void (*subtract)(std::byte* from, const std::byte* other, std::size_t n);
    void (*put)(std::byte* one, double value);
    double (*get)(const std::byte* one);
    void (*to_doubles)(const std::byte* from, std::size_t n, double factor, double* to);
    void (*from_doubles)(const double* from, std::size_t n, double factor, std::byte* to);
    void (*to_floats)(const std::byte* from, std::size_t n, float* to);
};

// The functions of the elements that are T.
template <class T>
struct elements_of_type {
    static constexpr bool has_mean = reducible<T, op::average>;
    static_assert(has_mean,
                  "hvd: gradients are averaged: they are of float, double, hvd::float16, "
                  "hvd::bfloat16, or of another type that has fractions");

    static T* of(std::byte* p) { return reinterpret_cast<T*>(p); }
    static const T* of(const std::byte* p) { return reinterpret_cast<const T*>(p); }

    static std::span<T> all(std::byte* p, std::size_t n) { return {of(p), n}; }

    static void zero(std::byte* p, std::size_t n) {
        for (T& x : all(p, n)) x = T(0);
    }
    static void scale(std::byte* p, std::size_t n, double factor) {
        for (T& x : all(p, n)) x = from_double<T>(as_double(x) * factor);
    }
    static bool all_finite(const std::byte* p, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i)
            if (!is_finite_element(of(p)[i])) return false;
        return true;
    }
    static void add(std::byte* to, const std::byte* other, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i)
            of(to)[i] = from_double<T>(as_double(of(to)[i]) + as_double(of(other)[i]));
    }
    static void subtract(std::byte* from, const std::byte* other, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i)
            of(from)[i] = from_double<T>(as_double(of(from)[i]) - as_double(of(other)[i]));
    }
    static void put(std::byte* one, double value) { *of(one) = from_double<T>(value); }
    static double get(const std::byte* one) { return as_double(*of(one)); }

    static void to_doubles(const std::byte* from, std::size_t n, double factor, double* to) {
        for (std::size_t i = 0; i < n; ++i) to[i] = as_double(of(from)[i]) * factor;
    }
    static void from_doubles(const double* from, std::size_t n, double factor, std::byte* to) {
        for (std::size_t i = 0; i < n; ++i) of(to)[i] = from_double<T>(from[i] * factor);
    }
    static void to_floats(const std::byte* from, std::size_t n, float* to) {
        for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(as_double(of(from)[i]));
    }

    static constexpr element_kind kind = {.id = dtype_traits<T>::id,
                                          .bytes = sizeof(T),
                                          .name = dtype_name<T>(),
                                          .sum = &reduce_elements<T, op::sum>,
                                          .average = &reduce_elements<T, op::average>,
                                          .zero = &zero,
                                          .scale = &scale,
                                          .all_finite = &all_finite,
                                          .add = &add,
                                          .subtract = &subtract,
                                          .put = &put,
                                          .get = &get,
                                          .to_doubles = &to_doubles,
                                          .from_doubles = &from_doubles,
                                          .to_floats = &to_floats};
};

// A tensor without gaps on the host or on a device.
class flat_tensor {
public:
    flat_tensor() = default;
    template <class T, class Space>
    explicit flat_tensor(const tensor_view<T, Space>& view)
        : data_(reinterpret_cast<std::byte*>(view.data())),
          size_(view.size()),
          kind_(&elements_of_type<T>::kind) {}

    flat_tensor(std::byte* data, std::size_t size, const element_kind& kind)
        : data_(data), size_(size), kind_(&kind) {}

    std::byte* data() const { return data_; }
    std::byte* at(std::size_t element) const { return data_ + element * kind_->bytes; }
    std::size_t size() const { return size_; }  // in elements
    std::size_t bytes() const { return size_ == 0 ? 0 : size_ * kind_->bytes; }
    const element_kind& kind() const { return *kind_; }

    // On the host.
    void zero() const {
        if (size_ > 0) kind_->zero(data_, size_);
    }
    void scale(double factor) const {
        if (size_ > 0 && !is_one(factor)) kind_->scale(data_, size_, factor);
    }
    bool all_finite() const { return size_ == 0 || kind_->all_finite(data_, size_); }

    tensor_ref ref() const {
        tensor_ref all{};
        all.data = data_;
        all.count = all.extents[0] = size_;
        all.element_bytes = kind_->bytes;
        all.id = kind_->id;
        all.type = kind_->name;
        all.dimensions = 1;
        all.dense = true;
        all.steps[0] = std::ptrdiff_t(kind_->bytes);
        return all;
    }

    template <class T, class Space = host>
    tensor_view<T, Space> as() const {
        return {reinterpret_cast<T*>(data_), {size_}};
    }

private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    const element_kind* kind_ = nullptr;
};

}  // namespace hvd::inline v0::detail
