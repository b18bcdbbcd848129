// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <hvd/train_device.hpp>

#include "../device/support.hpp"

namespace device_test {

using host = hvd::threads;
using mixed = hvd::per_operation<hvd::nccl, hvd::staged<host>, hvd::staged<host>>;
using in_nodes = hvd::hierarchical<hvd::nccl, host>;

// Runs f(world, gpus) on ranks with an emulated GPU each, in nodes of `node` ranks.
template <class Backend, class F>
void train_on(int ranks, int node, F f,
              const hvd::communicator_options& options = {.timeout = 100s}) {
    INFO("on ", ranks, " ranks in nodes of ", node);
    hvd::run_threads(ranks,
                     [&](hvd::communicator<host>& world) {
                         hvd::communicator<Backend> gpus(world, options);
                         f(world, gpus);
                     },
                     {.node_size = node});
    CHECK(emulation::live_objects() == 0);
    CHECK(emulation::disagreements().empty());
    emulation::reset();
}

// Runs f on 1 to 4 ranks with every backend.
template <class F>
void train_on_every_backend(F f, const hvd::communicator_options& options = {.timeout = 100s}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        train_on<hvd::nccl>(ranks, ranks, f, options);
        train_on<hvd::staged<host>>(ranks, ranks, f, options);
        train_on<in_nodes>(ranks, ranks % 2 == 0 ? 2 : 1, f, options);
        train_on<mixed>(ranks, ranks, f, options);
    }
}

// A stream that waits for the default stream, which fills the tensors.
class stream {
public:
    stream() { cudaStreamCreate(&stream_); }
    stream(const stream&) = delete;
    ~stream() {
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
    }
    operator cudaStream_t() const { return stream_; }

    // Copies values to a tensor, late, as a kernel of the backward pass would write them.
    template <class T>
    void write(const tensor<T>& to, const std::vector<T>& values) const {
        if (values.empty()) return;
        emulation::enqueue(stream_, [data = to.data(), values] {
            std::memcpy(emulation::seen_by_device(data, values.size() * sizeof(T)), values.data(),
                        values.size() * sizeof(T));
        });
    }
    // Adds values to a tensor, late.
    template <class T>
    void add(const tensor<T>& to, const std::vector<T>& values) const {
        emulation::enqueue(stream_, [data = to.data(), values] {
            T* const x =
                reinterpret_cast<T*>(emulation::seen_by_device(data, values.size() * sizeof(T)));
            for (std::size_t i = 0; i < values.size(); ++i) x[i] = T(x[i] + values[i]);
        });
    }
    template <class T>
    std::vector<T> values(const tensor<T>& of) const {
        cudaStreamSynchronize(stream_);
        return of.values();
    }

private:
    cudaStream_t stream_ = nullptr;
};

}  // namespace device_test
