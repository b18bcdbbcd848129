// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Measurements that one GPU allows. Packing is compared with a copy per tensor, Horovod's scheme
// and the copy limit. A call of hvd is compared with NCCL's own. Without a GPU the program says so
// and exits with 77.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <hvd/nccl.hpp>
#include <nlohmann/json.hpp>

#include "support/eight_blocks.hpp"
#include "support/gradients.hpp"

namespace {

using hvd::detail::check_cuda, hvd::detail::cuda_memory, hvd::detail::tile;
using kind = cuda_memory::kind;

struct timer {
    cudaEvent_t begin{}, end{};
    timer() { cudaEventCreate(&begin), cudaEventCreate(&end); }
    ~timer() { cudaEventDestroy(begin), cudaEventDestroy(end); }
};

// Returns the microseconds of one call: the median over several times `calls` in a row.
template <class F>
double microseconds(cudaStream_t stream, F&& call, int calls = 20) {
    const timer t;
    std::vector<double> times;
    for (int round = 0; round < 12; ++round) {
        cudaEventRecord(t.begin, stream);
        for (int i = 0; i < calls; ++i) call();
        cudaEventRecord(t.end, stream);
        check_cuda(cudaEventSynchronize(t.end), "cudaEventSynchronize", 0);
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, t.begin, t.end);
        if (round >= 2)
            times.push_back(double(milliseconds) * 1000 / calls);  // the first two warm up
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class T>
cuda_memory on_device(const std::vector<T>& values) {
    cuda_memory memory(kind::device, values.size() * sizeof(T), 0);
    check_cuda(cudaMemcpy(memory.data(), values.data(), memory.size(), cudaMemcpyHostToDevice),
               "cudaMemcpy", 0);
    return memory;
}

// Packs the tensors of one set in each of the ways.
void pack_set(const std::string& name, const std::vector<std::size_t>& counts, cudaStream_t stream,
              double limit, nlohmann::json& figures) {
    std::vector<cuda_memory> tensors;
    std::vector<tile> tiles;
    std::vector<bench::whole_tensor> wholes;
    const cuda_memory buffer(kind::device,
                             bench::total(counts) * sizeof(float) + 16 * counts.size(), 0);
    std::size_t at = 0, bytes = 0;
    for (const std::size_t n : counts) {
        const cuda_memory& t = tensors.emplace_back(kind::device, n * sizeof(float), 0);
        hvd::detail::cut_into_tiles(tiles, t.data(), buffer.data() + at, t.size(),
                                    hvd::detail::copy_kind::bytes, 1);
        wholes.push_back({t.data(), buffer.data() + at, t.size()});
        at += (t.size() + 15) / 16 * 16;
        bytes += t.size();
    }
    const cuda_memory tiles_there = on_device(tiles), wholes_there = on_device(wholes);
    const auto line = [&](const char* scheme, double time, double peer) {
        const double rate = 2 * double(bytes) / time / 1000;
        fmt::print("{:>14} {:>8} {:>12} {:>18} {:>10.1f} {:>9.0f} {:>7.0f}% {:>8.2f}x\n", name,
                   counts.size(), bytes, scheme, time, rate, 100 * rate / limit, peer / time);
        figures.push_back({{"set", name},
                           {"scheme", scheme},
                           {"bytes", bytes},
                           {"us", time},
                           {"local_gbs", rate},
                           {"of_limit", rate / limit}});
    };
    const double eight = microseconds(stream, [&] {
        bench::copy_by_eight_blocks(
            reinterpret_cast<const bench::whole_tensor*>(wholes_there.data()),
            unsigned(wholes.size()), stream);
    });
    const double own = microseconds(stream, [&] {
        hvd::detail::launch_tiles_of(reinterpret_cast<const tile*>(tiles_there.data()),
                                     tiles.size(), stream, 0);
    });
    const double copies = microseconds(stream, [&] {
        for (const auto& w : wholes)
            cudaMemcpyAsync(w.to, w.from, w.bytes, cudaMemcpyDeviceToDevice, stream);
    });
    line("hvd", own, eight);
    line("8 blocks a tensor", eight, eight);
    line("a copy a tensor", copies, eight);
}

// Returns the bytes read and written per second by one copy of 256 MiB.
double copy_limit(cudaStream_t stream) {
    const std::size_t bytes = std::size_t(256) << 20;
    const cuda_memory a(kind::device, bytes, 0), b(kind::device, bytes, 0);
    return 2 * double(bytes) /
           microseconds(stream,
                        [&] {
                            cudaMemcpyAsync(a.data(), b.data(), bytes, cudaMemcpyDeviceToDevice,
                                            stream);
                        }) /
           1000;
}

// Returns the host time of a call on a communicator of one rank, which moves nothing.
template <class F>
double host_microseconds(cudaStream_t stream, F&& call) {
    for (int i = 0; i < 100; ++i) call();
    cudaStreamSynchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) call();
    const auto end = std::chrono::steady_clock::now();
    cudaStreamSynchronize(stream);
    return std::chrono::duration<double, std::micro>(end - begin).count() / 1000;
}

void overhead(cudaStream_t stream, nlohmann::json& figures) {
    ncclUniqueId id;
    ncclComm_t handle = nullptr;
    hvd::detail::check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    hvd::detail::check_nccl(ncclCommInitRankConfig(&handle, 1, id, 0, &config),
                            "ncclCommInitRankConfig", 0);
    hvd::communicator<hvd::nccl> gpus(handle, hvd::borrow);
    const cuda_memory memory(kind::device, 4096, 0);
    const auto x = hvd::device_view(reinterpret_cast<float*>(memory.data()), 1024);
    // The call has a scale, since a single rank does not call NCCL without one.
    const double own = host_microseconds(stream, [&] {
        gpus.allreduce_async(x, hvd::sum, {.prescale = 2, .stream = stream}).wait(stream);
    });
    ncclRedOp_t doubled;
    float two = 2;
    ncclRedOpCreatePreMulSum(&doubled, &two, ncclFloat32, ncclScalarHostImmediate, handle);
    const double raw = host_microseconds(stream, [&] {
        ncclAllReduce(x.data(), x.data(), 1024, ncclFloat32, doubled, handle, stream);
    });
    ncclRedOpDestroy(doubled, handle);
    fmt::print("a call of 4 KiB, host time: hvd {:.2f} us, NCCL {:.2f} us, above it {:.2f} us\n",
               own, raw, own - raw);
    figures = {{"hvd_us", own}, {"nccl_us", raw}};
}

int run(const std::string& file) {
    int devices = 0;
    check_cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount", 0);
    const hvd::detail::cuda_stream stream(0);
    cudaDeviceProp device{};
    check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties", 0);
    const double limit = copy_limit(stream.get());
    fmt::print("{}; a copy on the device reads and writes {:.0f} GB/s\n", device.name, limit);
    fmt::print("{:>14} {:>8} {:>12} {:>18} {:>10} {:>9} {:>8} {:>9}\n", "set", "tensors", "bytes",
               "scheme", "us", "GB/s r+w", "of limit", "8 blocks");
    nlohmann::json figures{
        {"device", device.name}, {"copy_limit_gbs", limit}, {"pack", nlohmann::json::array()}};
    pack_set("1x64MiB", {std::size_t(16) << 20}, stream.get(), limit, figures["pack"]);
    pack_set("resnet50", bench::gradient_counts("resnet50"), stream.get(), limit, figures["pack"]);
    pack_set("1000x64KiB", std::vector<std::size_t>(1000, 16384), stream.get(), limit,
             figures["pack"]);
    overhead(stream.get(), figures["overhead"]);
    if (!file.empty()) std::ofstream(file) << figures.dump(1) << "\n";
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Benchmarks of one GPU");
    std::string file;
    app.add_option("--json", file, "also write the figures to this file");
    CLI11_PARSE(app, argc, argv);
    try {
        return run(file);
    } catch (const hvd::cuda_error& e) {
        fmt::print("{}\n", e.what());
        return std::string_view(e.what()).find("no usable GPU") != std::string_view::npos ? 77 : 1;
    } catch (const std::exception& e) {
        fmt::print("{}\n", e.what());
        return 1;
    }
}
