// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "../../platform/cuda_memory.hpp"
#include "update.hpp"

namespace hvd::inline v0::detail {

// One tensor of an update on the device. Parameters are float, double, float16 or bfloat16, and
// gradients the same, a 16-bit type or float (double with double). 16-bit parameters may have a
// master in float, which is then updated and rounded to them. States are float, or double for
// double; state2 is for Adam. Addresses that are null have no meaning for the rule. An update is
// fastest if all addresses of a row are multiples of 16 bytes, or become so at one element.
struct update_row {
    std::byte* parameter;
    dtype parameter_id;
    const std::byte* gradient;
    dtype gradient_id;
    std::size_t count;
    std::byte *master = nullptr, *state1 = nullptr, *state2 = nullptr;
    bool clipped = true;      // by the norm of the measured gradients
    std::uint32_t clock = 0;  // which clock of the progress is the parameter's
};

// The tensors that one launch updates, cut into tiles that lie in device memory. It outlives the
// launches, and the graphs that captured them.
class update_rows {
public:
    update_rows() = default;

    // Copies the tiles to the device, and waits for that. The device is current.
    update_rows(std::span<const update_row> rows, cudaStream_t stream, int rank) {
        std::vector<update_tile> tiles;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            check(rows[i], i, rank);
            if (rows[i].count == 0) continue;
            cut(tiles, rows[i]);
            const int states = rows[i].state1 == nullptr ? 0 : rows[i].state2 == nullptr ? 1 : 2;
            if (states < states_) states_ = states;
        }
        if (tiles.empty()) tiles.push_back({});  // the step is counted nevertheless
        tiles_ = cuda_memory(cuda_memory::kind::device, tiles.size() * sizeof(update_tile), rank);
        const finish_before_leaving finish{stream};
        copy_async(tiles_.data(), tiles.data(), tiles_.size(), cudaMemcpyHostToDevice, stream,
                   rank);
    }

    const update_tile* tiles() const { return reinterpret_cast<const update_tile*>(tiles_.data()); }
    unsigned blocks() const { return unsigned(tiles_.size() / sizeof(update_tile)); }
    int states() const { return states_; }  // that all rows have

private:
    static bool fits(const update_row& row) {
        const auto is_float = [](dtype id) {
            return id == dtype::float32 || id == dtype::float16 || id == dtype::bfloat16;
        };
        if (row.parameter_id == dtype::float64)
            return row.gradient_id == dtype::float64 && row.master == nullptr;
        return is_float(row.parameter_id) && is_float(row.gradient_id) &&
               (row.master == nullptr || row.parameter_id != dtype::float32);
    }

    static void check(const update_row& row, std::size_t i, int rank) {
        if (!fits(row))
            throw usage_error(
                rank,
                text("hvd: update on rank ", rank, ": parameter ", i, " of ",
                     dtype_name(row.parameter_id), " with a gradient of ",
                     dtype_name(row.gradient_id), row.master == nullptr ? "" : " and a master",
                     ": expected floats, double only with double, masters only for 16 bits"));
        if (row.count > 0 && (row.parameter == nullptr || row.gradient == nullptr))
            throw usage_error(rank, text("hvd: update on rank ", rank, ": parameter ", i, " of ",
                                         row.count, " elements: null pointer"));
    }

    // The row from element `first` on.
    static update_tile tile_at(const update_row& row, std::size_t first, std::size_t count) {
        const std::size_t number = row.parameter_id == dtype::float64 ? 8 : 4;
        const auto at = [&](std::byte* data, std::size_t bytes) {
            return data == nullptr ? nullptr : data + first * bytes;
        };
        update_tile t{at(row.parameter, bytes_of_float(row.parameter_id)),
                      row.gradient + first * bytes_of_float(row.gradient_id),
                      at(row.master, number),
                      at(row.state1, number),
                      at(row.state2, number),
                      std::uint32_t(count),
                      row.clock,
                      row.parameter_id,
                      row.gradient_id,
                      false,
                      row.clipped};
        std::uintptr_t all = reinterpret_cast<std::uintptr_t>(t.gradient);
        for (const std::byte* p : {t.parameter, t.master, t.state1, t.state2})
            all |= reinterpret_cast<std::uintptr_t>(p);
        t.aligned = all % 16 == 0;
        return t;
    }

