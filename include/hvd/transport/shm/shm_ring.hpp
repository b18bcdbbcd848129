// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "shm_messages.hpp"
#include "store_choice.hpp"

namespace hvd::inline v0::detail {

// The windows of a rank: a ring, which it fills and its peers read.
//
// In a step a rank shows one piece of data, of a window at most. It writes the pieces of one step
// after those of the other, all through the ring, so that it comes back late to memory that its
// peers have in their caches. Whoever has seen all ranks arrive at a step knows that they have read
// what it showed before: so three windows would be enough.
//
// More data than that go through the windows in chunks, in stages that each rank counts. A rank
// fills windows as long as its peers have taken the chunks that were there, and waits only if it
// can do nothing else. So the ranks need not have their processors at the same time.
class shm_ring : public shm_messages {
public:
    shm_ring(const shm_region& region, int rank, const int* numbers = nullptr)
        : shm_messages(region, rank, numbers),
          window_bytes_(region.window_bytes()),
          windows_(region.windows()),
          ring_bytes_(tuning::windows * window_bytes_) {}

    data_path path() const override { return reached ? data_path::in_place : data_path::windows; }

protected:
    // A chunk of a rank goes through these stages: it is filled, reduced, and its result is taken.
    // Peers that only read it skip the second one.
    enum stage : int { filled, reduced, taken };

    // ---- one piece in a step --------------------------------------------------------------------

    // Shows nothing in the next step, unless something is shown until then.
    void show_nothing() { next_line().what = content::nothing; }

    // Returns memory for a piece of the next step, of a window at most. A small piece lies in the
    // line itself. It returns null if a peer has not read yet what is there.
    std::byte* room_for(std::size_t bytes) {
        if (bytes <= sizeof next_line().small) return next_line().small;
        std::byte* const room = ring_room(bytes, tuning::cache_line);
        if (room != nullptr) next_line().layout.at = written_ % ring_bytes_;
        return room;
    }
    // The piece is complete.
    void show_piece(content what, std::size_t bytes) {
        next_line().what = what;
        if (bytes > sizeof next_line().small) written_ += aligned(bytes);
    }
    const std::byte* piece_of(int peer, std::size_t bytes) const {
        const step_line& line = line_of(peer);
        if (bytes <= sizeof line.small) return line.small;
        const std::uint64_t at = line.layout.at;
        if (at % tuning::cache_line != 0 || at > ring_bytes_ || bytes > ring_bytes_ - at)
            [[unlikely]]
            refuse_shown_by(peer);
        return ring_of(peer) + at;
    }

    // True if all ranks show `what` in this step.
    bool all_show(content what) const {
        for (int p = 0; p < size_; ++p)
            if (line_of(p).what != what) return false;
        return true;
    }

    // ---- chunks ---------------------------------------------------------------------------------

    // Returns the window for the first chunk, which is shown in the next step. It returns null if a
    // peer has not read yet what is there.
    std::byte* first_window() {
        std::byte* const room = ring_room(window_bytes_, window_bytes_);
        if (room != nullptr) next_line().layout.at = written_ % ring_bytes_;
        return room;
    }
    void show_first_chunk() {
        next_line().what = content::data;
        written_ += window_bytes_;
    }

    // Chunk number i of a rank in the present step.
    std::byte* chunk_of(int peer, std::uint64_t i) const {
        const std::uint64_t at = line_of(peer).layout.at;
        if (at % window_bytes_ != 0) [[unlikely]]
            refuse_shown_by(peer);
        return ring_of(peer) + (at + i * window_bytes_) % ring_bytes_;
    }

    // One of the stages of chunk number i. Chunks come to it in their order.
    using work = void (shm_ring::*)(std::uint64_t i);

    // Brings `chunks` chunks, of which all ranks show the first, through the stages. There is
    // nothing to do for a null stage. Returns false if this is done at once.
    bool begin_chunks(std::uint64_t chunks, work fill, work reduce, work take) {
        if (chunks == 1 && reduce == nullptr) {
            (this->*take)(0);
            return false;
        }
        chunks_ = chunks;
        work_[filled] = fill;
        work_[reduced] = reduce;
        work_[taken] = take;
        done_[filled] = 1;
        done_[reduced] = done_[taken] = 0;
        seen_[filled] = before_ + 1;
        seen_[reduced] = seen_[taken] = before_;
        written_ += (chunks - 1) * window_bytes_;
        written_of_chunks_ = written_;
        step_of_chunks_ = step();
        next_ = static_cast<round>(&shm_ring::next_chunk);
        stage_ = reduce != nullptr ? reduced : taken;
        return next_chunk();
    }

