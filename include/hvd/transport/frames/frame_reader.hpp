// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "frame.hpp"

namespace hvd::inline v0::detail {

// The receiving half of a connection. Data goes straight to where the caller wants it. Data that
// nobody has asked for yet stays with the system, except for what lies before a notice that is
// looked for.
class frame_reader {
public:
    // As for frame_writer.
    void set_up() {
        blocks_.reserve(2 * tuning::messages_under_way);
        notices_.reserve(4);
        in_.reserve(room);
    }

    // A message fills the memory. It may be shorter if `size` is given, which gets its size.
    void add(std::byte* data, std::size_t bytes, std::size_t* size = nullptr) {
        blocks_.push_back({data, bytes, size});
        if (size != nullptr) *size = 0;
        ++begun_;
    }

    std::uint64_t begun() const { return begun_; }  // messages
    bool is_idle() const { return blocks_.empty(); }
    // The connection is over. Data may have come before that.
    bool has_ended() const { return ended_; }
    const char* reason() const { return reason_; }

    // True if the socket need not have anything for this to go on.
    bool may_have_more() const { return staged() > 0 || was_full_ || !notices_.empty(); }

    // Takes what has come of the data that was asked for.
    template <class Wire>
    void pull(Wire& wire) {
        do
            while (take()) {
            }
        while (!blocks_.empty() && read(wire));
    }

    // Takes the next notice, also from behind data that was not asked for.
    template <class Wire>
    bool take_notice(Wire& wire, failure_notice& notice) {
        for (;;) {
            pull(wire);
            if (blocks_.empty()) find_notices();
            if (!notices_.empty()) break;
            if (!blocks_.empty() || !read_ahead(wire)) return false;
        }
        notice = notices_.front();
        notices_.erase(notices_.begin());
        return true;
    }

    // Afterwards no memory of the caller is written. Data that comes later is dropped.
    void cancel() noexcept {
        drops_ = true;
        blocks_.clear();
        first_ = 0;
    }

private:
    // The memory for what is staged is there from the begin. It is used as far as it has been
    // filled, so that connections over which little goes take little.
    static constexpr std::size_t room = 64 * tuning::KiB, first_room = 4 * tuning::KiB;
    static constexpr const char* another_size = "it sent a message of another size";

    struct block {
        std::byte* data;
        std::size_t bytes;
        std::size_t* size;
    };

    std::size_t staged() const { return end_ - begin_; }

    // Goes on with what is staged; false if it can't.
    bool take() {
        if (is_spoiled_) return false;
        if (left_ > 0) return take_data();
        if (staged() < sizeof head_) return false;
        std::memcpy(&head_, in_.data() + begin_, sizeof head_);
        if (!head_.is_valid()) return spoil(head_.why());
        if (head_.what == frame::kind::notice) return take_staged_notice();
        if (head_.what == frame::kind::probe) {
            begin_ += sizeof head_;
            return true;
        }
        if (blocks_.empty() && !drops_) return false;
        begin_ += sizeof head_;
        left_ = head_.bytes;
        if (!drops_ && left_ > blocks_[first_].bytes) {
            left_ = 0;
            return spoil(another_size);
        }
        return take_data();
    }

    bool take_data() {
        const std::size_t n = staged() < left_ ? staged() : left_;
        if (n == 0) return false;
        if (!drops_) std::memcpy(blocks_[first_].data, in_.data() + begin_, n);
        begin_ += n;
        advance(n);
        return true;
    }

    // So many bytes of the frame under way are where they belong.
    void advance(std::size_t n) {
        left_ -= n;
        if (drops_) return;
        block& b = blocks_[first_];
        b.data += n;
        b.bytes -= n;
        if (b.size != nullptr) *b.size += n;
        if (left_ > 0 || head_.what != frame::kind::last) return;
        if (b.bytes > 0 && b.size == nullptr) {
            spoil(another_size);
        } else if (++first_ == blocks_.size()) {
            blocks_.clear();
            first_ = 0;
        }
    }