    // The elements before the first at which all addresses are aligned, or 0 if there is none.
    static std::size_t head_of(const update_row& row) {
        for (std::size_t head = 0; head < 8 && head < row.count; ++head)
            if (tile_at(row, head, 0).aligned) return head;
        return 0;
    }

    static void cut(std::vector<update_tile>& tiles, const update_row& row) {
        const std::size_t each = elements_per_update_tile(row.parameter_id), head = head_of(row);
        if (head > 0) tiles.push_back(tile_at(row, 0, head));
        for (std::size_t first = head; first < row.count; first += each)
            tiles.push_back(
                tile_at(row, first, row.count - first < each ? row.count - first : each));
    }

    cuda_memory tiles_;
    int states_ = 2;
};

// The gradients whose norm one launch measures. Tiles begin at the same elements wherever a tensor
// lies, so that all ranks add up in one order.
class measured_rows {
public:
    measured_rows() = default;

    // The device is current.
    measured_rows(std::span<const update_row> rows, cudaStream_t stream, int rank) {
        std::vector<update_tile> tiles;
        for (const update_row& row : rows) {
            const std::size_t each = elements_per_update_tile(row.parameter_id);
            for (std::size_t first = 0; first < row.count; first += each)
                tiles.push_back(
                    gradient_at(row, first, row.count - first < each ? row.count - first : each));
        }
        if (tiles.empty()) tiles.push_back({});
        blocks_ = unsigned(tiles.size());
        const std::size_t bytes = tiles.size() * sizeof(update_tile);
        memory_ = cuda_memory(cuda_memory::kind::device, bytes + blocks_ * sizeof(double), rank);
        const finish_before_leaving finish{stream};
        copy_async(memory_.data(), tiles.data(), bytes, cudaMemcpyHostToDevice, stream, rank);
    }

    const update_tile* tiles() const {
        return reinterpret_cast<const update_tile*>(memory_.data());
    }
    double* sums() const {
        return reinterpret_cast<double*>(memory_.data() + blocks_ * sizeof(update_tile));
    }
    unsigned blocks() const { return blocks_; }

private:
    static update_tile gradient_at(const update_row& row, std::size_t first, std::size_t count) {
        update_tile t{};
        t.gradient = row.gradient + first * bytes_of_float(row.gradient_id);
        t.count = std::uint32_t(count);
        t.parameter_id = row.parameter_id;
        t.gradient_id = row.gradient_id;
        t.aligned = reinterpret_cast<std::uintptr_t>(t.gradient) % 16 == 0;
        return t;
    }

    cuda_memory memory_;
    unsigned blocks_ = 0;
};

// The progress of an optimizer, and a clock for each parameter, in device memory. The device is
// current in each call, and all of them wait for the stream.
class device_progress {
public:
    device_progress() = default;

    // One clock, which all rows may share.
    device_progress(const update_rule& rule, std::uint64_t steps, cudaStream_t stream, int rank)
        : device_progress(std::vector{update_clock::after(rule, steps)}, stream, rank) {
        set({.steps = steps}, stream, rank);
    }
    device_progress(std::vector<update_clock> clocks, cudaStream_t stream, int rank)
        : memory_(cuda_memory::kind::device, sizeof(update_progress), rank) {
        set({}, stream, rank);
        set_clocks(std::move(clocks), stream, rank);
    }

    void set(const update_progress& progress, cudaStream_t stream, int rank) {
        write(memory_, &progress, stream, rank);
    }
    update_progress get(cudaStream_t stream, int rank) const {
        update_progress progress;
        read(memory_, &progress, stream, rank);
        return progress;
    }

