// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <memory>

#include "../kernel/cuda/tile.hpp"
#include "session.hpp"

namespace hvd::inline v0::detail {

// The places of a plan's packed tensors in its buffer, and the tiles that copy them there and back.
// Slots are aligned to 16 bytes, so that the kernel and NCCL use whole vectors. Groups, one per
// type, are aligned to 256 bytes.
class device_layout {
public:
    // Returns the begin of the next group.
    std::size_t begin_group() { return bytes_ = (bytes_ + 255) / 256 * 256; }

    // Adds a tensor. `pack` turns its elements into those of the wire, and `unpack` back, scaled.
    void add(const tensor_ref& tensor, copy_kind pack, copy_kind unpack, double before,
             double after) {
        slots_.push_back({tensor, bytes_, pack, unpack, before, after});
        const std::size_t wire = pack == copy_kind::bytes ? tensor.element_bytes : bytes_to(pack);
        bytes_ += (tensor.count * wire + 15) / 16 * 16;
    }

    std::size_t bytes() const { return bytes_; }

    // The tiles of both directions, once the address of the buffer is known.
    std::vector<tile> packing(std::byte* buffer) const {
        std::vector<tile> tiles;
        for (const slot& s : slots_)
            cut_into_tiles(tiles, s.tensor.data, buffer + s.offset, units(s, s.pack), s.pack,
                           s.before);
        return tiles;
    }
    std::vector<tile> unpacking(std::byte* buffer) const {
        std::vector<tile> tiles;
        for (const slot& s : slots_)
            cut_into_tiles(tiles, buffer + s.offset, s.tensor.data, units(s, s.unpack), s.unpack,
                           s.after);
        return tiles;
    }

private:
    struct slot {
        tensor_ref tensor;
        std::size_t offset;
        copy_kind pack, unpack;
        double before, after;
    };

    static std::size_t units(const slot& s, copy_kind kind) {
        return kind == copy_kind::bytes ? s.tensor.bytes() : s.tensor.count;
    }

    std::vector<slot> slots_;
    std::size_t bytes_ = 0;
};

// The work of a plan's run: a launch, the calls, a launch.
struct planned_calls {
    std::vector<collective_call> calls;
    std::shared_ptr<std::byte> buffer;
    std::size_t buffer_bytes = 0;
    cuda_memory tiles;
    std::size_t before = 0, after = 0;  // numbers of tiles of each launch; they follow each other
    std::shared_ptr<const void> function;
    message name, label;  // the label includes the name, for errors
    time_limit timeout{};

    const tile* first_tile() const { return reinterpret_cast<const tile*>(tiles.data()); }
};

// Makes the buffer and copies the tiles to the device. Before it, calls on parts of the buffer have
// null pointers, and offsets in it.
inline void place_plan(planned_calls& plan, const device_layout& layout, bool packs, bool unpacks,
                       device_session& session) {
    const current_device here(session.device(), session.rank());
    const cudaStream_t stream = session.own_stream();
    if (layout.bytes() == 0) return;
    plan.buffer = session.memory_for_plan(layout.bytes());
    plan.buffer_bytes = layout.bytes();
    // The bytes between the slots are reduced too, and must not become NaNs.
    check_cuda(cudaMemsetAsync(plan.buffer.get(), 0, layout.bytes(), stream), "cudaMemsetAsync",
               session.rank());
    std::vector<tile> tiles;
    if (packs) tiles = layout.packing(plan.buffer.get());
    plan.before = tiles.size();
    if (unpacks)
        for (const tile& t : layout.unpacking(plan.buffer.get())) tiles.push_back(t);
    plan.after = tiles.size() - plan.before;
    plan.tiles =
        cuda_memory(cuda_memory::kind::device, tiles.size() * sizeof(tile), session.rank());
    const finish_before_leaving finish{stream};
    copy_async(plan.tiles.data(), tiles.data(), plan.tiles.size(), cudaMemcpyHostToDevice, stream,
               session.rank());
    session.wait(session.mark(stream), "making of a plan", session.limit_for({}));
}

}  // namespace hvd::inline v0::detail
