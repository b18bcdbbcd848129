// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Streams as programs use them: tensors are filled and read on default streams and on streams of
// the user's, and the host waits for nothing that a call is ordered after.

#include <memory>
#include <thread>

#include "support.hpp"

namespace streams_tests {

using namespace device_test;

namespace {

using hvd::device_stream;
using on_one_node = hvd::hierarchical<hvd::nccl, hvd::threads>;
#define every_backend hvd::nccl, hvd::staged<hvd::threads>, on_one_node

template <class Backend, class F>
void on_ranks(F f) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
        INFO("on ", ranks, " ranks");
        hvd::run_threads(ranks, [&](hvd::communicator<hvd::threads>& world) {
            hvd::communicator<Backend> gpus(world, {.timeout = 30s});
            f(gpus);
        });
        CHECK(emulation::live_objects() == 0);
        CHECK(emulation::disagreements().empty());
        emulation::reset();
    }
}

constexpr std::size_t length = 300;
constexpr std::size_t bytes = length * sizeof(float);

// Device memory that nobody has written yet.
class memory {
public:
    memory() { cudaMalloc(reinterpret_cast<void**>(&data_), bytes); }
    memory(const memory&) = delete;
    ~memory() { cudaFree(data_); }

    float* data() const { return data_; }
    auto view() const { return hvd::device_view(data_, length); }

    // Copies to pageable memory after the legacy stream's earlier work.
    bool has(float wanted) const {
        std::vector<float> values(length);
        cudaMemcpy(values.data(), data_, bytes, cudaMemcpyDeviceToHost);
        return values == std::vector<float>(length, wanted);
    }

private:
    float* data_ = nullptr;
};

// A kernel that takes long, so that work which does not wait for it comes first.
void busy(cudaStream_t stream) {
    emulation::enqueue(stream, [] { std::this_thread::sleep_for(5ms); });
}

// A kernel that computes a number for each element.
template <class F>
void compute(cudaStream_t stream, const memory& x, F f) {
    busy(stream);
    emulation::launch(stream, int(length), [f, data = x.data()](int i) {
        auto* const seen =
            reinterpret_cast<float*>(emulation::seen_by_device(data + i, sizeof(float)));
        *seen = f(*seen);
    });
}

void fill(cudaStream_t stream, const memory& x, int value) {
    compute(stream, x, [value](float) { return float(value); });
}

// Copies from pageable memory, which is gone when the copy comes there.
void upload(const memory& x, int value) {
    busy(0);
    const std::vector<float> values(length, float(value));
    cudaMemcpy(x.data(), values.data(), bytes, cudaMemcpyHostToDevice);
}

int sum_of_ranks(const auto& gpus) { return gpus.size() * (gpus.size() + 1) / 2; }

struct user_stream {
    cudaStream_t handle{};
    explicit user_stream(unsigned flags) { cudaStreamCreateWithFlags(&handle, flags); }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(handle); }
};

}  // namespace

TEST_CASE("a stream that is given is told from none") {
    CHECK(!device_stream().given());
    CHECK(device_stream().get() == nullptr);
    for (const device_stream zero :
         {device_stream(0), device_stream(nullptr), hvd::device_options{.stream = 0}.stream,
          hvd::device_reduce_options{.stream = nullptr}.stream}) {
        CHECK(zero.given());
        CHECK(zero.get() == cudaStreamLegacy);
    }
    CHECK(device_stream(cudaStreamPerThread).get() == cudaStreamPerThread);
    CHECK(!hvd::device_options{}.stream.given());
    CHECK(!hvd::device_options{.stream = {}}.stream.given());
}

TEST_CASE_TEMPLATE("a call comes after kernels and copies on the default stream", Backend,
                   every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const int mine = gpus.rank() + 1;
        for (const device_stream given :
             {device_stream(0), device_stream(cudaStreamLegacy), device_stream()}) {
            const memory x, y;
            fill(0, x, mine);
            gpus.allreduce(x.view(), hvd::sum, {.stream = given});
            CHECK(x.has(float(sum_of_ranks(gpus))));
            upload(y, mine);
            gpus.broadcast(y.view(), hvd::root{gpus.size() - 1}, {.stream = given});
            CHECK(y.has(float(gpus.size())));
        }
    });
}

TEST_CASE_TEMPLATE("a call comes after the work of the thread's own default stream", Backend,
                   every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        for (const device_stream given : {device_stream(cudaStreamPerThread), device_stream()}) {
            const memory x;
            fill(cudaStreamPerThread, x, gpus.rank() + 1);
            gpus.allreduce(x.view(), hvd::sum, {.stream = given});
            CHECK(x.has(float(sum_of_ranks(gpus))));
        }
    });
}

