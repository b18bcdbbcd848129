// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cmath>
#include <memory>

#include "device_support.hpp"

namespace device_test {

// A model of several tensors. The gradient of an element depends on its value, and on the rank, the
// step and the pass. All numbers are small multiples of powers of two.
struct model_numbers {
    std::vector<std::size_t> sizes = {1, 5, 3000, 33};

    template <class T>
    std::vector<T> values(std::size_t i) const {
        std::vector<T> x;
        for (std::size_t k = 0; k < sizes[i]; ++k)
            x.push_back(T(float(int((k * 7 + i) % 13)) / 8 - 0.5f));
        return x;
    }

    template <class T>
    static void add_gradient(const T* value, T* gradient, std::size_t n, std::size_t i, int rank,
                             int step, int pass) {
        for (std::size_t k = 0; k < n; ++k) {
            const double pull =
                double(int((k + i + std::size_t(3 * rank + 5 * step + 7 * pass)) % 11)) / 16 - 0.25;
            gradient[k] = T(float(double(float(gradient[k])) + double(float(value[k])) / 4 +
                                  pull * double(rank + 1)));
        }
    }
};

// The model on the host.
template <class T>
struct host_model : model_numbers {
    std::vector<std::vector<T>> value, gradient;

    host_model() {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            value.push_back(values<T>(i));
            gradient.emplace_back(sizes[i], T(0.0f));
        }
    }
    template <class Optimizer>
    void register_with(Optimizer& o, std::size_t first = 0) {
        for (std::size_t i = first; i < sizes.size(); ++i)
            o.register_parameter("p" + std::to_string(i), value[i], gradient[i]);
    }
    void backward(std::size_t i, int rank, int step, int pass) {
        add_gradient(value[i].data(), gradient[i].data(), sizes[i], i, rank, step, pass);
    }
};

// The model on the device. Its backward pass is work of a stream.
template <class T>
struct device_model : model_numbers {
    std::vector<std::unique_ptr<tensor<T>>> value, gradient;

    device_model() {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            value.push_back(std::make_unique<tensor<T>>(values<T>(i)));
            gradient.push_back(std::make_unique<tensor<T>>(std::vector<T>(sizes[i], T(0.0f))));
        }
    }
    template <class Optimizer>
    void register_with(Optimizer& o, std::size_t first = 0) {
        for (std::size_t i = first; i < sizes.size(); ++i)
            o.register_parameter("p" + std::to_string(i), value[i]->view(), gradient[i]->view());
    }
    void backward(cudaStream_t stream, std::size_t i, int rank, int step, int pass) {
        emulation::enqueue(
            stream, [=, n = sizes[i], from = value[i]->data(), to = gradient[i]->data()] {
                const auto seen = [&](T* data) {
                    return reinterpret_cast<T*>(emulation::seen_by_device(data, n * sizeof(T)));
                };
                add_gradient(seen(from), seen(to), n, i, rank, step, pass);
            });
    }
    std::vector<std::vector<T>> values_of_all(cudaStream_t stream) const {
        cudaStreamSynchronize(stream);
        std::vector<std::vector<T>> all;
        for (const auto& v : value) all.push_back(v->values());
        return all;
    }
};

// Trains a model on the device. `make_step(optimizer, model, stream, step)` computes the gradients,
// which are zeros, and steps.
template <class T, class Comm, class Optimizer, class F>
std::vector<std::vector<T>> trained_by(Comm& gpus, const Optimizer& optimizer,
                                       const hvd::optimizer_options& options, int steps,
                                       F make_step) {
    device_model<T> model;
    const stream s;
    hvd::distributed_optimizer distributed(gpus, optimizer, options);
    model.register_with(distributed);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients(s);
        make_step(distributed, model, s, step);
    }
    return model.values_of_all(s);
}

// The largest difference between two models.
template <class T>
double difference(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
    if (a.size() != b.size()) return INFINITY;
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t k = 0; k < a[i].size(); ++k) {
            const double d = std::abs(double(float(a[i][k])) - double(float(b[i][k])));
            most = d > most || d != d ? d : most;
        }
    return most;
}

}  // namespace device_test