    bool take_staged_notice() {
        if (staged() < sizeof head_ + head_.bytes) return false;
        keep_notice(begin_);
        begin_ += sizeof head_ + head_.bytes;
        return true;
    }
    void keep_notice(std::size_t at) {
        failure_notice notice;
        std::memcpy(static_cast<void*>(&notice), in_.data() + at + sizeof(frame), sizeof notice);
        notices_.push_back(notice);
    }

    // Reads once more. The frame under way goes to its place, and what is behind it is staged.
    template <class Wire>
    bool read(Wire& wire) {
        if (ended_) return false;
        make_room(room_);
        std::byte* const place = left_ > 0 && !drops_ ? blocks_[first_].data : nullptr;
        const std::size_t direct = place != nullptr ? left_ : 0,
                          behind = direct > 0 ? first_room : in_.size() - end_,
                          asked = direct + behind;
        const ssize_t n = wire.read(place, direct, in_.data() + end_, behind);
        note_read(n, asked);
        if (n <= 0) return end_unless_later(wire, n);
        const std::size_t there = std::size_t(n) < direct ? std::size_t(n) : direct;
        end_ += std::size_t(n) - there;
        if (there > 0) advance(there);
        // A read that was not full took all that was there.
        while (take()) {
        }
        return std::size_t(n) == asked && !blocks_.empty();
    }

    // Reads behind data that was not asked for.
    template <class Wire>
    bool read_ahead(Wire& wire) {
        if (ended_ || staged() >= tuning::read_ahead) return false;
        make_room(staged() + room_);
        const std::size_t asked = in_.size() - end_;
        const ssize_t n = wire.read(in_.data() + end_, asked, nullptr, 0);
        note_read(n, asked);
        if (n <= 0) return end_unless_later(wire, n);
        end_ += std::size_t(n);
        return true;
    }

    void note_read(ssize_t n, std::size_t asked) {
        was_full_ = n > 0 && std::size_t(n) == asked;
        if (was_full_ && room_ < room) room_ *= 2;
    }

    template <class Wire>
    bool end_unless_later(const Wire& wire, ssize_t n) {
        if (n == 0) end(wire.why_closed());
        else if (errno == EINTR) return true;
        else if (errno != EAGAIN && errno != EWOULDBLOCK) end(wire.why());
        return false;
    }
    void end(const char* why) {
        if (std::exchange(ended_, true)) return;
        reason_ = why;
    }
    // Nothing that follows can be understood.
    bool spoil(const char* why) {
        end(why);
        is_spoiled_ = true;
        return false;
    }

    // Makes what is staged begin at the front, in memory of so many bytes at least.
    void make_room(std::size_t bytes) {
        if (begin_ > 0) {
            std::memmove(in_.data(), in_.data() + begin_, staged());
            end_ -= std::exchange(begin_, 0);
        }
        if (in_.size() < bytes) in_.resize(bytes);
    }

    // Takes the notices that are staged behind whole frames of data.
    void find_notices() {
        std::size_t at = begin_;
        for (frame head; end_ - at >= sizeof head;) {
            std::memcpy(&head, in_.data() + at, sizeof head);
            const std::size_t bytes = sizeof head + head.bytes;
            if (!head.is_valid()) return end(head.why());
            if (end_ - at < bytes) return;
            if (!head.is_data()) {
                if (head.what == frame::kind::notice) keep_notice(at);
                std::memmove(in_.data() + at, in_.data() + at + bytes, end_ - at - bytes);
                end_ -= bytes;
            } else {
                at += bytes;
            }
        }
    }

    std::vector<block> blocks_;  // that are asked for, from first_ on
    std::size_t first_ = 0;
    std::uint64_t begun_ = 0;
    std::vector<std::byte> in_;  // staged: [begin_, end_)
    std::size_t begin_ = 0, end_ = 0, room_ = first_room;
    bool was_full_ = false;  // the last read
    frame head_;             // of the frame of data under way,
    std::size_t left_ = 0;   // of which so many bytes are missing
    std::vector<failure_notice> notices_;
    bool drops_ = false, ended_ = false, is_spoiled_ = false;
    const char* reason_ = "";
};

}  // namespace hvd::inline v0::detail