TEST_CASE_TEMPLATE(
    "a call comes after work of the user's stream, and the stream's later work after it", Backend,
    every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const user_stream blocking(cudaStreamDefault), independent(cudaStreamNonBlocking);
        for (const cudaStream_t s : {cudaStream_t(nullptr), cudaStreamLegacy, cudaStreamPerThread,
                                     blocking.handle, independent.handle, gpus.stream()}) {
            const memory x, y;
            fill(s, x, gpus.rank() + 1);
            auto pending = gpus.allreduce_async(x.view(), hvd::sum, {.stream = s});
            cudaMemcpyAsync(y.data(), x.data(), bytes, cudaMemcpyDeviceToDevice, s);
            compute(s, x, [](float) { return -1.0f; });
            cudaStreamSynchronize(s);
            CHECK(y.has(float(sum_of_ranks(gpus))));
            CHECK(x.has(-1));
            pending.wait();
        }
    });
}

TEST_CASE_TEMPLATE("a stream waits for a request, and the host does not", Backend, every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const user_stream independent(cudaStreamNonBlocking);
        for (const device_stream waits :
             {device_stream(0), device_stream(cudaStreamPerThread),
              device_stream(independent.handle), device_stream(gpus.stream()), device_stream()}) {
            const memory x, y;
            const cudaStream_t s = waits.given() ? waits.get() : gpus.stream();
            upload(x, gpus.rank() + 1);
            auto pending = gpus.allreduce_async(x.view(), hvd::sum);
            pending.wait(waits);
            CHECK(!pending);
            cudaMemcpyAsync(y.data(), x.data(), bytes, cudaMemcpyDeviceToDevice, s);
            cudaStreamSynchronize(s);
            CHECK(y.has(float(sum_of_ranks(gpus))));
        }
    });
}

TEST_CASE_TEMPLATE("a plan runs on any stream", Backend, every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const memory x, y;
        auto plan = gpus.plan_allreduce(hvd::fuse(x.view(), y.view()), hvd::sum);
        for (const device_stream given :
             {device_stream(0), device_stream(cudaStreamPerThread), device_stream()}) {
            const cudaStream_t s = given.get() == cudaStreamPerThread ? given.get() : nullptr;
            fill(s, x, gpus.rank() + 1);
            fill(s, y, 1);
            plan.run(given);
            CHECK(x.has(float(sum_of_ranks(gpus))));
            CHECK(y.has(float(gpus.size())));
        }
    });
}

// LibTorch gives all its work to stream 0 unless it is told otherwise, and so does its optimizer.
TEST_CASE_TEMPLATE("a trainer of which everything is on stream 0", Backend, every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const memory gradients[3], weights;
        upload(weights, 0);
        float wanted = 0;
        for (int step = 1; step <= 3; ++step) {
            std::vector<hvd::device_request> pending;
            for (const memory& g : gradients) {
                fill(0, g, step * (gpus.rank() + 1));
                pending.push_back(gpus.allreduce_async(g.view(), hvd::sum, {.stream = 0}));
            }
            for (auto& p : pending) p.wait(0);
            for (const memory& g : gradients) {
                compute(0, weights, [from = g.data()](float w) {
                    return w + *reinterpret_cast<const float*>(
                                   emulation::seen_by_device(from, sizeof(float)));
                });
                wanted += float(step * sum_of_ranks(gpus));
            }
        }
        CHECK(weights.has(wanted));
    });
}

// Gradients come from the threads of the backward pass.
TEST_CASE_TEMPLATE("a call by another thread of the process", Backend, every_backend) {
    on_ranks<Backend>([](auto& gpus) {
        const memory x;
        upload(x, gpus.rank() + 1);
        std::thread backward([&, process = emulation::process_of_this_thread()] {
            emulation::join_process(process);
            compute(0, x, [](float v) { return 2 * v; });
            gpus.allreduce_async(x.view(), hvd::sum, {.stream = 0}).wait(0);
        });
        backward.join();
        CHECK(x.has(float(2 * sum_of_ranks(gpus))));
    });
}

// LibTorch's allocator uses a recorded stream when the tensor ends.
TEST_CASE("a stream that was lent outlives its communicator, and serves the next one") {
    hvd::run_threads(1, [](hvd::communicator<hvd::threads>& world) {
        const auto own_stream = [](auto& gpus) {
            return hvd::detail::device_access::session_of(gpus)->own_stream();
        };
        cudaStream_t lent = nullptr;
        {
            hvd::communicator<hvd::nccl> gpus(world);
            lent = hvd::detail::device_access::session_of(gpus)->lend_stream();
            CHECK(lent == own_stream(gpus));
        }
        cudaEvent_t event = nullptr;
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        CHECK(cudaEventRecord(event, lent) == cudaSuccess);
        CHECK(cudaStreamSynchronize(lent) == cudaSuccess);
        cudaEventDestroy(event);
        hvd::communicator<hvd::nccl> next(world), another(world);
        CHECK(own_stream(next) == lent);
        CHECK(own_stream(another) != lent);
        const tensor<float> x{3};
        next.allreduce(x.view(), hvd::sum);
        CHECK(x.values()[0] == 3);
    });
    CHECK(emulation::live_objects() == 1);
    cudaStreamDestroy(hvd::detail::lent_streams::of_process().take(0, 0));
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace streams_tests
