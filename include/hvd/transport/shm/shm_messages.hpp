// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/tuning.hpp"
#include "../../kernel/copy.hpp"
#include "../chunks.hpp"
#include "shm_departures.hpp"

namespace hvd::inline v0::detail {

// Messages between two ranks of a node. The other ranks take no part, so that there is no step:
// each of the two counts how far it has come with the other, from the beginning on.
//
// The receiver reads the tensor where it lies, if it can reach it. Otherwise the sender brings it
// chunk by chunk through two windows of its own.
class shm_messages : public shm_departures {
public:
    using shm_departures::shm_departures;

    void exchange_header(const call_header& mine, int peer) override {
        copy_header(entry_of_message(rank_), mine);
        with_ = peer;
        go_on(1, 1, static_cast<round>(&shm_messages::read_header));
    }

    void move_one(const block& b, int peer, bool sends) override {
        with_ = peer;
        data_ = b;
        chunks_ = (b.bytes + tuning::message_window - 1) / tuning::message_window;
        done_ = 0;
        if (chunks_ == 0) next_ = static_cast<round>(&shm_messages::end_of_nothing);
        else if (!sends) await(1, static_cast<round>(&shm_messages::receive_chunks));
        else if (show_tensor())
            go_on(chunks_, chunks_, static_cast<round>(&shm_messages::end_in_place));
        else send_chunks();
    }

private:
    // Progress is counted from the end of the message before.
    void await(std::uint64_t theirs, round then) {
        await_progress(with_, before_[std::size_t(with_)] + theirs);
        next_ = then;
    }
    void tell(std::uint64_t mine) { tell_progress(with_, before_[std::size_t(with_)] + mine); }
    void go_on(std::uint64_t mine, std::uint64_t theirs, round then) {
        await(theirs, then);
        tell(mine);
    }
    bool has(std::uint64_t theirs) const {
        return progress_of(with_) >= before_[std::size_t(with_)] + theirs;
    }

    // ---- the header -----------------------------------------------------------------------------

    bool read_header() {
        const call_header& shown = entry_of_message(with_);
        if (!is_header(shown)) [[unlikely]]
            refuse_shown_by(with_);
        copy_header(theirs_, shown);
        headers[with_] = &theirs_;
        go_on(2, 2, static_cast<round>(&shm_messages::end_of_header));
        return true;
    }
    bool end_of_header() {
        before_[std::size_t(with_)] += 2;
        begin_alone();
        return false;
    }

    // ---- the data -------------------------------------------------------------------------------

    bool end_of_nothing() { return false; }
    // The receiver is done with this rank's tensor.
    bool end_in_place() {
        before_[std::size_t(with_)] += chunks_;
        begin_alone();
        return finish();
    }

    // Shows where the tensor lies. False if the receiver can't reach it.
    bool show_tensor() {
        message_line& line = region_.line_of_messages(rank_);
        const bool can_reach = show_place(line.where, 0, data_.data, data_.bytes);
        line.what = can_reach ? content::places : content::data;
        return can_reach;
    }

    // Fills the windows that are free.
    bool send_chunks() {
        for (; done_ < chunks_ && (done_ < 2 || has(done_ - 1)); tell(done_)) {
            const block chunk = chunk_of(data_, done_, tuning::message_window);
            copy_bytes(region_.message_window(rank_, done_++ % 2), chunk.data, chunk.bytes);
        }
        if (done_ == chunks_) await(chunks_, static_cast<round>(&shm_messages::end_of_chunks));
        else await(done_ - 1, static_cast<round>(&shm_messages::send_chunks));
        return true;
    }
    bool end_of_chunks() {
        before_[std::size_t(with_)] += chunks_;
        begin_alone();
        return false;
    }

    bool receive_chunks() {
        if (region_.line_of_messages(with_).what == content::places) return receive_in_place();
        for (; done_ < chunks_ && has(done_ + 1); tell(done_)) {
            const block chunk = chunk_of(data_, done_, tuning::message_window);
            copy_bytes(chunk.data, region_.message_window(with_, done_++ % 2), chunk.bytes);
        }
        if (done_ == chunks_) return end_of_chunks();
        await(done_ + 1, static_cast<round>(&shm_messages::receive_chunks));
        return true;
    }

    // A sender that has left comes no farther: the wait for it tells that.
    bool receive_in_place() {
        const bool is_there = reach_for(with_, [&] {
            place p;
            std::memcpy(&p, region_.line_of_messages(with_).where, sizeof p);
            const std::byte* const from = region_.reachable().at(p, data_.bytes);
            if (from == nullptr) [[unlikely]]
                refuse_shown_by(with_);
            copy_bytes(data_.data, from, data_.bytes);
        });
        if (!is_there) {
            await(chunks_ + 1, static_cast<round>(&shm_messages::end_of_chunks));
            return true;
        }
        tell(chunks_);
        return end_of_chunks();
    }

    int with_ = -1;
    block data_{};
    std::uint64_t chunks_ = 0, done_ = 0;
    table<std::uint64_t> before_{std::size_t(size_)};  // by peer
    call_header theirs_;
};

}  // namespace hvd::inline v0::detail
