// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "../../core/tuning.hpp"
#include "../../device/session.hpp"
#include "../../kernel/cuda/tile.hpp"

namespace hvd::inline v0::detail {

// Packs the small tensors of a unit into one buffer, so that they are one call: a launch before it,
// and one after it. The memory is used in the order of the engine's stream, and kept. All ranks
// decide alike, since the tensors of a unit are alike.
class unit_packing {
public:
    // Returns the bytes that the small tensors take; 0: none is packed.
    static std::size_t bytes_of_small(std::span<const collective_call> calls) {
        std::size_t bytes = 0, tensors = 0;
        for (const collective_call& call : calls)
            if (is_small(call)) {
                bytes += call.bytes_of(0);
                ++tensors;
            }
        return tensors > 1 ? bytes : 0;
    }

    bool has_room(std::size_t bytes) const {
        return !buffers_.empty() && buffers_.back().size() >= bytes;
    }
    // The device is current. Work of the stream may use the smaller buffers, so they are kept.
    void make_room(device_session& session, std::size_t bytes) {
        if (!stop_) {
            stop_ = std::make_shared<stop_word>(session.rank());
            session.stop_too(stop_);
        }
        buffers_.push_back(
            cuda_memory(cuda_memory::kind::device, std::bit_ceil(bytes), session.rank()));
    }

    // Copies small tensors into the buffer, which has room, and puts one call in their place.
    void pack(std::vector<collective_call>& calls, cudaStream_t stream, int rank) {
        std::byte* const buffer = buffers_.back().data();
        collective_call whole = *std::ranges::find_if(calls, is_small);
        std::size_t at = 0;
        tiles_.clear();
        unpacking_.clear();
        for (const collective_call& call : calls) {
            if (!is_small(call)) continue;
            const std::size_t bytes = call.bytes_of(0);
            cut_into_tiles(tiles_, call.in, buffer + at, bytes, copy_kind::bytes, 1);
            cut_into_tiles(unpacking_, buffer + at, call.out, bytes, copy_kind::bytes, 1);
            at += bytes;
        }
        const std::size_t blocks = tiles_.size();
        tiles_.insert(tiles_.end(), unpacking_.begin(), unpacking_.end());
        used_ = &place_tiles(stream, rank);
        launch_tiles_of(used_->on_device(), blocks, stream, rank);
        std::erase_if(calls, is_small);
        whole.in = whole.out = buffer;
        whole.entry.count = at / whole.element_bytes;
        whole.entry.dimensions = 0;
        calls.push_back(whole);
    }
    // Copies the results out, unless the communicator was given up meanwhile.
    void unpack(cudaStream_t stream, int rank) {
        const std::size_t blocks = unpacking_.size();
        launch_tiles_of(used_->on_device() + used_->tiles.size() - blocks, blocks, stream, rank,
                        stop_->word());
        used_->done.record(stream, rank);
    }

private:
    // Tiles that the stream reads, or has read.
    struct table {
        std::vector<tile> tiles;
        cuda_memory pinned, device;
        cuda_event done;

        const tile* on_device() const { return reinterpret_cast<const tile*>(device.data()); }
        bool holds(const std::vector<tile>& wanted) const {
            return tiles.size() == wanted.size() &&
                   std::memcmp(tiles.data(), wanted.data(), wanted.size() * sizeof(tile)) == 0;
        }
        bool is_free_for(std::size_t bytes, int rank) const {
            return device.size() >= bytes && done && done.reached(rank);
        }
    };

    static bool is_small(const collective_call& call) {
        return call.entry.count > 0 && call.bytes_of(0) < tuning::pack_below;
    }

    // A step that repeats with its tensors in their places finds its tiles again.
    table& place_tiles(cudaStream_t stream, int rank) {
        for (const auto& t : tables_)
            if (t->holds(tiles_)) return *t;
        const std::size_t bytes = tiles_.size() * sizeof(tile);
        table& t = free_table(bytes, rank);
        t.tiles = tiles_;
        std::memcpy(t.pinned.data(), tiles_.data(), bytes);
        copy_async(t.device.data(), t.pinned.data(), bytes, cudaMemcpyHostToDevice, stream, rank);
        return t;
    }
    table& free_table(std::size_t bytes, int rank) {
        for (const auto& t : tables_)
            if (t->is_free_for(bytes, rank)) return *t;
        const std::size_t room = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
        auto t = std::make_unique<table>();
        t->pinned = cuda_memory(cuda_memory::kind::pinned, room, rank);
        t->device = cuda_memory(cuda_memory::kind::device, room, rank);
        return *tables_.emplace_back(std::move(t));
    }

    std::vector<cuda_memory> buffers_;  // the last is in use
    std::shared_ptr<stop_word> stop_;
    std::vector<std::unique_ptr<table>> tables_;
    std::vector<tile> tiles_, unpacking_;  // of the unit that is packed
    table* used_ = nullptr;
};

}  // namespace hvd::inline v0::detail