    // The clocks stay where they are if there are as many as before, and at least one.
    void set_clocks(std::vector<update_clock> clocks, cudaStream_t stream, int rank) {
        if (clocks.empty()) clocks.emplace_back();
        const std::size_t bytes = clocks.size() * sizeof(update_clock);
        if (clocks_.size() != bytes) clocks_ = cuda_memory(cuda_memory::kind::device, bytes, rank);
        write(clocks_, clocks.data(), stream, rank);
    }
    std::vector<update_clock> get_clocks(cudaStream_t stream, int rank) const {
        std::vector<update_clock> clocks(clock_count());
        if (!clocks.empty()) read(clocks_, clocks.data(), stream, rank);
        return clocks;
    }

    update_progress* data() const { return reinterpret_cast<update_progress*>(memory_.data()); }
    update_clock* clocks() const { return reinterpret_cast<update_clock*>(clocks_.data()); }
    unsigned clock_count() const { return unsigned(clocks_.size() / sizeof(update_clock)); }

    // The flag that skips the next update, in device memory: the maximum over all ranks skips it on
    // all.
    std::uint32_t* skip() const { return &data()->skip; }
    // The sum of the measured squares, in device memory: ranks with a slice each add theirs.
    double* squares() const { return &data()->squares; }

private:
    static void write(const cuda_memory& memory, const void* from, cudaStream_t stream, int rank) {
        const finish_before_leaving finish{stream};
        copy_async(memory.data(), from, memory.size(), cudaMemcpyHostToDevice, stream, rank);
    }
    static void read(const cuda_memory& memory, void* to, cudaStream_t stream, int rank) {
        const finish_before_leaving finish{stream};
        copy_async(to, memory.data(), memory.size(), cudaMemcpyDeviceToHost, stream, rank);
    }

    cuda_memory memory_, clocks_;
};

inline void launch_on_device(const update_launch& launch, cudaStream_t stream, int rank) {
    if (kernels.update == nullptr) throw usage_error(rank, no_kernels("an update", rank));
    check_cuda(kernels.update(launch, stream), "launch of hvd's update kernel", rank);
}

// Enqueues one step of the rule for all rows, in one launch, which skips it if the flag is set, and
// leaves it out if `stop` is. A step of several launches (groups of parameters with their own
// rates) says so in all but the last.
inline void launch_update(const update_rule& rule, const update_rows& rows,
                          const device_progress& progress, cudaStream_t stream, int rank,
                          update_work work = update_work::finish,
                          const std::uint32_t* stop = nullptr) {
    if (rule.states() > rows.states())
        throw usage_error(
            rank, text("hvd: an update on rank ", rank, ": the optimizer has ", rule.states(),
                       " states for each parameter, and a row has ", rows.states()));
    launch_on_device({rows.tiles(), progress.data(), progress.clocks(), progress.clock_count(),
                      rows.blocks(), work, rule, nullptr, stop},
                     stream, rank);
}

// Enqueues one launch that sets the flag if a gradient is not finite. A rank that updates a slice
// only looks at that; the ranks then agree on the flag.
inline void launch_look(const update_rows& rows, const device_progress& progress,
                        cudaStream_t stream, int rank) {
    launch_on_device(
        {rows.tiles(), progress.data(), nullptr, 0, rows.blocks(), update_work::look, {}}, stream,
        rank);
}

// Enqueues one launch that adds up the squares of the gradients, for `max_norm` of the rule.
inline void launch_measure(const measured_rows& rows, const device_progress& progress,
                           cudaStream_t stream, int rank) {
    launch_on_device({rows.tiles(),
                      progress.data(),
                      nullptr,
                      0,
                      rows.blocks(),
                      update_work::measure,
                      {},
                      rows.sums()},
                     stream, rank);
}

}  // namespace hvd::inline v0::detail
