// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Batches in the memory of a GPU are those of the host, however late the GPU reads them.

#include <array>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>

#include <hvd/data_device.hpp>
#include "support.hpp"

namespace batch_tests {

using namespace device_test;
namespace data = hvd::data;

namespace {

struct user_stream {
    cudaStream_t handle{};
    user_stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
    user_stream(const user_stream&) = delete;
    ~user_stream() { cudaStreamDestroy(handle); }
};

// Fetches a tensor behind the stream's earlier work.
template <class T, std::size_t Rank>
std::vector<T> fetched(hvd::tensor_view<T, hvd::device, Rank> from, cudaStream_t stream) {
    std::vector<T> values(from.size());
    if (!values.empty())
        cudaMemcpyAsync(values.data(), from.data(), values.size() * sizeof(T),
                        cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    return values;
}

std::vector<float> numbers(std::size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 1.0F);
    return values;
}

auto pipeline(std::size_t ahead) {
    return data::from(numbers(103)) | data::shuffle({.seed = 5}) | data::batch(8) |
           data::prefetch(ahead);
}

// Everything that was made for f is freed by its end.
template <class F>
void on_a_gpu(F f) {
    f();
    CHECK(emulation::live_objects() == 0);
    emulation::reset();
}

}  // namespace

TEST_CASE("batches on the device are those of the host, on any number of ranks and threads") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (const std::size_t threads : {0, 1, 3})
            for (const std::size_t ahead : {0, 2, 5})
                on_a_gpu([&] {
                    for (int rank = 0; rank < ranks; ++rank) {
                        INFO(ranks, " ranks, ", threads, " threads, ", ahead, " ahead");
                        const hvd::part mine{.rank = rank, .size = ranks};
                        data::loader on_host(pipeline(ahead), mine, {.threads = threads});
                        data::loader loader(pipeline(ahead) | data::map(data::to_device()), mine,
                                            {.threads = threads});
                        const user_stream stream;
                        for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
                            on_host.begin_epoch(epoch);
                            for (auto& batch : loader.epoch(epoch)) {
                                const std::vector<float> expected = on_host.next().value();
                                CHECK(batch.on_host() == expected);
                                CHECK(fetched(batch.on(stream.handle), stream.handle) == expected);
                                CHECK(loader.state() == on_host.state());
                            }
                            CHECK(!on_host.next());
                        }
                    }
                });
}

TEST_CASE("the memory of a batch waits for the streams that read it late") {
    on_a_gpu([] {
        data::loader on_host(pipeline(0), hvd::part{});
        data::loader loader(pipeline(2) | data::map(data::to_device()), hvd::part{});
        const user_stream streams[2];
        std::vector<std::vector<float>> read[2], expected;
        for (auto& batch : loader.epoch(0)) {
            expected.push_back(on_host.next().value());
            for (int i : {0, 1}) {
                const auto view = batch.on(streams[i].handle);
                auto& values = read[i].emplace_back(view.size());
                emulation::enqueue(streams[i].handle,
                                   [i] { std::this_thread::sleep_for(i == 0 ? 3ms : 1ms); });
                cudaMemcpyAsync(values.data(), view.data(), view.size() * sizeof(float),
                                cudaMemcpyDeviceToHost, streams[i].handle);
            }
        }
        for (int i : {0, 1}) cudaStreamSynchronize(streams[i].handle);
        CHECK(read[0] == expected);
        CHECK(read[1] == expected);
    });
}

TEST_CASE("a batch is one copy, none is made before there is room, and memory is kept") {
    on_a_gpu([] {
        constexpr int ahead = 3, batches = 13;
        const auto pairs = [](const std::vector<float>& all) { return std::tuple(all, all); };
        data::loader loader(
            pipeline(0) | data::map(pairs) | data::map(data::to_device()) | data::prefetch(ahead),
            hvd::part{}, {.threads = 2});
        const auto copies = [] { return emulation::calls_of("cudaMemcpyAsync"); };
        const int before = copies();
        loader.begin_epoch(0);
        while (copies() - before < ahead) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(50ms);  // there is no room for another one
        CHECK(copies() - before == ahead);
        while (loader.next()) continue;
        CHECK(copies() - before == batches);
        const int kept = emulation::calls_of("cudaMalloc");
        for (auto& batch : loader.epoch(1)) {
            const auto& [first, second] = batch.on_host();
            CHECK(first == second);
        }
        CHECK(copies() - before == 2 * batches);
        CHECK(emulation::calls_of("cudaMalloc") - kept <= 2);  // those in the hands of threads
    });
}

TEST_CASE("the host does not wait for a copy, and the stream does") {
    on_a_gpu([] {
        const user_stream stream;
        data::loader loader(pipeline(0) | data::map(data::to_device()), hvd::part{});
        emulation::slow_down(1000);
        auto batch = loader.next().value();
        const auto view = batch.on(stream.handle);
        hvd::detail::cuda_event copied;
        copied.record(stream.handle, -1);
        CHECK_FALSE(copied.reached(-1));
        CHECK(fetched(view, stream.handle) == batch.on_host());
        emulation::slow_down(0);
    });
}

