// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Launches of hvd's kernels. Their bodies, which a GPU runs too, work on the memory that the device
// sees.

#include <hvd/kernels.cuh>

#include <array>
#include <atomic>

#include "emulation.hpp"

namespace {

using hvd::detail::tile;

const std::uint32_t* seen_by_device(const std::uint32_t* stop) {
    return stop == nullptr ? nullptr
                           : reinterpret_cast<const std::uint32_t*>(
                                 emulation::seen_by_kernel(stop, sizeof *stop));
}

tile seen_by_device(tile t) {
    t.from = emulation::seen_by_kernel(t.from, t.count * hvd::detail::bytes_from(t.kind));
    t.to = emulation::seen_by_kernel(t.to, t.count * hvd::detail::bytes_to(t.kind));
    return t;
}

hvd::detail::update_tile seen_by_device(hvd::detail::update_tile t) {
    using hvd::detail::bytes_of_float;
    const auto look_up = [&](auto*& at, std::size_t bytes) {
        if (at != nullptr && t.count > 0) at = emulation::seen_by_kernel(at, t.count * bytes);
    };
    const std::size_t number = t.parameter_id == hvd::dtype::float64 ? 8 : 4;
    look_up(t.parameter, bytes_of_float(t.parameter_id));
    look_up(t.gradient, bytes_of_float(t.gradient_id));
    look_up(t.master, number);
    look_up(t.state1, number);
    look_up(t.state2, number);
    return t;
}

using namespace hvd::detail;

// A kernel goes to a stream of the current device.
cudaError_t refused_launch(cudaStream_t stream) {
    if (emulation::device_of(stream) != emulation::device_of_this_thread())
        return emulation::failed(cudaErrorInvalidResourceHandle);
    return emulation::refused(stream);
}

// The kernels that each device has loaded.
std::array<std::array<std::atomic<bool>, 3>, 8> loaded{};
enum kernel { tiles_kernel, update_kernel, feedback_kernel };

template <kernel Which>
cudaError_t load() {
    if (const int code = emulation::faulted("cudaFuncGetAttributes")) return cudaError_t(code);
    loaded[std::size_t(emulation::device_of_this_thread())][Which] = true;
    return cudaSuccess;
}

// CUDA loads a kernel at its first launch, behind all that the device has been given.
void load_late(kernel which) {
    if (!loaded[std::size_t(emulation::device_of_this_thread())][which].exchange(true))
        emulation::finish_all_work();
}

cudaError_t copy(const tile_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_tiles")) return cudaError_t(code);
    load_late(tiles_kernel);
    if (launch.blocks == 0) return emulation::failed(cudaErrorInvalidValue);
    if (const cudaError_t no = refused_launch(stream)) return emulation::failed(no);
    emulation::launch(
        stream, int(launch.blocks), tile_threads, [launch](int block, unsigned thread) {
            tile_launch all = launch;
            if (all.tiles != nullptr)
                all.tiles = reinterpret_cast<const tile*>(
                    emulation::seen_by_kernel(launch.tiles, launch.blocks * sizeof(tile)));
            all.stop = seen_by_device(launch.stop);
            if (all.is_stopped()) return;
            copy_tile(seen_by_device(all.of_block(unsigned(block))), thread);
        });
    return cudaSuccess;
}

// The launch and one block's tile, as the device sees them.
struct seen_update {
    update_launch launch;
    update_tile tile;

    seen_update(const update_launch& from, int block) : launch(from) {
        const auto* const tiles = reinterpret_cast<const update_tile*>(
            emulation::seen_by_kernel(from.tiles, from.blocks * sizeof tile));
        tile = ::seen_by_device(tiles[block]);
        launch.tiles = &tile;
        launch.stop = ::seen_by_device(from.stop);
        launch.progress = reinterpret_cast<update_progress*>(
            emulation::seen_by_kernel(from.progress, sizeof(update_progress)));
        if (from.clocks != nullptr)
            launch.clocks = reinterpret_cast<update_clock*>(
                emulation::seen_by_kernel(from.clocks, from.clock_count * sizeof(update_clock)));
        if (from.sums != nullptr)
            launch.sums = reinterpret_cast<double*>(
                emulation::seen_by_kernel(from.sums, from.blocks * sizeof(double)));
    }

    // The last block adds up the sums of all.
    void measure(int block) const {
        double sum = 0;
        for (unsigned thread = 0; thread < update_threads; ++thread)
            sum += squares_of_block(launch, 0, thread);
        launch.sums[block] = sum;
        if (!is_last_block(launch)) return;
        sum = 0;
        for (unsigned thread = 0; thread < update_threads; ++thread)
            sum += sums_of_thread(launch, thread);
        launch.progress->squares = sum;
    }

    void run(unsigned thread) const {
        if (launch.work == update_work::look) return look_at_block(launch, 0, thread);
        if (launch.rule.kind == update_kind::adam)
            update_block<adam_rule>(launch, *launch.progress, 0, thread);
        else update_block<sgd_rule>(launch, *launch.progress, 0, thread);
        if (thread + 1 < update_threads || !end_block(launch)) return;
        for (unsigned t = 0; t < update_threads; ++t) advance_clocks(launch, t);
    }
};

cudaError_t update(const update_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_update")) return cudaError_t(code);
    load_late(update_kernel);
    if (launch.blocks == 0) return emulation::failed(cudaErrorInvalidValue);
    if (const cudaError_t no = refused_launch(stream)) return emulation::failed(no);
    emulation::launch(stream, int(launch.blocks), [launch](int block) {
        const seen_update seen(launch, block);
        if (launch.work == update_work::measure) return seen.measure(block);
        for (unsigned thread = 0; thread < update_threads; ++thread) seen.run(thread);
    });
    return cudaSuccess;
}

cudaError_t feed_back(const feedback_launch& launch, cudaStream_t stream) {
    if (const int code = emulation::faulted("launch_feedback")) return cudaError_t(code);
    load_late(feedback_kernel);
    if (launch.count == 0 || launch.count % feedback_numbers != 0)
        return emulation::failed(cudaErrorInvalidValue);
    if (const cudaError_t no = emulation::refused(stream)) return emulation::failed(no);
    return with_feedback(launch, [&]<class Half>() {
        emulation::launch(stream, int(launch.blocks()), [launch](int block) {
            const auto seen = [](auto* at, std::size_t bytes) {
                return reinterpret_cast<decltype(at)>(emulation::seen_by_device(at, bytes));
            };
            feedback_launch l = launch;
            l.from = seen(l.from, l.count * sizeof(float));
            l.residual = seen(l.residual, l.count * sizeof(float));
            l.next = seen(l.next, l.count * sizeof(float));
            l.to = seen(l.to, l.count * sizeof(Half));
            for (unsigned thread = 0; thread < feedback_threads; ++thread)
                feed_back_block<Half>(l, unsigned(block), thread);
        });
        return cudaSuccess;
    });
}

// Registered before main, as the kernels of a .cu file are.
const bool registered = (kernels = {&copy, &update, &feed_back, &load<tiles_kernel>,
                                    &load<update_kernel>, &load<feedback_kernel>},
                         true);

}  // namespace

void emulation::unload_kernels() {
    for (auto& device : loaded)
        for (auto& kernel : device) kernel = false;
}

// The linker looks for it in static libraries.
extern "C" void hvd_kernels() {}
