// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <vector>

#include <hvd/core/tensor_view.hpp>

namespace device_test {

// A tensor in device memory, or, if managed, in memory that the host sees as well.
template <class T>
class tensor {
public:
    tensor(std::initializer_list<T> values, bool managed = false)
        : tensor(std::vector<T>(values), managed) {}
    explicit tensor(const std::vector<T>& values, bool managed = false) : count_(values.size()) {
        if (managed)
            cudaMallocManaged(reinterpret_cast<void**>(&data_), count_ * sizeof(T),
                              cudaMemAttachGlobal);
        else cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(T));
        cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    }
    tensor(const tensor&) = delete;
    ~tensor() { cudaFree(data_); }

    T* data() const { return data_; }
    auto view() const { return hvd::device_view(data_, count_); }
    std::vector<T> values() const {
        std::vector<T> result(count_);
        cudaMemcpy(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
        return result;
    }

private:
    T* data_ = nullptr;
    std::size_t count_;
};

// Small integers, so that every order of summing is exact.
template <class T>
std::vector<T> numbers(std::size_t count, int rank) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(T(float(int(i % 11) * (rank + 1))));
    return values;
}

}  // namespace device_test