    // Ranks may have left the present step: the chunks of the step before may still be there.
    void keep_chunks() {
        if (step_of_chunks_ + 1 == step()) step_of_chunks_ = step();
    }

    std::uint64_t windows_of(std::size_t bytes) const {
        return (bytes + window_bytes_ - 1) / window_bytes_;
    }

    // Place number `index` of a peer that shows so many.
    place place_shown(int peer, std::size_t index, std::size_t places) const {
        place p;
        std::memcpy(&p, piece_of(peer, places * sizeof p) + index * sizeof p, sizeof p);
        return p;
    }
    // The same in this rank's addresses. It has so many bytes.
    std::byte* at_place(int peer, std::size_t index, std::size_t places, std::size_t bytes) const {
        const place p = place_shown(peer, index, places);
        std::byte* const data = region_.reachable().at(p, bytes);
        if (data == nullptr && bytes > 0) [[unlikely]]
            refuse_shown_by(peer);
        return data;
    }
    std::size_t room_for_places() const { return window_bytes_ / sizeof(place); }
    // Returns the bytes of a window for each of `n` ranks.
    std::size_t share_of_window(int n) const {
        return window_bytes_ / std::size_t(n) / tuning::cache_line * tuning::cache_line;
    }

    const std::size_t window_bytes_;
    store_choice stores_;

private:
    std::byte* ring_of(int rank) const { return windows_ + std::size_t(rank) * ring_bytes_; }

    // A piece lies in one stretch.
    std::byte* ring_room(std::size_t bytes, std::size_t alignment) {
        std::uint64_t at = (written_ + alignment - 1) / alignment * alignment;
        if (at % ring_bytes_ + bytes > ring_bytes_) at += ring_bytes_ - at % ring_bytes_;
        if (!is_read(at + bytes)) return nullptr;
        written_ = at;
        return ring_of(rank_) + at % ring_bytes_;
    }

    // True if all ranks have read what lies where the ring is written up to `end`. Only chunks of
    // the last step may still be there. They end where `written_` was then.
    bool is_read(std::uint64_t end) const {
        if (step_of_chunks_ != step() || end <= ring_bytes_) return true;
        const std::uint64_t first = written_of_chunks_ - chunks_ * window_bytes_;
        if (end - ring_bytes_ <= first) return true;
        const std::uint64_t over = windows_of(std::size_t(end - ring_bytes_ - first));
        return all_have(taken, before_ - chunks_ + (over < chunks_ ? over : chunks_));
    }

    // A stage of a chunk needs this stage of all ranks.
    stage needed(stage s) const {
        if (s == filled) return taken;
        return s == taken && work_[reduced] != nullptr ? reduced : filled;
    }
    // The number of chunks that all ranks must have brought through that stage.
    std::uint64_t least(stage s) const {
        return before_ + done_[s] + 1 - (s == filled ? tuning::windows : 0);
    }
    // This rank itself is ready for the next chunk of the stage.
    bool is_due(stage s) const {
        if (work_[s] == nullptr) return false;
        return done_[s] < (s == filled ? chunks_ : done_[needed(s)]);
    }
    bool is_possible(stage s) {
        if (s == filled && done_[filled] < tuning::windows) return true;
        std::uint64_t& seen = seen_[needed(s)];
        if (seen >= least(s)) return true;
        if (!all_have(needed(s), least(s))) return false;
        seen = least(s);
        return true;
    }

    bool next_chunk() {
        (this->*work_[stage_])(done_[stage_]);
        tell_chunks(stage_, before_ + ++done_[stage_]);
        if (done_[taken] == chunks_) {
            before_ += chunks_;
            return false;
        }
        for (const stage s : {taken, reduced, filled})
            if (is_due(s) && is_possible(s)) {
                stage_ = s;
                return true;
            }
        for (const stage s : {taken, reduced, filled})
            if (is_due(s)) {
                stage_ = s;
                await_chunks(needed(s), least(s));
                break;
            }
        return true;
    }

    std::byte* const windows_;
    const std::size_t ring_bytes_;
    std::uint64_t written_ = 0;  // where this rank writes next, counted without end

    // The chunks under way, or the last ones.
    std::uint64_t chunks_ = 0;
    work work_[3] = {};
    stage stage_ = filled;                       // the next one
    std::uint64_t done_[3] = {}, seen_[3] = {};  // by this rank, and by all of them
    std::uint64_t before_ = 0;                   // chunks of all the steps before
    std::uint64_t step_of_chunks_ = 0, written_of_chunks_ = 0;
};

}  // namespace hvd::inline v0::detail
