// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "frame.hpp"

namespace hvd::inline v0::detail {

// The sending half of a connection: messages of data, from the memory of the caller, and notices,
// which it keeps. A notice goes before the next frame of data.
class frame_writer {
public:
    // A rank without memory can't tell it in the middle of a call. So what calls need is there
    // before the first one, as for MPI.
    void set_up() {
        blocks_.reserve(2 * tuning::messages_under_way);
        notices_.reserve(4);
    }

    // `data` stays untouched until is_idle().
    void add(const std::byte* data, std::size_t bytes) {
        blocks_.push_back({data, bytes});
        ++begun_;
    }
    void add_notice(const failure_notice& notice) { notices_.push_back(notice); }
    // Sends something that the peer's host acknowledges, unless something is under way already.
    void add_probe() { probes_ = probes_ || !has_work(); }

    std::uint64_t begun() const { return begun_; }  // messages
    // True if all data has gone to the system.
    bool is_idle() const { return blocks_.empty(); }
    bool has_work() const {
        return writes_ && (left_ > 0 || probes_ || !blocks_.empty() || !notices_.empty());
    }
    bool is_broken() const { return !writes_; }

    // Writes as much as the wire takes.
    template <class Wire>
    void push(Wire& wire) {
        while (writes_ && (left_ > 0 || begin_frame())) {
            const ssize_t n = write(wire);
            if (n >= 0) advance(std::size_t(n));
            else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            else if (errno != EINTR) writes_ = false;
            if (left_ == 0) kept_ = false;
        }
        if (left_ > 0 || first_ < blocks_.size() || !wire.flush()) return;
        blocks_.clear();
        first_ = 0;
    }

    // Afterwards no memory of the caller is read. The rest of a frame whose begin has gone is kept,
    // so that notices can follow it.
    void cancel() noexcept {
        blocks_.clear();
        first_ = 0;
        if (left_ == 0 || !head_.is_data() || kept_) return;
        if (left_ == sizeof head_ + head_.bytes) {
            left_ = 0;  // nothing has gone
            return;
        }
        kept_ = true;
        try {
            rest_.assign(payload_, payload_ + payload_left());
            payload_ = rest_.data();
        } catch (const std::bad_alloc&) {
            writes_ = false;
        }
    }

private:
    struct block {
        const std::byte* data;
        std::size_t bytes;
    };

    bool begin_frame() {
        if (!notices_.empty()) {
            notice_ = notices_.front();
            notices_.erase(notices_.begin());
            head_ = {sizeof notice_, frame::kind::notice};
            payload_ = reinterpret_cast<const std::byte*>(&notice_);
        } else if (first_ < blocks_.size()) {
            block& next = blocks_[first_];
            const bool last = next.bytes <= tuning::frame_bytes;
            head_.bytes = std::uint32_t(last ? next.bytes : tuning::frame_bytes);
            head_.what = last ? frame::kind::last : frame::kind::part;
            payload_ = next.data;
            next.data += head_.bytes;
            next.bytes -= head_.bytes;
            if (last) ++first_;
        } else if (std::exchange(probes_, false)) {
            head_ = {0, frame::kind::probe};
        } else {
            return false;
        }
        left_ = sizeof head_ + head_.bytes;
        return true;
    }

    std::size_t payload_left() const { return left_ < head_.bytes ? left_ : head_.bytes; }

    // The rest of the head, and of what follows it.
    template <class Wire>
    ssize_t write(Wire& wire) {
        const std::size_t of_head = left_ - payload_left();
        const std::byte* const head = reinterpret_cast<const std::byte*>(&head_);
        return wire.write(head + (sizeof head_ - of_head), of_head, payload_, payload_left());
    }
    void advance(std::size_t n) {
        const std::size_t of_head = left_ - payload_left();
        if (n > of_head) payload_ += n - of_head;
        left_ -= n;
    }

    std::vector<block> blocks_;  // from first_ on
    std::size_t first_ = 0;
    std::vector<failure_notice> notices_;
    std::uint64_t begun_ = 0;
    // The frame under way, of which `left_` bytes have not gone.
    frame head_;
    const std::byte* payload_ = nullptr;
    std::size_t left_ = 0;
    failure_notice notice_{};
    std::vector<std::byte> rest_;
    bool probes_ = false, kept_ = false, writes_ = true;
};

}  // namespace hvd::inline v0::detail