TEST_CASE("the parts of a batch: rows, ragged rows, tuples, and a user's own") {
    on_a_gpu([] {
        const user_stream stream;
        const std::vector<std::array<float, 3>> points = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
        const auto to_device = data::to_device();
        data::loader rows(data::from(points) | data::batch(2) | data::map(to_device), hvd::part{});
        auto batch = rows.next().value();
        const auto matrix = batch.on(stream.handle);
        const bool is_matrix = matrix.shape() == hvd::shape(2, 3);
        CHECK(is_matrix);
        CHECK(fetched(matrix, stream.handle) == std::vector<float>{1, 2, 3, 4, 5, 6});

        const std::vector<std::string> texts = {"a", "", "bcd"};
        data::loader ragged(
            data::from(texts) | data::batch(3, data::concatenate) | data::map(to_device),
            hvd::part{});
        auto text = ragged.next().value();
        const auto [letters, offsets] = text.on(0);
        CHECK(fetched(letters, 0) == std::vector<char>{'a', 'b', 'c', 'd'});
        CHECK(fetched(offsets, 0) == std::vector<std::size_t>{0, 1, 1, 4});

        const auto halves = [](const std::vector<float>& all) {
            return std::tuple(all, std::vector<int>{int(all.size())});
        };
        data::loader pairs(
            data::from(numbers(5)) | data::batch(4) | data::map(halves) | data::map(to_device),
            hvd::part{});
        auto pair = pairs.next().value();
        const auto [all, count] = pair.on(cudaStreamPerThread);
        CHECK(reinterpret_cast<std::uintptr_t>(count.data()) % 256 == 0);
        CHECK(fetched(all, cudaStreamPerThread) == numbers(4));
        CHECK(fetched(count, cudaStreamPerThread) == std::vector<int>{4});

        struct labelled {
            std::vector<float> pixels;
            int label;
        };
        const auto label = [](std::vector<float> pixels) { return labelled{pixels, 7}; };
        const auto parts = [](const labelled& x) { return std::tie(x.pixels, x.label); };
        data::loader own(data::from(numbers(6)) | data::batch(6) | data::map(label) |
                             data::map(data::to_device(parts)),
                         hvd::part{});
        auto last = own.next().value();
        const auto [pixels, labels] = last.on(stream.handle);
        CHECK(fetched(pixels, stream.handle) == numbers(6));
        CHECK(fetched(labels, stream.handle) == std::vector<int>{7});
        CHECK(last.on_host().label == 7);
    });
}

TEST_CASE("batches that grow and are empty") {
    on_a_gpu([] {
        const auto lengthened = [](const std::vector<float>& batch) {
            return numbers(std::size_t(batch[0]) * 100 - 100);
        };
        data::loader loader(data::from(numbers(12)) | data::batch(1) | data::map(lengthened) |
                                data::map(data::to_device()) | data::prefetch(3),
                            hvd::part{}, {.threads = 2});
        std::size_t count = 0;
        for (auto& batch : loader.epoch(0))
            CHECK(fetched(batch.on(0), 0) == numbers(100 * count++));
        CHECK(count == 12);
    });
}

TEST_CASE("an error of CUDA ends the stage, and the next epoch begins anew") {
    for (const char* call : {"cudaHostAlloc", "cudaMalloc", "cudaMemcpyAsync", "cudaEventRecord"})
        on_a_gpu([&] {
            INFO(call);
            data::loader loader(pipeline(2) | data::map(data::to_device()), hvd::part{});
            emulation::fail(call, 1, cudaErrorMemoryAllocation);
            std::string text;
            try {
                while (loader.next()) continue;
            } catch (const data::stage_error& e) {
                text = e.what();
            }
            CHECK(text.find("map") != text.npos);
            CHECK(text.find("cuda") != text.npos);
            const user_stream stream;
            std::size_t samples = 0;
            for (auto& batch : loader.epoch(1)) samples += batch.on(stream.handle).size();
            CHECK(samples == 103);
        });
}

TEST_CASE("a graph takes no batch, and one that ends during a capture is not used again") {
    on_a_gpu([] {
        const user_stream stream;
        data::loader loader(pipeline(0) | data::map(data::to_device()), hvd::part{});
        auto batch = loader.next();
        const auto before = batch->on(stream.handle);
        cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal);
        CHECK_THROWS_WITH_AS(batch->on(stream.handle), doctest::Contains("being captured"),
                             hvd::usage_error);
        batch.reset();
        cudaGraph_t graph{};
        CHECK(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
        cudaGraphDestroy(graph);
        auto other = loader.next();
        CHECK(other->on(stream.handle).data() != before.data());
        const auto expected = other->on_host();
        CHECK(fetched(other->on(stream.handle), stream.handle) == expected);
    });
}

}  // namespace batch_tests
